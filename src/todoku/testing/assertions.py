"""Assertions about enqueued calls and published messages. A failure shows what was stored instead, by field."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from todoku.app import App
from todoku.core.errors import InvalidMessage
from todoku.core.identity import digest
from todoku.engine.jobs.job import Job
from todoku.engine.outbox import Outbox
from todoku.engine.publish import encode
from todoku.store.deliveries import Delivery, Filter
from todoku.store.store import Store

# ------------------------------------------------------------
# Enqueued calls and published messages as the database has them, whatever their status.

_PAGE: Final = 500
_MAX_BYTES: Final = 1 << 30


class Enqueued(msgspec.Struct, frozen=True, kw_only=True):
    """One stored call of a job. `arguments` are JSON values as stored, with defaults for those not given.

    The history of a succeeded call has less: its priority is 0, and `run_at` is when it was settled.
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
    """One stored message and its destinations. `payload` is a JSON value as stored."""

    id: UUID
    topic: str
    payload: Any
    key: str | None
    destinations: tuple[str, ...]


def enqueued(job: Job[..., Any]) -> list[Enqueued]:
    """Returns every committed call of the job, oldest first, whether or not it has run."""
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
    """Returns every committed message of the topic or event class, oldest first."""
    topic = event if isinstance(event, str) else box.events.of(event).topic
    found = _deliveries(box.store, Filter(topic=topic))
    payloads = _payloads(box.outbox, found)
    by_message: dict[UUID, list[Delivery]] = {}
    for each in found:
        if each.message_id is not None:
            by_message.setdefault(each.message_id, []).append(each)
    return [
        Published(
            id=id,
            topic=topic,
            payload=payloads.get(id),
            key=legs[0].key,
            destinations=tuple(leg.destination for leg in legs),
        )
        for id, legs in by_message.items()
    ]


def parameters(job: Job[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of the job's function, without the context."""
    found = list(inspect.signature(job.handler.function).parameters.values())
    return {each.name: each for each in (found[1:] if job.handler.takes_context else found)}


def stored_form(value: object) -> Any:
    """A value as it comes back from the database. InvalidMessage: it cannot be encoded as JSON."""
    return json.loads(encode(value))


def _arguments(job: Job[..., Any], stored: dict[str, Any]) -> dict[str, Any]:
    """The arguments in the order of the function, with defaults, then those it takes by **kwargs."""
    known: dict[str, Any] = {}
    for name, parameter in parameters(job).items():
        if name in stored:
            known[name] = stored[name]
        elif parameter.default is not parameter.empty:
            with suppress(InvalidMessage):  # a default need not be JSON: it is never stored
                known[name] = stored_form(parameter.default)
    return {**known, **stored}


def _deliveries(store: Store, filters: Filter) -> list[Delivery]:
    unfinished = _pages(store, filters)
    done = _pages(store, msgspec.structs.replace(filters, status="succeeded"))
    return sorted((*unfinished, *done), key=lambda each: each.id)


def _pages(store: Store, filters: Filter) -> Iterator[Delivery]:
    cursor: str | None = None
    while True:
        page = store.deliveries.find(filters, cursor=cursor, limit=_PAGE)
        yield from page.items
        if (cursor := page.next) is None:
            return


def _payloads(outbox: Outbox, found: list[Delivery]) -> dict[UUID, Any]:
    ids = [each.message_id for each in found if each.message_id is not None]
    known: dict[UUID, Any] = {}
    for start in range(0, len(ids), _PAGE):
        for id, preview in outbox.store.messages.previews(ids[start : start + _PAGE], largest=_MAX_BYTES).items():
            text = preview.payload or _decrypted_text(outbox, id)
            if text is not None:
                known[id] = json.loads(text)
    return known


def _decrypted_text(outbox: Outbox, id: UUID) -> str | None:
    """The text of a payload that is not plain JSON: encrypted, if this process has the key; None for bytes."""
    story = outbox.store.messages.story(id)
    return None if story is None else outbox.opener.text(story.message)


_MAX_LISTED: Final = 20
_MAX_WIDTH: Final = 100
_Described = tuple[str, dict[str, Any]]


def assert_enqueued(job: Job[..., Any], /, **arguments: Any) -> Enqueued:
    """Asserts that a call of the job with these arguments was committed. Other arguments may have any value.

    Returns the newest such call.
    """
    __tracebackhide__ = True
    expected, stored = _expected_arguments(job, arguments), enqueued(job)
    for each in reversed(stored):
        if not list(_differences(expected, each.arguments)):
            return each
    raise AssertionError(
        _failure_text(
            f"{_call(job.name, expected)} was not enqueued",
            expected,
            [(_describe_call(each), each.arguments) for each in stored],
            others=_others(job),
        )
    )


def assert_not_enqueued(job: Job[..., Any], /, **arguments: Any) -> None:
    """Asserts that no call of the job with these arguments was committed; without arguments: no call at all."""
    __tracebackhide__ = True
    expected = _expected_arguments(job, arguments)
    found = [_describe_call(each) for each in enqueued(job) if not list(_differences(expected, each.arguments))]
    if found:
        raise AssertionError("\n".join([f"{_call(job.name, expected)} was enqueued", *_list_lines(found)]))


def assert_published(box: App, event: Any, /, **fields: Any) -> Published:
    """Asserts that a message was committed: of a topic or event class with these fields, or equal to an event.

    Returns the newest such message.
    """
    __tracebackhide__ = True
    what, expected = _expected_event(box, event, fields)
    stored = published(box, what)
    for each in reversed(stored):
        if not list(_differences(expected, _fields(each))):
            return each
    described = [(_describe_message(each), _fields(each)) for each in stored]
    headline = f"{_call(_name(what), expected)} was not published"
    raise AssertionError(_failure_text(headline, expected, described, others=""))


def assert_not_published(box: App, event: Any, /, **fields: Any) -> None:
    """Asserts that no such message was committed."""
    __tracebackhide__ = True
    what, expected = _expected_event(box, event, fields)
    stored = published(box, what)
    found = [_describe_message(each) for each in stored if not list(_differences(expected, _fields(each)))]
    if found:
        raise AssertionError("\n".join([f"{_call(_name(what), expected)} was published", *_list_lines(found)]))


# ---------------------------------------------------------------------------------------- what is expected


def _expected_arguments(job: Job[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as they would be stored. InvalidMessage: the job does not take one of them."""
    known = parameters(job)
    if not any(each.kind is each.VAR_KEYWORD for each in known.values()) and (unknown := given.keys() - known.keys()):
        raise InvalidMessage(
            f"{job.name} has no argument {', '.join(sorted(unknown))}", hint=f"it takes {', '.join(known) or 'none'}"
        )
    return {name: stored_form(value) for name, value in given.items()}


def _expected_event(box: App, event: Any, fields: Mapping[str, Any]) -> tuple[str | type[Any], dict[str, Any]]:
    if isinstance(event, str):
        return event, {name: stored_form(value) for name, value in fields.items()}
    if not isinstance(event, type):
        return type(event), {**stored_form(event), **{name: stored_form(value) for name, value in fields.items()}}
    known = box.events.of(event).fields
    if unknown := fields.keys() - set(known):
        raise InvalidMessage(
            f"{event.__name__} has no field {', '.join(sorted(unknown))}", hint=f"its fields are {', '.join(known)}"
        )
    return event, {name: stored_form(value) for name, value in fields.items()}


def _fields(each: Published) -> dict[str, Any]:
    return each.payload if isinstance(each.payload, dict) else {}


# --------------------------------------------------------------------------------------------- what differs


def _differences(expected: Mapping[str, Any], found: Mapping[str, Any], *, whole: bool = False) -> Iterator[str]:
    """Describes each field that is not as expected. `whole`: extra fields differ too, as inside an argument."""
    for name, value in expected.items():
        if name not in found:
            yield f"{name}: missing instead of {_json(value)}"
            continue
        other = found[name]
        if isinstance(value, dict) and isinstance(other, dict):
            yield from (f"{name}.{each}" for each in _differences(value, other, whole=True))
        elif digest(value) != digest(other):
            yield f"{name}: {_json(other)} instead of {_json(value)}"
    if whole:
        yield from (f"{name}: {_json(found[name])} instead of nothing" for name in found if name not in expected)


def _failure_text(headline: str, expected: Mapping[str, Any], stored: Sequence[_Described], others: str) -> str:
    if not stored:
        return f"{headline}: there is no committed one{others} (uncommitted ones are not visible)"
    closest, values = min(reversed(stored), key=lambda each: len(list(_differences(expected, each[1]))))
    lines = [headline, f"  the closest of {len(stored)} is {closest}; it differs in", *(
        f"    {each}" for each in _differences(expected, values)
    )]  # fmt: skip
    return "\n".join(lines if len(stored) == 1 else [*lines, *_list_lines([text for text, _ in stored])])


def _list_lines(texts: Sequence[str]) -> list[str]:
    lines = [f"    {each}" for each in texts[:_MAX_LISTED]]
    more = [f"    and {len(texts) - _MAX_LISTED} more"] if len(texts) > _MAX_LISTED else []
    return ["  stored, oldest first:", *lines, *more]


def _others(job: Job[..., Any]) -> str:
    """Other destinations with deliveries: often the test named the wrong job."""
    rows = job.outbox.store.statistics.counts().rows
    found: dict[str, int] = {}
    for row in rows:
        if row.destination != job.name:
            found[row.destination] = found.get(row.destination, 0) + row.number
    names = ", ".join(f"{name} ({number})" for name, number in sorted(found.items()))
    return f"; committed for others: {names}" if found else ""


def _describe_call(each: Enqueued) -> str:
    return f"{_call(each.job, each.arguments)} [{each.status}, queue {each.queue}]"


def _describe_message(each: Published) -> str:
    return f"{_call(each.topic, _fields(each))} [to {', '.join(each.destinations)}]"


def _name(event: str | type[Any]) -> str:
    return event if isinstance(event, str) else event.__name__


def _call(name: str, values: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={_json(value)}' for key, value in values.items())})"


def _json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_WIDTH else f"{text[: _MAX_WIDTH - 1]}…"
