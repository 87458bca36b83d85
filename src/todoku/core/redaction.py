"""Redaction: values that the publisher wants hidden are shown as digests wherever a request is displayed.

With a master key, the same headers are not stored as plain text either: they are removed from the request and sealed.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

import msgspec

from todoku.core.http_headers import is_secret
from todoku.core.http_request import Callback, HttpRequest
from todoku.core.sealed import parse_master_sealed

_CONTENT_TYPE: Final = "Content-Type"
_FIELD: Final = re.compile(r"body|header|header\[([^\[\]\s]{1,256})\]", re.IGNORECASE)


REDACTED: Final = "REDACTED"
"""Prefix of every redacted value."""


def redact_value(value: bytes) -> str:
    """Returns the text to show instead of a value. It reveals only whether two values are equal."""
    return f"{REDACTED}:{hashlib.sha256(value).hexdigest()}"


def redact_request(request: HttpRequest) -> HttpRequest:
    """Returns the request as it may be displayed. Headers that are secret by their names are always redacted."""
    return msgspec.structs.replace(
        request,
        headers=redact_headers(request.headers, request.redact),
        callback=_redact_callback(request.callback, request.redact),
        failure_callback=_redact_callback(request.failure_callback, request.redact),
    )


def split_secret_headers(headers: dict[str, str], redact: tuple[str, ...]) -> tuple[dict[str, str], dict[str, str]]:
    """Splits headers into those to store, with empty values for secret ones, and the values of the secret ones.

    The content type is never secret.
    """
    names = _redacted_names(headers, redact) - {_CONTENT_TYPE}
    secrets = {name: value for name, value in headers.items() if name in names and value}
    return headers | dict.fromkeys(secrets, ""), secrets


def strip_secret_headers(request: HttpRequest) -> HttpRequest:
    """Returns the request with empty values for the secret headers, also in its callbacks."""
    return msgspec.structs.replace(
        request,
        headers=split_secret_headers(request.headers, request.redact)[0],
        callback=_strip_callback(request.callback, request.redact),
        failure_callback=_strip_callback(request.failure_callback, request.redact),
    )


def _strip_callback(callback: Callback | None, redact: tuple[str, ...]) -> Callback | None:
    if callback is None:
        return None
    return msgspec.structs.replace(callback, headers=split_secret_headers(callback.headers, redact)[0])


def _redact_callback(callback: Callback | None, redact: tuple[str, ...]) -> Callback | None:
    if callback is None or not callback.headers:
        return callback
    return msgspec.structs.replace(callback, headers=redact_headers(callback.headers, redact), sealed=None)


def redact_headers(headers: dict[str, str], redact: tuple[str, ...] = ()) -> dict[str, str]:
    """Returns headers as they may be displayed."""
    redacted_names = _redacted_names(headers, redact)
    return {name: _redact_value(value) if name in redacted_names else value for name, value in headers.items()}


def _redact_value(value: str) -> str:
    """Returns the text to show instead of a header. A sealed or empty value has no digest."""
    return redact_value(value.encode()) if value and parse_master_sealed(value) is None else REDACTED


def _redacted_names(headers: dict[str, str], redact: tuple[str, ...]) -> set[str]:
    names = {found[1].lower() for field in redact if (found := _FIELD.fullmatch(field)) and found[1]}
    everything = any(field.lower() == "header" for field in redact)
    return {name for name in headers if everything or is_secret(name) or name.lower() in names}


def redact_response_headers(headers: dict[str, str], redact: tuple[str, ...] = ()) -> dict[str, str]:
    """Returns headers of a response as they may be displayed. The field `header` means only those of the request."""
    return redact_headers(headers, tuple(field for field in redact if field.lower() != "header"))


def is_redacted(value: str) -> bool:
    """Whether this text was shown instead of a value."""
    return value == REDACTED or value.startswith(f"{REDACTED}:")


def redact_body(request: HttpRequest, body: bytes) -> bytes:
    """Returns the body as it may be displayed."""
    return redact_value(body).encode() if redacts_body(request) else body


def redacts_body(request: HttpRequest) -> bool:
    """Whether the publisher wants the body redacted."""
    return any(field.lower() == "body" for field in request.redact)
