"""The routes of one publish that a person makes: those of the App, or straight to a destination they name."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from todoku.core.topic_pattern import Route
from todoku.engine.registry import Registry


def directed(
    routes: Sequence[Route], registry: Registry, *, to: str | None, max_attempts: int | None, usual: int
) -> list[Route]:
    """The App's routes, or one to `to`: through the queue and in the order the App knows it by, if it knows it."""
    if to is not None:
        target = registry.get(to)
        plain = Route(pattern="**", destination=to, queue=target.queue if target else to, max_attempts=usual)
        known = next((route for route in routes if route.destination == to), plain)
        routes = [msgspec.structs.replace(known, pattern="**")]
    if max_attempts is not None:
        return [msgspec.structs.replace(route, max_attempts=max_attempts) for route in routes]
    return list(routes)
