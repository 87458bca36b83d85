"""The declarations of an App: jobs, events, consumers, destinations, routes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar, cast, overload

import msgspec

from todoku.core.destination import Configured, Destination, Outgoing, UsesSecrets
from todoku.core.errors import InvalidMessage, InvalidSetting, UnknownJob
from todoku.core.message import Draft
from todoku.core.schedule import Missed, Plan, When, policy
from todoku.core.settings import Settings
from todoku.core.topic_pattern import Route, pattern
from todoku.engine.context import Context
from todoku.engine.jobs.event import E, Event, EventClasses
from todoku.engine.jobs.handler import build_handler, is_async
from todoku.engine.jobs.job import Call, Handler, Job
from todoku.engine.jobs.options import JobOptions, PublishOptions
from todoku.engine.outbox import Outbox
from todoku.engine.publish import MessageOptions
from todoku.engine.registry import SEND_BATCH, Registry, Target, outgoing
from todoku.engine.schedule import checked_name, plan

# ------------------------------------------------------------
# Declared schedules: `@box.cron`, `@box.every`, `box.schedule`. The workers of the App store and announce them.


class TimedOptions(JobOptions, total=False):
    """The keywords of `@box.cron` and `@box.every`: those of a job, and those of the schedule."""

    name: str | None
    missed: Missed
    args: Sequence[Any]
    kwargs: Mapping[str, Any] | None


_OWN: Final = TimedOptions.__optional_keys__ - JobOptions.__optional_keys__


class DeclaredSchedules:
    """The schedules that one App declares. `plans`: by the name of the schedule."""

    def __init__(self, declarations: Declarations) -> None:
        self._declarations = declarations
        self.plans: dict[str, Plan] = {}

    def decorator(self, when: When, options: TimedOptions) -> Declare:
        """Declares a schedule for the decorated function, which becomes a job unless it is one."""
        own = {option: options[option] for option in _OWN & options.keys()}  # type: ignore[literal-required]
        rest = cast("JobOptions", {option: value for option, value in options.items() if option not in _OWN})
        name, missed = own.get("name"), policy(own.get("missed", "once"))

        def declare(function: Callable[..., Any]) -> Job[..., Any]:
            if isinstance(function, Job):
                if rest:
                    raise InvalidSetting("a job has its own options", hint="give them where the job is declared")
                job: Job[..., Any] = function
            else:
                job = self._declarations.job(function, name, rest)
            call = job.call(*own.get("args", ()), **(own.get("kwargs") or {}))
            self.declare(name or job.name, call, None, when, missed)
            return job

        return cast("Declare", declare)

    def declare(self, name: str, what: Any, payload: object, when: When, missed: Missed) -> None:
        """Declares a schedule for a job, a call, an event, or a topic and its payload."""
        if checked_name(name) in self.plans:
            raise InvalidSetting(f"there are two schedules named {name!r}", hint="give one of them another name=")
        self.plans[name] = self.plan(what, payload, when, missed)

    def plan(self, what: Any, payload: object, when: When, missed: Missed) -> Plan:
        """The plan of a schedule. A message that could not be published is refused here, before anything is stored."""
        if isinstance(what, Job):
            what = what.call()
        if isinstance(what, Call):
            if payload is not None:
                raise InvalidSetting("a call has its own payload", hint="schedule(name, job.call(…)), without payload")
            return plan(what.draft(), what.payload, what.options, when, missed)
        declarations = self._declarations
        topic, body, key = declarations.events.split(what, payload)
        draft = declarations.outbox.draft(topic, body, MessageOptions(key=key), declarations.routes)
        return plan(draft, body, {}, when, missed)


P = ParamSpec("P")
R = TypeVar("R")

Sender = Callable[[Outgoing], Any]
"""A destination as a plain function, sync or async: called with each message, and raises if it cannot be sent."""


class Declare(Protocol):
    """The decorators that make a function a job. `ctx` is not part of the job's own signature."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> Job[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Job[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Job[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Job[P, R]: ...


class Jobs(Mapping[str, Job[..., Any]]):
    """The jobs of an App by name. UnknownJob lists the names that exist."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job[..., Any]] = {}

    def __getitem__(self, name: str) -> Job[..., Any]:
        try:
            return self._jobs[name]
        except KeyError:
            known = ", ".join(sorted(self._jobs)) or "none"
            raise UnknownJob(f"there is no job {name!r}", hint=f"known: {known}") from None

    def __iter__(self) -> Iterator[str]:
        return (name for name, job in self._jobs.items() if name == job.name)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def add(self, job: Job[..., Any]) -> None:
        """Adds a job under its name and its aliases, which are free."""
        for name in (job.name, *job.aliases):
            self._jobs[name] = job


class Declarations:
    """The jobs, events, consumers, destinations and routes of one App. The contracts are those of App's methods."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.registry = Registry(outbox.schemas)
        self.jobs = Jobs()
        self.events = EventClasses()
        self.routes: list[Route] = []
        self._served: dict[str, object] = {}

    @property
    def settings(self) -> Settings:
        """Those of the outbox: they change when the App connects to another database."""
        return self.outbox.settings

    def draft(self, event: Any, payload: object, options: PublishOptions) -> Draft:
        """The draft of an event, or of a topic and its payload, for the routes declared here."""
        topic, body, key = self.events.split(event, payload)
        given: PublishOptions = {"key": key, **options}
        return self.outbox.draft(topic, body, MessageOptions(**given), self.routes)

    def drafts(self, events: Iterable[tuple[str, object] | Event]) -> list[Draft]:
        """The drafts of many events, or (topic, payload)."""
        pairs = (event if isinstance(event, tuple) else _alone(event) for event in events)
        return [self.draft(event, payload, {}) for event, payload in pairs]

    def handler(
        self, function: Callable[..., Any], name: str | None, options: JobOptions, *,
        consumes: str | None = None, kind: Any = Any,
    ) -> Handler:  # fmt: skip
        """The handler of a job, or of a consumer of the topic (or pattern) `consumes`."""
        return build_handler(
            function, name, options, self.settings, consumes=consumes, kind=kind, secrets=self.outbox.secrets
        )

    def job(self, function: Callable[..., Any], name: str | None, options: JobOptions) -> Job[..., Any]:
        """Declares a job."""
        job: Job[..., Any] = Job(self.outbox, self.handler(function, name, options))
        if options.get("encrypted"):
            self.outbox.sealer.declare(job.handler.topic)
        self._declare_schema(job.name, options)
        return self.add(job)

    def consumer(self, topic: str | type[Any], name: str | None, options: JobOptions) -> Declare:
        """Declares the decorated function as a consumer of a topic, a pattern, or an event class."""
        kind, text = (Any, topic) if isinstance(topic, str) else (topic, self.events.of(topic).topic)

        def declare(function: Callable[..., Any]) -> Job[..., Any]:
            handler = self.handler(function, name, options, consumes=text, kind=kind)
            self._declare_schema(text, options)
            job = self.add(Job(self.outbox, handler))
            self._add_route(msgspec.structs.replace(handler.route, pattern=text))
            return job

        pattern(text)
        return cast("Declare", declare)

    def add(self, job: Job[..., Any]) -> Job[..., Any]:
        """Registers a job under its name and its aliases. InvalidSetting: one of them is taken."""
        for name in self.registry.free((job.name, *job.aliases)):
            self.registry.add(msgspec.structs.replace(job.target, name=name))
        self.jobs.add(job)
        return job

    def event(self, topic: str, key: str | None, *, encrypted: bool) -> Callable[[E], E]:
        """Declares the decorated class as an event of `topic`."""
        declare: Callable[[E], E] = self.events.declare(topic, key)
        if encrypted:
            self.outbox.sealer.declare(topic)
        return declare

    def route(
        self, topic: str, to: Destination | Job[..., Any] | Sender | str, name: str | None, *, ordered: bool
    ) -> None:
        """Declares a route from a topic, or a pattern, to a destination."""
        pattern(topic)
        if isinstance(to, Job):
            if name is not None or ordered:
                raise InvalidSetting(
                    "a job has its own name and order", hint="give both where the job is declared"
                )  # fmt: skip
            self._add_route(msgspec.structs.replace(to.route, pattern=topic))
            return
        destination = self.destination(to, name)
        known = self.registry.get(destination)
        self._add_route(
            Route(
                pattern=topic,
                destination=destination,
                queue=known.queue if known is not None else destination,
                ordered=ordered,
                max_attempts=self.settings.max_attempts,
            )
        )

    def destination(self, to: Destination | Sender | str, name: str | None) -> str:
        """The name of a destination. One that this process serves is registered, once."""
        called = name or (to if isinstance(to, str) else getattr(to, "name", None) or getattr(to, "__name__", ""))
        if not isinstance(called, str) or not called:
            raise InvalidMessage("a destination needs a name", hint="pass name=…")
        if isinstance(to, str):
            return called
        if self._served.get(called) is not to:
            self.registry.add(self._target(called, to))
            self._served[called] = to
        return called

    # ------------------------------------------------------------------------------------------- inside

    def _declare_schema(self, topic: str, options: JobOptions) -> None:
        if (schema := options.get("schema")) is not None:
            self.outbox.schemas.declare(topic, schema)

    def _target(self, name: str, to: Destination | Sender) -> Target:
        backoff, attempts = self.settings.backoff, self.settings.max_attempts
        if isinstance(to, Destination):
            if isinstance(to, Configured):
                to.configure(self.settings)
            if isinstance(to, UsesSecrets):
                to.use_secrets(self.outbox.secrets.afilled)
            return Target(
                name=name, queue=name, backoff=backoff, sender=to, batch=getattr(to, "batch", SEND_BATCH),
                at_once=getattr(to, "at_once", None), usual_attempts=attempts,
            )  # fmt: skip
        if not callable(to):
            raise InvalidSetting(
                f"{to!r} is no destination", hint="an object with a name and async send(batch), a function, or a name"
            )
        function = to
        return Target(
            name=name,
            queue=name,
            backoff=backoff,
            run="loop" if is_async(function) else "thread",
            call=lambda context: function(outgoing(context.claim)),
            usual_attempts=attempts,
        )

    def _add_route(self, route: Route) -> None:
        """Adds a route. All routes to one destination have the same queue and the same `ordered`."""
        for other in self.routes:
            if other.destination == route.destination and (other.queue, other.ordered) != (route.queue, route.ordered):
                raise InvalidSetting(
                    f"two routes to {route.destination!r} differ in queue or ordered: {other.pattern}, {route.pattern}",
                    hint="give one of them another name=",
                )
        self.routes.append(route)


def _alone(event: object) -> tuple[object, None]:
    if isinstance(event, str):
        raise InvalidMessage(f"{event!r} is a topic without its payload", hint="pass (topic, payload), or an event")
    return event, None
