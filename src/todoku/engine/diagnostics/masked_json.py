"""JSON with sensitive values masked, for display."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from todoku.core.errors import InvalidMessage
from todoku.core.http_request import HTTP, SECRETS, is_secret, request_of
from todoku.core.redaction import STARS, mask, redact_request
from todoku.core.sealed import parse_sealed_result


def masked(text: str | None, fields: Iterable[str]) -> object:
    """Decodes JSON text and replaces values of sensitive fields by stars; an encrypted result is only described."""
    if text is not None and (raw := parse_sealed_result(text)) is not None:
        return f"encrypted ({len(raw)} bytes)"
    return None if text is None else mask(msgspec.json.decode(text), frozenset(fields))


def masked_headers(text: str | None, fields: Iterable[str]) -> object:
    """Decodes the headers of a message with sensitive values replaced by stars, and its request redacted."""
    if text is None:
        return None
    try:
        request = request_of(text)
    except InvalidMessage:  # not written by todoku
        request = None
    found = msgspec.json.decode(text, type=dict[str, object])
    headers = {name: STARS if is_secret(name) else value for name, value in found.items() if name != SECRETS}
    if request is not None:
        headers[HTTP] = msgspec.to_builtins(redact_request(request))
    return mask(headers, frozenset(fields))
