"""Where messages go, beside handlers: each module is one kind of destination."""
