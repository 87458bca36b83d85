"""The headers of a message, as those look for them who tell of it."""

from __future__ import annotations

import msgspec


def decoded(headers: str | None) -> dict[str, str]:
    """Headers by their names in lower case, since HTTP does not care; none of what cannot be read."""
    if headers is None:
        return {}
    try:
        found = msgspec.json.decode(headers, type=dict[str, str])
    except (msgspec.MsgspecError, RecursionError):  # written by somebody else
        return {}
    return {name.lower(): value for name, value in found.items()}
