"""Hooks as an App declares them: `@box.after("succeeded" | "aborted")`. Its workers announce them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Unpack, cast, overload

import msgspec

from todoku.core.destination import Destination
from todoku.core.ending import EVENTS, OWN, Ending, Event, Hook
from todoku.core.errors import InvalidSetting
from todoku.core.topic_pattern import pattern
from todoku.engine.jobs.declarations import Declare, Sender
from todoku.engine.jobs.handler import made
from todoku.engine.jobs.job import Job
from todoku.engine.jobs.options import JobOptions, checked_queue
from todoku.engine.jobs.schedule_declarations import TimedDeclarations

_NOT_FOR_HOOKS: Final = ("ordered", "unique_for", "per_key", "encrypted", "schema")


class HookDeclarations(TimedDeclarations):
    """Declarations, and who is told how deliveries end."""

    @overload
    def after(
        self,
        *events: Event,
        to: Destination | Sender | str,
        topic: str = "**",
        destination: str | Job[..., Any] | None = None,
        from_queue: str | None = None,
        name: str | None = None,
    ) -> None: ...
    @overload
    def after(
        self,
        *events: Event,
        topic: str = "**",
        destination: str | Job[..., Any] | None = None,
        from_queue: str | None = None,
        name: str | None = None,
        **options: Unpack[JobOptions],
    ) -> Declare: ...
    def after(
        self,
        *events: Event,
        to: Any = None,
        topic: str = "**",
        destination: str | Job[..., Any] | None = None,
        from_queue: str | None = None,
        name: str | None = None,
        **options: Unpack[JobOptions],
    ) -> Any:
        """Be told of every delivery that has "succeeded" or was "aborted": `@box.after("aborted")`, or `to=` somewhere.

        The function is given an `Ending`, after `ctx` if it takes that, and is a job with these options: stored in the
        transaction that ends the delivery, so neither lost nor doubled, and retried like any other. `topic` (a
        pattern), `destination` (a job or a name) and `from_queue` say of which deliveries; `queue` is the hook's own.
        """
        heard = _Heard(_checked(events), *_filter(topic, destination, from_queue))
        if to is not None:
            if options:
                raise InvalidSetting("a destination has its own options", hint="leave them out, or decorate a function")
            return self._send(heard, to, name)
        return cast("Declare", lambda function: self._hooked(heard, function, name, options))

    def _send(self, heard: _Heard, to: Destination | Sender | str, name: str | None) -> None:
        if isinstance(to, Job):
            raise InvalidSetting("a job takes arguments, not an Ending", hint='put @box.after("aborted") on a function')
        called = self._destination(to, name)
        known = self.registry.get(called)
        queue = known.queue if known is not None else called
        self._hook(heard, Hook(name=called, event="aborted", queue=queue, max_attempts=self.settings.max_attempts))

    def _hooked(
        self, heard: _Heard, function: Callable[..., Any], name: str | None, options: JobOptions
    ) -> Job[..., Any]:
        if isinstance(function, Job):
            raise InvalidSetting(f"{function.name} is a job already", hint='@box.after("succeeded", "aborted"): once')
        if wrong := sorted(options.keys() & set(_NOT_FOR_HOOKS)):
            raise InvalidSetting(
                f"a hook cannot be {wrong[0]}", hint="it is told of each end by itself, without its payload"
            )
        consumes = f"{OWN}{heard.events[0]}"
        handler = made(
            function, name, options, self.settings, consumes=consumes, kind=Ending, secrets=self.outbox.secrets
        )  # fmt: skip
        job = self._add(Job(self.outbox, handler))
        route = handler.route
        hook = Hook(
            name=job.name, event="aborted", queue=route.queue, max_attempts=route.max_attempts, timeout=route.timeout
        )
        self._hook(heard, hook)
        return job

    def _hook(self, heard: _Heard, hook: Hook) -> None:
        for event in heard.events:
            if any((other.name, other.event) == (hook.name, event) for other in self.registry.hooks):
                raise InvalidSetting(
                    f"{hook.name} hears of {event} twice", hint="give one of the hooks another name=, or a wider topic"
                )
            self.registry.hooks.append(
                msgspec.structs.replace(
                    hook, event=event, topic=heard.topic, destination=heard.destination, from_queue=heard.from_queue
                )
            )


class _Heard(msgspec.Struct, frozen=True):
    """Of which ends a hook is told."""

    events: tuple[Event, ...]
    topic: str
    destination: str | None
    from_queue: str | None


def _checked(events: tuple[Event, ...]) -> tuple[Event, ...]:
    wrong = [event for event in events if event not in EVENTS]
    if wrong or not events or len(set(events)) < len(events):
        said = ", ".join(map(repr, wrong or events)) or "nothing"
        raise InvalidSetting(f"after {said}: no such end of a delivery", hint='"succeeded", "aborted", or both')
    return events


def _filter(topic: str, destination: object, from_queue: str | None) -> tuple[str, str | None, str | None]:
    if not isinstance(topic, str):
        raise InvalidSetting(f"topic cannot be {topic!r}", hint='a pattern of topics: "order.*"')
    pattern(topic)
    name = destination.name if isinstance(destination, Job) else destination
    if name is not None and (not isinstance(name, str) or not name):
        raise InvalidSetting(f"destination cannot be {destination!r}", hint="a job, or the name of a destination")
    return topic, name, None if from_queue is None else checked_queue(from_queue, InvalidSetting)
