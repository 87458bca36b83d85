"""Assertions about what was enqueued and published. What fails says what there was instead, field by field."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from todoku.app import App
from todoku.core.digest import digest
from todoku.core.errors import InvalidMessage
from todoku.engine.jobs.job import Job
from todoku.testing.stored_messages import Enqueued, Published, enqueued, parameters, plain, published

_SHOWN: Final = 20
_WIDEST: Final = 100
_Told = tuple[str, dict[str, Any]]


def assert_enqueued(job: Job[..., Any], /, **arguments: Any) -> Enqueued:
    """A call of the job with these arguments was committed; the newest of them. Others it has may be anything."""
    __tracebackhide__ = True
    wanted, stored = _arguments(job, arguments), enqueued(job)
    for each in reversed(stored):
        if not list(_differences(wanted, each.arguments)):
            return each
    raise AssertionError(
        _missing(
            f"{_call(job.name, wanted)} was not enqueued",
            wanted,
            [(_told(each), each.arguments) for each in stored],
            others=_others(job),
        )
    )


def assert_not_enqueued(job: Job[..., Any], /, **arguments: Any) -> None:
    """No call of the job with these arguments was committed; without arguments: none at all."""
    __tracebackhide__ = True
    wanted = _arguments(job, arguments)
    found = [_told(each) for each in enqueued(job) if not list(_differences(wanted, each.arguments))]
    if found:
        raise AssertionError("\n".join([f"{_call(job.name, wanted)} was enqueued", *_listed(found)]))


def assert_published(box: App, event: Any, /, **fields: Any) -> Published:
    """A message was committed: of a topic or an event class with these fields, or equal to an event. The newest."""
    __tracebackhide__ = True
    what, wanted = _event(box, event, fields)
    stored = published(box, what)
    for each in reversed(stored):
        if not list(_differences(wanted, _fields(each))):
            return each
    told = [(_shown(each), _fields(each)) for each in stored]
    raise AssertionError(_missing(f"{_call(_name(what), wanted)} was not published", wanted, told, others=""))


def assert_not_published(box: App, event: Any, /, **fields: Any) -> None:
    """No such message was committed."""
    __tracebackhide__ = True
    what, wanted = _event(box, event, fields)
    found = [_shown(each) for each in published(box, what) if not list(_differences(wanted, _fields(each)))]
    if found:
        raise AssertionError("\n".join([f"{_call(_name(what), wanted)} was published", *_listed(found)]))


# ------------------------------------------------------------------------------------------ what is wanted


def _arguments(job: Job[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as they would be stored. One that the job does not take is a mistake in the test."""
    known = parameters(job)
    if not any(each.kind is each.VAR_KEYWORD for each in known.values()) and (unknown := given.keys() - known.keys()):
        raise InvalidMessage(
            f"{job.name} has no argument {', '.join(sorted(unknown))}", hint=f"it takes {', '.join(known) or 'none'}"
        )
    return {name: plain(value) for name, value in given.items()}


def _event(box: App, event: Any, fields: Mapping[str, Any]) -> tuple[str | type[Any], dict[str, Any]]:
    if isinstance(event, str):
        return event, {name: plain(value) for name, value in fields.items()}
    if not isinstance(event, type):
        return type(event), {**plain(event), **{name: plain(value) for name, value in fields.items()}}
    known = box.events.of(event).fields
    if unknown := fields.keys() - set(known):
        raise InvalidMessage(
            f"{event.__name__} has no field {', '.join(sorted(unknown))}", hint=f"one of: {', '.join(known)}"
        )
    return event, {name: plain(value) for name, value in fields.items()}


def _fields(each: Published) -> dict[str, Any]:
    return each.payload if isinstance(each.payload, dict) else {}


# --------------------------------------------------------------------------------------------- what differs


def _differences(wanted: Mapping[str, Any], found: Mapping[str, Any], *, whole: bool = False) -> Iterator[str]:
    """Each field that is not as wanted. `whole`: fields nobody asked for differ too, as inside of an argument."""
    for name, value in wanted.items():
        if name not in found:
            yield f"{name}: not there instead of {_json(value)}"
            continue
        other = found[name]
        if isinstance(value, dict) and isinstance(other, dict):
            yield from (f"{name}.{each}" for each in _differences(value, other, whole=True))
        elif digest(value) != digest(other):
            yield f"{name}: {_json(other)} instead of {_json(value)}"
    if whole:
        yield from (f"{name}: {_json(found[name])} instead of nothing" for name in found if name not in wanted)


def _missing(headline: str, wanted: Mapping[str, Any], stored: Sequence[_Told], others: str) -> str:
    if not stored:
        return f"{headline}: nothing of it was committed{others} (what a transaction has not committed is not there)"
    nearest, values = min(reversed(stored), key=lambda each: len(list(_differences(wanted, each[1]))))
    lines = [headline, f"  the nearest of {len(stored)} is {nearest}; it differs in", *(
        f"    {each}" for each in _differences(wanted, values)
    )]  # fmt: skip
    return "\n".join(lines if len(stored) == 1 else [*lines, *_listed([told for told, _ in stored])])


def _listed(told: Sequence[str]) -> list[str]:
    lines = [f"    {each}" for each in told[:_SHOWN]]
    more = [f"    and {len(told) - _SHOWN} more"] if len(told) > _SHOWN else []
    return [f"  there {'is' if len(told) == 1 else 'are'}, oldest first:", *lines, *more]


def _others(job: Job[..., Any]) -> str:
    """Where calls went instead, if any did: often another job was meant."""
    rows = job.outbox.store.statistics.counts().rows
    found: dict[str, int] = {}
    for row in rows:
        if row.destination != job.name:
            found[row.destination] = found.get(row.destination, 0) + row.number
    return "; others are: " + ", ".join(f"{name} ({number})" for name, number in sorted(found.items())) if found else ""


def _told(each: Enqueued) -> str:
    return f"{_call(each.job, each.arguments)} [{each.status}, queue {each.queue}]"


def _shown(each: Published) -> str:
    return f"{_call(each.topic, _fields(each))} [to {', '.join(each.destinations)}]"


def _name(event: str | type[Any]) -> str:
    return event if isinstance(event, str) else event.__name__


def _call(name: str, values: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={_json(value)}' for key, value in values.items())})"


def _json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _WIDEST else f"{text[: _WIDEST - 1]}…"
