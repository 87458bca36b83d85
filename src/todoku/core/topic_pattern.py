"""Topic patterns: `*` is one segment, `**` any number of them (also none)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

import msgspec

from todoku.core.errors import InvalidMessage
from todoku.core.limit import Limit
from todoku.core.message import USUAL_ATTEMPTS

_SEGMENT = re.compile(r"[A-Za-z0-9_:\-]+")


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """What matches `pattern` goes to `destination`, through `queue`; `ordered` by key, or each key with its limit."""

    pattern: str
    destination: str
    queue: str
    ordered: bool = False
    per_key: Limit | None = None
    max_attempts: int = USUAL_ATTEMPTS
    timeout: float | None = None


def check_topic(topic: str) -> str:
    """A topic is dot-separated words: `order.created`."""
    if not all(_SEGMENT.fullmatch(part) for part in topic.split(".")):
        raise InvalidMessage(
            f"{topic!r} is not a topic", hint="use words of letters, digits, - _ : with dots between them"
        )
    return topic


@lru_cache(maxsize=1024)
def pattern(text: str) -> re.Pattern[str]:
    """The compiled form of a topic pattern; refuses what could never match."""
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
    """Whether `topic` fits the pattern `text`."""
    return pattern(text).fullmatch("." + topic) is not None


def resolve(routes: Iterable[Route], topic: str) -> list[Route]:
    """Every route that takes `topic`, each destination once, in the order they were declared."""
    taken: dict[str, Route] = {}
    for route in routes:
        if matches(route.pattern, topic):
            taken.setdefault(route.destination, route)
    return list(taken.values())
