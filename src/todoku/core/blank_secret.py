"""Secrets that are empty. A user who leaves one out by mistake (`STRIPE_SECRET=`) must not open a door by it."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_PREFIX: Final = "whsec_"
_QUOTES: Final = re.compile(r"[\"'`]+")


@lru_cache(maxsize=256)
def is_blank(secret: str) -> bool:
    """Whether there is nothing in a secret: no visible character, but for quotes and the prefix `whsec_`.

    `docker run --env-file` keeps the quotes of `SECRET=""`. A file that an editor saved empty may hold a byte order
    mark, which editors do not show.
    """
    visible = "".join(letter for letter in secret if letter.isprintable() and not letter.isspace())
    return not _QUOTES.sub("", visible).removeprefix(_PREFIX)


def is_blank_key(key: bytes) -> bool:
    """Whether a key is as good as none. HMAC fills a short key up with zeros, so a key of zeros is the empty one."""
    return not key.strip(b"\0 \t\r\n")
