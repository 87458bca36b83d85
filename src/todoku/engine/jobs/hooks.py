"""Declared hooks, `@box.after("succeeded" | "aborted")`. The workers of the App announce them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypedDict, cast

import msgspec

from todoku.core.destination import Destination
from todoku.core.ending import EVENTS, OWN, Ending, Event, Hook
from todoku.core.errors import InvalidSetting
from todoku.core.topic_pattern import pattern
from todoku.engine.jobs.declarations import Declarations, Declare, Sender
from todoku.engine.jobs.job import Job
from todoku.engine.jobs.options import JobOptions, checked_queue

_NOT_FOR_HOOKS: Final = ("ordered", "on_dead", "unique_for", "per_key", "encrypted", "schema")


class EndingOptions(TypedDict, total=False):
    """The deliveries that a hook is called for, and its name."""

    topic: str
    destination: str | Job[..., Any] | None
    from_queue: str | None
    name: str | None


class HookOptions(EndingOptions, JobOptions, total=False):
    """The keywords of `@box.after`: those of a job, and the deliveries it is called for."""


def declare(
    declarations: Declarations, events: tuple[Event, ...], to: Destination | Sender | str | None, options: HookOptions
) -> Declare | None:
    """Declares a hook, a destination or the decorated function; the contract is that of `App.after`."""
    given: dict[str, Any] = {**options}
    name = given.pop("name", None)
    which = _ending_filter(
        events, given.pop("topic", "**"), given.pop("destination", None), given.pop("from_queue", None)
    )
    if to is not None:
        if given:
            raise InvalidSetting("a destination has its own options", hint="leave them out, or decorate a function")
        _declare_destination(declarations, which, to, name)
        return None
    rest = cast("JobOptions", given)
    return cast("Declare", lambda function: _declare_function(declarations, which, function, name, rest))


class EndingFilter(msgspec.Struct, frozen=True):
    """The ends of deliveries that a hook is called for."""

    events: tuple[Event, ...]
    topic: str
    destination: str | None
    from_queue: str | None


def _ending_filter(
    events: tuple[Event, ...], topic: object, destination: object, from_queue: str | None
) -> EndingFilter:
    wrong = [event for event in events if event not in EVENTS]
    if wrong or not events or len(set(events)) < len(events):
        given = ", ".join(map(repr, wrong or events)) or "nothing"
        raise InvalidSetting(f"after {given}: no such end of a delivery", hint='"succeeded", "aborted", or both')
    if not isinstance(topic, str):
        raise InvalidSetting(f"topic cannot be {topic!r}", hint='a pattern of topics: "order.*"')
    pattern(topic)
    name = destination.name if isinstance(destination, Job) else destination
    if name is not None and (not isinstance(name, str) or not name):
        raise InvalidSetting(f"destination cannot be {destination!r}", hint="a job, or the name of a destination")
    return EndingFilter(
        events, topic, name, None if from_queue is None else checked_queue(from_queue, InvalidSetting)
    )  # fmt: skip


def _declare_destination(
    declarations: Declarations, which: EndingFilter, to: Destination | Sender | str, name: str | None
) -> None:
    """Declares a destination that each matching Ending is sent to."""
    if isinstance(to, Job):
        raise InvalidSetting("a job takes arguments, not an Ending", hint='put @box.after("aborted") on a function')
    place = declarations.destination(to, name)
    attempts = place.max_attempts or declarations.settings.max_attempts
    _add(declarations, which, Hook(name=place.name, event="aborted", queue=place.queue, max_attempts=attempts))


def _declare_function(
    declarations: Declarations,
    which: EndingFilter,
    function: Callable[..., Any],
    name: str | None,
    options: JobOptions,
) -> Job[..., Any]:
    """Declares a function, as a job, that is called with each matching Ending."""
    if isinstance(function, Job):
        raise InvalidSetting(f"{function.name} is a job already", hint='@box.after("succeeded", "aborted"): once')
    if wrong := sorted(options.keys() & set(_NOT_FOR_HOOKS)):
        raise InvalidSetting(
            f"a hook cannot be {wrong[0]}", hint="it is called for each end by itself, without the payload"
        )
    handler = declarations.handler(function, name, options, consumes=f"{OWN}{which.events[0]}", kind=Ending)
    job = declarations.add(Job(declarations.outbox, handler))
    route = handler.route
    hook = Hook(
        name=job.name, event="aborted", queue=route.queue, max_attempts=route.max_attempts, timeout=route.timeout
    )
    _add(declarations, which, hook)
    return job


def _add(declarations: Declarations, which: EndingFilter, hook: Hook) -> None:
    hooks = declarations.registry.hooks
    for event in which.events:
        if any((other.name, other.event) == (hook.name, event) for other in hooks):
            raise InvalidSetting(
                f"{hook.name} is declared twice for {event}",
                hint="give one of the hooks another name=, or a wider topic",
            )
        hooks.append(
            msgspec.structs.replace(
                hook, event=event, topic=which.topic, destination=which.destination, from_queue=which.from_queue
            )
        )
