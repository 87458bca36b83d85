"""Signing keys: the one that signs now, and the one that will. Receivers try both. Their text is in no repr."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from todoku.core.errors import InvalidSetting

_KEY: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]{16,256}")
_HINT: Final = "TODOKU_SIGNING_KEYS is current,next: two keys of 16 to 256 characters; leave it out to have some made"


class SigningKeys(msgspec.Struct, frozen=True, kw_only=True):
    """`current` signs; `next` will, after the next rotation. `old` ones signed until then, and are nearly forgotten."""

    current: str
    next: str
    old: tuple[str, ...] = ()
    made: bool = False
    """They were made just now, by this call: whoever shows them shows them for the first time."""

    def __repr__(self) -> str:
        return "<SigningKeys>"


def signing_keys(text: object) -> SigningKeys | None:
    """Signing keys as they are written in a setting: `current,next`, or a list of both. None: nothing was said."""
    if text is None or isinstance(text, SigningKeys):
        return text
    parts = text if isinstance(text, list | tuple) else str(text).split(",")
    keys = [str(part).strip() for part in parts]
    if keys in ([], [""]):
        return None
    if len(keys) != 2 or keys[0] == keys[1] or not all(map(_KEY.fullmatch, keys)):
        raise InvalidSetting("signing_keys cannot be read", hint=_HINT)
    return SigningKeys(current=keys[0], next=keys[1])
