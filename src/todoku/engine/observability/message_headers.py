"""The headers of a message, for logging and tracing, and those of the attempt that runs now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

import msgspec

from todoku.core.http_request import CORRELATION

_LONGEST_ID: Final = 128

_current: Final[ContextVar[str | None]] = ContextVar("todoku_attempt_headers", default=None)
"""The stored headers of the message whose handler runs in this task or thread."""


def decode_headers(headers: str | None) -> dict[str, str]:
    """Decodes headers, with names in lower case as in HTTP; headers that cannot be read become none."""
    if headers is None:
        return {}
    try:
        found = msgspec.json.decode(headers, type=dict[str, str])
    except (msgspec.MsgspecError, RecursionError):  # not written by todoku
        return {}
    return {name.lower(): value for name, value in found.items()}


def correlation_id(decoded: Mapping[str, str]) -> str | None:
    """Returns the correlation id of decoded headers, at most 128 characters of it."""
    found = next((value for name in CORRELATION if (value := decoded.get(name))), None)
    return None if found is None else found[:_LONGEST_ID]


def set_current_headers(headers: str | None) -> None:
    """Makes these stored headers those of the attempt that runs in this task or thread; None: none runs any more."""
    _current.set(headers)


@contextmanager
def current_headers(headers: str | None) -> Iterator[None]:
    """As `set_current_headers`, for a block that may be in another attempt."""
    token = _current.set(headers)
    try:
        yield
    finally:
        _current.reset(token)


def with_correlation(headers: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Returns `headers` with the correlation id of the attempt whose handler calls this, unless they have one.

    Outside of a handler this is one look-up.
    """
    current = _current.get()
    if current is None or (headers and any(name.lower() in CORRELATION for name in headers)):
        return headers
    inherited = correlation_id(decode_headers(current))
    return headers if inherited is None else {CORRELATION[0]: inherited, **(headers or {})}
