"""Names that come over HTTP: of queues, URL groups, flow keys, endpoints. They go into URLs and into tables."""

from __future__ import annotations

import re
from typing import Final

from todoku.core.errors import InvalidMessage

LONGEST: Final = 200
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


def check_name(name: object, what: str) -> str:
    """A name, or InvalidMessage that says of what."""
    if not isinstance(name, str) or len(name) > LONGEST or not _NAME.fullmatch(name):
        hint = f"1 to {LONGEST} letters, digits, dots, dashes and underscores"
        raise InvalidMessage(f"{what} cannot be {_shown(name)}", hint=hint)
    return name


def _shown(name: object) -> str:
    text = repr(name)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
