"""JSON text as people may see it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from todoku.core.errors import InvalidMessage
from todoku.core.http_headers import is_secret
from todoku.core.http_request import HTTP, SECRETS, request_of
from todoku.core.masking import STARS, mask
from todoku.core.redaction import redacted
from todoku.core.sealed import sealed_result


def masked(text: str | None, fields: Iterable[str]) -> object:
    """JSON text as a value, with stars where nobody may look."""
    if text is not None and (raw := sealed_result(text)) is not None:
        return f"encrypted ({len(raw)} bytes)"
    return None if text is None else mask(msgspec.json.decode(text), frozenset(fields))


def masked_headers(text: str | None, fields: Iterable[str]) -> object:
    """The headers of a message, with stars where nobody may look. A request has none of its secrets in it."""
    if text is None:
        return None
    try:
        request = request_of(text)
    except InvalidMessage:  # somebody else wrote it
        request = None
    found = msgspec.json.decode(text, type=dict[str, object])
    headers = {name: STARS if is_secret(name) else value for name, value in found.items() if name != SECRETS}
    if request is not None:
        headers[HTTP] = msgspec.to_builtins(redacted(request))
    return mask(headers, frozenset(fields))
