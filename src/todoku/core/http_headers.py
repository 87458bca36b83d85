"""Headers of HTTP requests: their names in one spelling, what may stand in them, and which are nobody's to forward."""

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

_OURS: Final = frozenset({
    "accept-encoding", "connection", "content-length", "expect", "host", "http2-settings", "keep-alive", "te",
    "trailer", "transfer-encoding", "upgrade", "via",
})  # fmt: skip
"""What describes one connection, and not the message: each connection says it for itself."""

_OUR_PREFIXES: Final = ("proxy-", "upstash-", "webhook-")
"""Proxies' own, and what a receiver trusts because only we say it: signatures, ids, counts."""

_SECRET_WORDS: Final = frozenset({
    "apikey", "authorization", "cookie", "cookie2", "credential", "credentials", "jwt", "passwd", "password", "secret",
    "token",
})  # fmt: skip
"""The last word of a header's name by which it is a secret: `Authorization`, `Set-Cookie`, `X-Vault-Token`."""

_NO_SECRETS: Final = frozenset({"idempotency-key", "x-idempotency-key"})
"""They end as secrets do, and are names of events: dead letters are told apart by them."""


@lru_cache(maxsize=4096)
def is_secret(name: str) -> bool:
    """Whether a header of this name holds a secret: it is forwarded, never shown, and sealed by a master key.

    This is the only list of them. A header whose name ends in -key is a secret too. Neither case nor underscores
    matter, because they do not to many who read headers.
    """
    plain = name.strip().lower().replace("_", "-")
    before, dash, last = plain.rpartition("-")
    return plain not in _NO_SECRETS and (last in _SECRET_WORDS or (last == "key" and bool(dash and before)))


def canonical(name: str) -> str:
    """A checked name in the spelling that Go gives it: `test-header` is `Test-Header`; or InvalidMessage naming it."""
    if not _TOKEN.fullmatch(name) or len(name) > MAX_NAME:
        hint = f"letters, digits and !#$%&'*+-.^_`|~, at most {MAX_NAME}"
        raise InvalidMessage(f"a header cannot be called {name[:64]!r}", hint=hint)
    return "-".join(part[:1].upper() + part[1:].lower() for part in name.split("-"))


def checked_value(name: str, value: str) -> str:
    """The value without the spaces around it, or InvalidMessage: CR, LF, NUL and other controls are not for it."""
    value = value.strip(_SPACE)
    if found := _FORBIDDEN.search(value):
        raise InvalidMessage(f"the header {name} holds {found[0]!r}", hint="no line breaks or control characters")
    if len(value) > MAX_VALUE:
        raise InvalidMessage(f"the header {name} has {len(value)} characters", hint=f"{MAX_VALUE} are allowed")
    return value


def checked(headers: Mapping[str, str] | Iterable[tuple[str, str]]) -> dict[str, str]:
    """Headers with canonical names and checked values. A name that comes again has its values joined by commas."""
    found: dict[str, str] = {}
    for given, value in headers.items() if isinstance(headers, Mapping) else headers:
        name = canonical(given)
        clean = checked_value(name, value)
        found[name] = f"{found[name]}, {clean}" if name in found else clean
    if len(found) > MAX_HEADERS:
        raise InvalidMessage(f"{len(found)} headers are too many", hint=f"{MAX_HEADERS} are allowed")
    return found


def forwardable(name: str) -> bool:
    """Whether a sender may have this header forwarded to a receiver. Not so: the connection's own, and ours."""
    name = name.lower()
    return name not in _OURS and not name.startswith(_OUR_PREFIXES)


def decoded(raw: bytes) -> str:
    """A value as it came over the wire: UTF-8, as we send it, or else one character a byte. Nothing is lost."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("latin-1")
