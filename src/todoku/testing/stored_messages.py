"""What was enqueued and published, as the database has it: whatever became of it since."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from todoku.app import App
from todoku.core.errors import InvalidMessage
from todoku.engine.jobs.job import Job
from todoku.engine.outbox import Outbox
from todoku.engine.publish import encode
from todoku.store.deliveries import Delivery
from todoku.store.filter import Filter
from todoku.store.store import Store

_PAGE: Final = 500
_LARGEST: Final = 1 << 30


class Enqueued(msgspec.Struct, frozen=True, kw_only=True):
    """One stored call of a job. `arguments` are as stored, as JSON values, with the defaults of what was not given.

    Of one that succeeded the history keeps less: its priority is 0, and `run_at` is when it was settled.
    """

    id: UUID
    job: str
    arguments: dict[str, Any]
    key: str | None
    queue: str
    priority: int
    run_at: datetime
    status: str


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """One stored message, and where it goes. `payload` is as stored, as a JSON value."""

    id: UUID
    topic: str
    payload: Any
    key: str | None
    destinations: tuple[str, ...]


def enqueued(job: Job[..., Any]) -> list[Enqueued]:
    """Every committed call of the job, oldest first, whether it ran already or not."""
    found = _deliveries(job.outbox.store, Filter(destination=job.name))
    payloads = _payloads(job.outbox, found)
    return [
        Enqueued(
            id=each.message_id,
            job=job.name,
            arguments=_arguments(job, payloads[each.message_id]),
            key=each.key,
            queue=each.queue,
            priority=each.priority,
            run_at=each.next_run_at,
            status=each.status,
        )
        for each in found
        if each.message_id is not None and isinstance(payloads.get(each.message_id), dict)
    ]


def published(box: App, event: str | type[Any]) -> list[Published]:
    """Every committed message of the topic, or of the event class, oldest first."""
    topic = event if isinstance(event, str) else box.events.of(event).topic
    found = _deliveries(box.store, Filter(topic=topic))
    payloads = _payloads(box.outbox, found)
    ways: dict[UUID, list[Delivery]] = {}
    for each in found:
        if each.message_id is not None:
            ways.setdefault(each.message_id, []).append(each)
    return [
        Published(
            id=id,
            topic=topic,
            payload=payloads.get(id),
            key=legs[0].key,
            destinations=tuple(leg.destination for leg in legs),
        )
        for id, legs in ways.items()
    ]


def parameters(job: Job[..., Any]) -> dict[str, inspect.Parameter]:
    """What the job's function takes, without the context."""
    found = list(inspect.signature(job.handler.function).parameters.values())
    return {each.name: each for each in (found[1:] if job.handler.takes_context else found)}


def plain(value: object) -> Any:
    """A value as it looks when it comes back from the database; InvalidMessage if it has no JSON."""
    return json.loads(encode(value))


def _arguments(job: Job[..., Any], stored: dict[str, Any]) -> dict[str, Any]:
    """In the order of the function, defaults included, then what it takes by other names."""
    known: dict[str, Any] = {}
    for name, parameter in parameters(job).items():
        if name in stored:
            known[name] = stored[name]
        elif parameter.default is not parameter.empty:
            with suppress(InvalidMessage):  # a default may be anything: it is never stored
                known[name] = plain(parameter.default)
    return {**known, **stored}


def _deliveries(store: Store, which: Filter) -> list[Delivery]:
    unfinished = _pages(store, which)
    done = _pages(store, msgspec.structs.replace(which, status="succeeded"))
    return sorted((*unfinished, *done), key=lambda each: each.id)


def _pages(store: Store, which: Filter) -> Iterator[Delivery]:
    cursor: str | None = None
    while True:
        page = store.deliveries.find(which, cursor=cursor, limit=_PAGE)
        yield from page.items
        if (cursor := page.next) is None:
            return


def _payloads(outbox: Outbox, found: list[Delivery]) -> dict[UUID, Any]:
    ids = [each.message_id for each in found if each.message_id is not None]
    known: dict[UUID, Any] = {}
    for start in range(0, len(ids), _PAGE):
        for id, inside in outbox.store.messages.previews(ids[start : start + _PAGE], largest=_LARGEST).items():
            text = inside.payload or _opened(outbox, id)
            if text is not None:
                known[id] = json.loads(text)
    return known


def _opened(outbox: Outbox, id: UUID) -> str | None:
    """What is no plain JSON: sealed, which the keys of this process open, or bytes."""
    story = outbox.store.messages.story(id)
    return None if story is None else outbox.opener.text(story.message)
