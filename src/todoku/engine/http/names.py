"""Names that callers give over HTTP to queues, URL groups, flow keys and endpoints; used in URLs and tables."""

from __future__ import annotations

import re
from typing import Final

from todoku.core.errors import InvalidMessage

LONGEST: Final = 200
_NAME: Final = re.compile(r"[A-Za-z0-9._-]+")


def check_name(name: object, what: str) -> str:
    """Returns the name. InvalidMessage: it is not valid; `what` names the thing in the message."""
    if not isinstance(name, str) or len(name) > LONGEST or not _NAME.fullmatch(name):
        hint = f"use 1 to {LONGEST} letters, digits, dots, dashes and underscores"
        raise InvalidMessage(f"{what} cannot be {_abbreviate(name)}", hint=hint)
    return name


def _abbreviate(name: object) -> str:
    text = repr(name)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
