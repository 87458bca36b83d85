"""The scopes of API tokens. `admin` includes all others, `operate` includes `read`, `publish` includes no other."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import Final, Literal, get_args

from todoku.core.errors import InvalidAct, InvalidSetting
from todoku.core.signature import SigningKeys

# ------------------------------------------------------------
# The public credentials that the official clients use in development mode.
#
# Only a server that listens on a loopback address accepts them.

TOKEN: Final = "eyJVc2VySUQiOiJkZWZhdWx0VXNlciIsIlBhc3N3b3JkIjoiZGVmYXVsdFBhc3N3b3JkIn0="  # noqa: S105 - public
KEYS: Final = SigningKeys(current="sig_7kYjw48mhY7kAjqNGcy6cr29RJ6r", next="sig_5ZB6DVzB1wjE8S6rZ7eenA8Pdnhs")
PORT: Final = 8080
"""The port at which those clients expect a development server."""


def is_public(token: Secret | None, keys: SigningKeys | None) -> bool:
    """Whether the token or one of the keys is a public development credential."""
    return token == Secret(TOKEN) or (keys is not None and bool({keys.current, keys.next} & {KEYS.current, KEYS.next}))


Scope = Literal["publish", "read", "operate", "admin"]

INSIDE: Final[dict[str, frozenset[str]]] = {
    "publish": frozenset({"publish"}),
    "read": frozenset({"read"}),
    "operate": frozenset({"operate", "read"}),
    "admin": frozenset(get_args(Scope)),
}
"""The scopes that each scope includes, itself among them."""

SHORTEST: Final = 16
_LONGEST: Final = 512


def allows(scopes: Iterable[str], wanted: Scope) -> bool:
    """Whether a token with these scopes has the scope `wanted`."""
    return any(wanted in INSIDE.get(scope, ()) for scope in scopes)


def scopes(given: Iterable[object]) -> tuple[Scope, ...]:
    """Returns the scopes without repetition, in canonical order; raises InvalidAct if there are none, or unknown."""
    named = tuple(given)
    if unknown := [scope for scope in named if scope not in INSIDE]:
        raise InvalidAct(f"scope cannot be {unknown[0]!r}", hint="publish, read, operate or admin")
    if not named:
        raise InvalidAct("a token needs a scope", hint="--scope publish, read, operate or admin")
    return known_scopes(named)


def known_scopes(given: Iterable[object]) -> tuple[Scope, ...]:
    """Returns the words that are scopes, without repetition, in canonical order."""
    named = frozenset(given)
    return tuple(scope for scope in get_args(Scope) if scope in named)


class Secret:
    """A text that no repr and no log shows, and that can only be compared: `==` takes the same time for any text."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash(self._text)

    def digest(self) -> str:
        """Returns the SHA-256 of the text, in hexadecimal digits."""
        return hashlib.sha256(self._text.encode()).hexdigest()

    def __repr__(self) -> str:
        return "<Secret>"


def token(text: object) -> Secret | None:
    """Parses the setting `token`; raises InvalidSetting. None: it is not set."""
    if text is None or isinstance(text, Secret):
        return text
    found = str(text).strip()
    if not SHORTEST <= len(found) <= _LONGEST or not found.isascii() or not found.isprintable() or " " in found:
        hint = f"TODOKU_TOKEN needs {SHORTEST} to {_LONGEST} visible characters; create one with `openssl rand -hex 32`"
        raise InvalidSetting("token cannot be read", hint=hint)
    return Secret(found)
