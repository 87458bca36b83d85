"""The headers of a message, for logging and tracing."""

from __future__ import annotations

import msgspec


def decode_headers(headers: str | None) -> dict[str, str]:
    """Decodes headers, with names in lower case as in HTTP; headers that cannot be read become none."""
    if headers is None:
        return {}
    try:
        found = msgspec.json.decode(headers, type=dict[str, str])
    except (msgspec.MsgspecError, RecursionError):  # not written by todoku
        return {}
    return {name.lower(): value for name, value in found.items()}
