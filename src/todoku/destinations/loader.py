"""Creates destinations by name: todoku's own, and those that other packages provide by an entry point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Any, Final

from todoku.core.destination import Destination
from todoku.core.errors import InvalidSetting
from todoku.destinations.http import http
from todoku.destinations.kafka import kafka
from todoku.destinations.log import log
from todoku.destinations.nats import nats
from todoku.destinations.pubsub import pubsub
from todoku.destinations.rabbitmq import rabbitmq
from todoku.destinations.redis import redis
from todoku.destinations.sqs import sqs

GROUP: Final = "todoku.destinations"
"""The group of entry points. Each names a function that creates a destination from keyword options."""

_OWN: Final[Mapping[str, Callable[..., Destination]]] = {
    "http": http,
    "kafka": kafka,
    "log": log,
    "nats": nats,
    "pubsub": pubsub,
    "rabbitmq": rabbitmq,
    "redis": redis,
    "sqs": sqs,
}


def destination(kind: str, /, **options: Any) -> Destination:
    """Creates a destination of a kind: todoku's own, or an entry point of the group `todoku.destinations`."""
    factory = _OWN.get(kind) or _entry_point(kind)
    try:
        created = factory(**options)
    except TypeError as error:
        raise InvalidSetting(f"destination {kind!r}: {error}", hint="see the parameters of its function") from error
    if not isinstance(created, Destination):
        hint = "a destination has a name and async send(batch)"
        raise InvalidSetting(f"{kind!r} created {created!r}, which is not a destination", hint=hint)
    return created


def _entry_point(kind: str) -> Callable[..., Any]:
    found = list(entry_points(group=GROUP, name=kind))
    if not found:
        known = sorted({*_OWN, *(each.name for each in entry_points(group=GROUP))})
        raise InvalidSetting(
            f"there is no destination {kind!r}", hint=f"known: {', '.join(known)}; install its package?"
        )
    factory: Callable[..., Any] = found[0].load()
    return factory
