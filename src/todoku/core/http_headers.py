"""Headers of HTTP requests: their canonical names, valid values, which hold secrets, and which may be forwarded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

from todoku.core.errors import InvalidMessage

MAX_HEADERS: Final = 100
MAX_NAME: Final = 256
MAX_VALUE: Final = 16 << 10

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_FORBIDDEN: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
_SPACE: Final = " \t"

_CONNECTION_HEADERS: Final = frozenset({
    "accept-encoding", "connection", "content-length", "expect", "host", "http2-settings", "keep-alive", "te",
    "trailer", "transfer-encoding", "upgrade", "via",
})  # fmt: skip
"""Headers that describe one connection and not the message; the HTTP client sets them."""

_RESERVED_PREFIXES: Final = ("proxy-", "upstash-", "webhook-")
"""Headers of proxies, and those that receivers trust because only todoku sets them: signatures, ids, counts."""

_SECRET_WORDS: Final = frozenset({
    "apikey", "authorization", "cookie", "cookie2", "credential", "credentials", "jwt", "passwd", "password", "secret",
    "token",
})  # fmt: skip
"""A header is a secret if this is the last word of its name: `Authorization`, `Set-Cookie`, `X-Vault-Token`."""

_NOT_SECRET: Final = frozenset({"idempotency-key", "x-idempotency-key"})
"""Headers that end in -key and are no secrets: they identify an event, and so help to tell dead letters apart."""


@lru_cache(maxsize=4096)
def is_secret(name: str) -> bool:
    """Whether the value of this header is a secret: it is forwarded, never shown, and encrypted with a master key.

    This is the only place that decides it. A header whose name ends in -key is a secret, too. Case is ignored, and an
    underscore counts as a dash, as for many servers.
    """
    plain = name.strip().lower().replace("_", "-")
    before, dash, last = plain.rpartition("-")
    return plain not in _NOT_SECRET and (last in _SECRET_WORDS or (last == "key" and bool(dash and before)))


def canonical(name: str) -> str:
    """Returns the name of a header as Go spells it, `Test-Header` for `test-header`; raises InvalidMessage."""
    if not _TOKEN.fullmatch(name) or len(name) > MAX_NAME:
        hint = f"letters, digits and !#$%&'*+-.^_`|~, at most {MAX_NAME}"
        raise InvalidMessage(f"a header cannot be called {name[:64]!r}", hint=hint)
    return "-".join(part[:1].upper() + part[1:].lower() for part in name.split("-"))


def check_header_value(name: str, value: str) -> str:
    """Returns the value without surrounding spaces; raises InvalidMessage if it contains control characters."""
    value = value.strip(_SPACE)
    if found := _FORBIDDEN.search(value):
        raise InvalidMessage(
            f"the header {name} contains {found[0]!r}", hint="remove line breaks and control characters"
        )
    if len(value) > MAX_VALUE:
        raise InvalidMessage(f"the header {name} has {len(value)} characters", hint=f"{MAX_VALUE} are allowed")
    return value


def check_headers(headers: Mapping[str, str] | Iterable[tuple[str, str]]) -> dict[str, str]:
    """Returns headers with canonical names and checked values. The values of a repeated name are joined by commas."""
    found: dict[str, str] = {}
    for given, value in headers.items() if isinstance(headers, Mapping) else headers:
        name = canonical(given)
        clean = check_header_value(name, value)
        found[name] = f"{found[name]}, {clean}" if name in found else clean
    if len(found) > MAX_HEADERS:
        raise InvalidMessage(f"{len(found)} headers are too many", hint=f"{MAX_HEADERS} are allowed")
    return found


def is_forwardable(name: str) -> bool:
    """Whether a publisher may set this header of the request to the receiver."""
    name = name.lower()
    return name not in _CONNECTION_HEADERS and not name.startswith(_RESERVED_PREFIXES)


def decode_header_value(raw: bytes) -> str:
    """Decodes a received value as UTF-8, which todoku sends, or as Latin-1, which loses no byte."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")
