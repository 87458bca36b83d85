"""Detects empty secrets. A secret left empty by mistake (`STRIPE_SECRET=`) must not make every signature valid."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_PREFIX: Final = "whsec_"
_QUOTES: Final = re.compile(r"[\"'`]+")


@lru_cache(maxsize=256)
def is_blank(secret: str) -> bool:
    """Whether a secret has no visible character apart from quotes and the prefix `whsec_`.

    `docker run --env-file` passes on the quotes of `SECRET=""`, and a file that an editor saved empty may contain an
    invisible byte order mark.
    """
    visible = "".join(letter for letter in secret if letter.isprintable() and not letter.isspace())
    return not _QUOTES.sub("", visible).removeprefix(_PREFIX)


def is_blank_key(key: bytes) -> bool:
    """Whether a key signs like the empty key: HMAC pads short keys with zeros, so a key of zeros counts as empty."""
    return not key.strip(b"\0 \t\r\n")
