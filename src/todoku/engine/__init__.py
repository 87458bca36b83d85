"""The line, one verb a file: publish → claim → execute → settle → history."""
