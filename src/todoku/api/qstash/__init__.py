"""The wire API of QStash, `/v2/*`: its official clients work with todoku unchanged. It parses and renders."""
