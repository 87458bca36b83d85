"""Signing keys: the current one, and the next one. Receivers try both. No repr contains them."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from todoku.core.errors import InvalidSetting

_KEY: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]{16,256}")
_HINT: Final = "TODOKU_SIGNING_KEYS is current,next: two keys of 16 to 256 characters; without it todoku creates them"


class SigningKeys(msgspec.Struct, frozen=True, kw_only=True):
    """`current` signs now, `next` signs after the next rotation. `old` keys signed before the last rotation."""

    current: str
    next: str
    old: tuple[str, ...] = ()
    made: bool = False
    """Whether this call created them, so that they have not been shown before."""

    def __repr__(self) -> str:
        return "<SigningKeys>"


def signing_keys(text: object) -> SigningKeys | None:
    """Parses the setting: `current,next`, or a list of both; raises InvalidSetting. None: it is not set."""
    if text is None or isinstance(text, SigningKeys):
        return text
    parts = text if isinstance(text, list | tuple) else str(text).split(",")
    keys = [str(part).strip() for part in parts]
    if keys in ([], [""]):
        return None
    if len(keys) != 2 or keys[0] == keys[1] or not all(map(_KEY.fullmatch, keys)):
        raise InvalidSetting("signing_keys cannot be read", hint=_HINT)
    return SigningKeys(current=keys[0], next=keys[1])
