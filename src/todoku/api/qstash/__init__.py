"""The HTTP API of QStash, `/v2/*`, for its official clients. Only parses requests and renders responses."""
