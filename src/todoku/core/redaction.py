"""Redaction: what a publisher does not want to be seen is shown as its digest, wherever a request is read.

Where there is a master key, the same headers are not even stored in plain: they are parted from the request and sealed.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

import msgspec

from todoku.core.http_headers import is_secret
from todoku.core.http_request import Callback, HttpRequest
from todoku.core.sealed import kept_in

_KIND: Final = "Content-Type"
_FIELD: Final = re.compile(r"body|header|header\[([^\[\]\s]{1,256})\]", re.IGNORECASE)


REDACTED: Final = "REDACTED"
"""What every value begins with that is shown in place of another."""


def hidden(value: bytes) -> str:
    """What is shown instead: two that are equal can be told to be equal, and nothing else."""
    return f"{REDACTED}:{hashlib.sha256(value).hexdigest()}"


def redacted(request: HttpRequest) -> HttpRequest:
    """The request as people may see it. Headers that are secrets by their name are never seen."""
    return msgspec.structs.replace(
        request,
        headers=redacted_headers(request.headers, request.redact),
        callback=_callback(request.callback, request.redact),
        failure_callback=_callback(request.failure_callback, request.redact),
    )


def parted(headers: dict[str, str], redact: tuple[str, ...]) -> tuple[dict[str, str], dict[str, str]]:
    """Headers with nothing in those that nobody may see, and what was in those. The type of the body is no secret."""
    unseen = _unseen(headers, redact)
    secrets = {name: value for name, value in headers.items() if name in unseen and value and name != _KIND}
    return headers | dict.fromkeys(secrets, ""), secrets


def bared(request: HttpRequest) -> HttpRequest:
    """The request without what nobody may see in its headers."""
    return msgspec.structs.replace(
        request,
        headers=parted(request.headers, request.redact)[0],
        callback=_bared(request.callback, request.redact),
        failure_callback=_bared(request.failure_callback, request.redact),
    )


def _bared(callback: Callback | None, redact: tuple[str, ...]) -> Callback | None:
    if callback is None:
        return None
    return msgspec.structs.replace(callback, headers=parted(callback.headers, redact)[0])


def _callback(callback: Callback | None, redact: tuple[str, ...]) -> Callback | None:
    if callback is None or not callback.headers:
        return callback
    return msgspec.structs.replace(callback, headers=redacted_headers(callback.headers, redact), sealed=None)


def redacted_headers(headers: dict[str, str], redact: tuple[str, ...] = ()) -> dict[str, str]:
    """Headers as people may see them."""
    unseen = _unseen(headers, redact)
    return {name: _digest(value) if name in unseen else value for name, value in headers.items()}


def _digest(value: str) -> str:
    """Of what is sealed there is none here."""
    return hidden(value.encode()) if value and kept_in(value) is None else REDACTED


def _unseen(headers: dict[str, str], redact: tuple[str, ...]) -> set[str]:
    names = {found[1].lower() for field in redact if (found := _FIELD.fullmatch(field)) and found[1]}
    everything = any(field.lower() == "header" for field in redact)
    return {name for name in headers if everything or is_secret(name) or name.lower() in names}


def redacted_answer(headers: dict[str, str], redact: tuple[str, ...] = ()) -> dict[str, str]:
    """Headers of an answer as people may see them. `header`, for all, means those of the request."""
    return redacted_headers(headers, tuple(field for field in redact if field.lower() != "header"))


def is_redacted(value: str) -> bool:
    """Whether this is shown in place of a value, and not the value itself."""
    return value == REDACTED or value.startswith(f"{REDACTED}:")


def redacted_body(request: HttpRequest, body: bytes) -> bytes:
    """The body as people may see it."""
    return hidden(body).encode() if redacts_body(request) else body


def redacts_body(request: HttpRequest) -> bool:
    """Whether its publisher wants nobody to see the body."""
    return any(field.lower() == "body" for field in request.redact)
