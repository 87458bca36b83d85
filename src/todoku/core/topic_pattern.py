"""Topic patterns: `*` matches one segment, `**` any number of segments, including none."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Literal

import msgspec

from todoku.core.errors import InvalidMessage
from todoku.core.limit import Limit
from todoku.core.message import USUAL_ATTEMPTS

_SEGMENT = re.compile(r"[A-Za-z0-9_:\-]+")


OnDead = Literal["park", "skip"]
"""What a dead letter does to later messages of its key, in order: they wait for a person, or go on."""


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that match `pattern` go to `destination` through `queue`, `ordered` by key or with a limit per key."""

    pattern: str
    destination: str
    queue: str
    ordered: bool = False
    on_dead: OnDead = "park"
    per_key: Limit | None = None
    max_attempts: int = USUAL_ATTEMPTS
    timeout: float | None = None
    key: str | None = None
    """The field of the payload that is the key, if the publisher gives none. A message without either is refused."""


def check_topic(topic: str) -> str:
    """Returns `topic` if it is words separated by dots, `order.created`; raises InvalidMessage."""
    if not all(_SEGMENT.fullmatch(part) for part in topic.split(".")):
        raise InvalidMessage(
            f"{topic!r} is not a topic", hint="use words of letters, digits, - _ : with dots between them"
        )
    return topic


@lru_cache(maxsize=1024)
def pattern(text: str) -> re.Pattern[str]:
    """Compiles a topic pattern; raises InvalidMessage if it could never match."""
    expression = ""
    for part in text.split("."):
        if part == "**":
            expression += r"(?:\.[^.]+)*"
        elif part == "*":
            expression += r"\.[^.]+"
        else:
            expression += re.escape("." + check_topic(part))
    return re.compile(expression)


def matches(text: str, topic: str) -> bool:
    """Whether `topic` matches the pattern `text`."""
    return pattern(text).fullmatch("." + topic) is not None


def resolve(routes: Iterable[Route], topic: str) -> list[Route]:
    """Returns the first route to each destination that matches `topic`, in the order of declaration."""
    matching: dict[str, Route] = {}
    for route in routes:
        if matches(route.pattern, topic):
            matching.setdefault(route.destination, route)
    return list(matching.values())
