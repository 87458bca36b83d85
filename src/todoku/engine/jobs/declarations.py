"""The declarations of an App: jobs, events, consumers, destinations, routes."""

from __future__ import annotations

import base64
from collections.abc import Callable, Coroutine, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar, cast, overload

import msgspec

from todoku.core.destination import Attempts, Configured, Destination, Outgoing, RequestDestination, UsesSecrets
from todoku.core.errors import InvalidMessage, InvalidSetting, UnknownJob
from todoku.core.http_request import SCHEMES, served_as
from todoku.core.message import Draft
from todoku.core.outcome import without_url_secrets
from todoku.core.schedule import Missed, Plan, When, policy
from todoku.core.settings import Settings
from todoku.core.topic_pattern import Route, pattern
from todoku.engine.context import Context
from todoku.engine.deliveries import Id
from todoku.engine.jobs.event import E, Event, EventClasses
from todoku.engine.jobs.event_drafts import EventDrafts
from todoku.engine.jobs.handle import Handle, ResultReader, locate
from todoku.engine.jobs.handler import build_handler, is_async, parameters_of
from todoku.engine.jobs.job import Call, Handler, Job
from todoku.engine.jobs.options import (
    EventOptions,
    JobOptions,
    PublishOptions,
    RouteOptions,
    check_route_options,
    checked_duration,
    checked_on_dead,
    refuse_for_name,
)
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


class RequestTo(Protocol):
    """Creates the destination that sends messages to a URL."""

    def __call__(self, url: str, *, name: str | None) -> Destination:
        """Returns the destination; `name`: by which it is known. InvalidMessage: it is no URL."""


class RoutedTo(msgspec.Struct, frozen=True):
    """Where messages go: a destination and its queue, and the attempts it asks for (None: as the settings say)."""

    name: str
    queue: str
    max_attempts: int | None


class Declarations:
    """The jobs, events, consumers, destinations and routes of one App. The contracts are those of App's methods."""

    def __init__(self, outbox: Outbox, request_to: RequestTo) -> None:
        self.outbox = outbox
        self._request_to = request_to
        self.registry = Registry(outbox.schemas)
        self.jobs = Jobs()
        self.events = EventClasses()
        self.routes: list[Route] = []
        self._served: dict[str, object] = {}
        self._requests: dict[Hashable, Destination] = {}

    @property
    def settings(self) -> Settings:
        """Those of the outbox: they change when the App connects to another database."""
        return self.outbox.settings

    def draft(self, event: Any, payload: object, options: PublishOptions) -> Draft:
        """The draft of an event, or of a topic and its payload, for the routes declared here."""
        topic, body, key = self.events.split(event, payload, options.get("key"))
        given: PublishOptions = {**options, "key": key}
        return self.outbox.draft(topic, body, MessageOptions(**given), self.routes)

    def plain_text(self, event: Any, payload: object) -> str:
        """The payload of an event, or of a topic, before it is encrypted: JSON, or bytes as base64."""
        encoded = self.outbox.encoded(self.events.split(event, payload)[1])
        return base64.b64encode(encoded).decode() if isinstance(encoded, bytes) else encoded.text

    def drafts(self, events: Iterable[tuple[str, object] | Event]) -> EventDrafts:
        """Many events, or (topic, payload), for the routes declared here."""
        return EventDrafts(events, self.events, self.outbox, self.routes)

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
        return self.declare(Job(self.outbox, self.handler(function, name, options)), options)

    def declare(self, job: Job[..., Any], options: JobOptions) -> Job[..., Any]:
        """Declares a job that was built with these options."""
        if options.get("encrypted"):
            self.outbox.sealer.declare(job.handler.topic)
        self._declare_schema(job.name, options)
        self._declare_search(job.handler.topic, options.get("search"), parameters_of(job.handler))
        return self.add(job)

    def consumer(self, topic: str | type[Any], name: str | None, options: JobOptions) -> Declare:
        """Declares the decorated function as a consumer of a topic, a pattern, or an event class."""
        kind, text = (Any, topic) if isinstance(topic, str) else (topic, self.events.of(topic).topic)

        def declare(function: Callable[..., Any]) -> Job[..., Any]:
            handler = self.handler(function, name, options, consumes=text, kind=kind)
            self._declare_schema(text, options)
            self._declare_search(text, options.get("search"), ())
            job = self.add(Job(self.outbox, handler))
            self.add_route(msgspec.structs.replace(handler.route, pattern=text))
            return job

        pattern(text)
        return cast("Declare", declare)

    def add(self, job: Job[..., Any]) -> Job[..., Any]:
        """Registers a job under its name and its aliases. InvalidSetting: one of them is taken."""
        for name in self.registry.free((job.name, *job.aliases)):
            self.registry.add(msgspec.structs.replace(job.target, name=name))
            self._declare_on_dead(msgspec.structs.replace(job.route, destination=name))
        self.jobs.add(job)
        return job

    def event(self, topic: str, options: EventOptions) -> Callable[[E], E]:
        """Declares the decorated class as an event of `topic`."""
        if unknown := options.keys() - EventOptions.__optional_keys__:
            known = ", ".join(sorted(EventOptions.__optional_keys__))
            raise InvalidSetting(f"an event has no option {', '.join(sorted(unknown))}", hint=f"known: {known}")
        declare: Callable[[E], E] = self.events.declare(topic, options.get("key"))
        if options.get("encrypted"):
            self.outbox.sealer.declare(topic)

        def declared(kind: E) -> E:
            event = declare(kind)
            self._declare_search(topic, options.get("search"), self.events.of(kind).stored_fields)
            return event

        return declared

    def route(self, topic: str, to: Destination | Job[..., Any] | Sender | str, options: RouteOptions) -> None:
        """Declares a route from a topic, or a pattern, to a destination."""
        pattern(topic)
        check_route_options(options)
        self._declare_search(topic, options.pop("search", None), ())
        if isinstance(to, Job):
            if options:
                raise InvalidSetting(
                    f"a job has its own {' and '.join(sorted(options))}", hint="give them where the job is declared"
                )
            self.add_route(msgspec.structs.replace(to.route, pattern=topic))
            return
        ordered, timeout = options.get("ordered", False), options.get("timeout")
        on_dead = checked_on_dead(topic, options.get("on_dead", "park"), ordered=ordered)
        place = self._destination_of(to, options)
        self.add_route(
            Route(
                pattern=topic,
                destination=place.name,
                queue=place.queue,
                ordered=ordered,
                on_dead=on_dead,
                max_attempts=place.max_attempts or self.settings.max_attempts,
                timeout=None if timeout is None else checked_duration(timeout, "timeout", InvalidSetting),
            )
        )

    def destination(self, to: Destination | Sender | str, name: str | None) -> RoutedTo:
        """The place of a destination. One that this process serves is registered, once."""
        return self._destination_of(to, {"name": name})

    def route_to(self, destination: str) -> Route | None:
        """How messages go to this destination; None: it is not declared here."""
        if (job := self.jobs.get(destination)) is not None:
            return job.route
        return next((route for route in self.routes if route.destination == destination), None)

    def handle(self, id: Id, destination: str | None) -> Handle[Any]:
        """The handle of a delivery; the contract is that of `App.handle`. Blocks."""
        message_id, name = locate(self.outbox.store, id, destination)
        if (job := self.jobs.get(name)) is not None:
            return job.handle(message_id)
        return Handle(self.outbox, message_id, (name,), ResultReader(msgspec.json.decode), self.route_to(name))

    # ------------------------------------------------------------------------------------------- inside

    def _declare_schema(self, topic: str, options: JobOptions) -> None:
        if (schema := options.get("schema")) is not None:
            self.outbox.schemas.declare(topic, schema)

    def _declare_search(self, topic: str, paths: Sequence[str] | None, names: Sequence[str]) -> None:
        """Declares the payload fields of a topic that are kept as labels. `names`: all that it has; empty: unknown."""
        if paths is not None:
            self.outbox.searched.declare(topic, paths, names=names)

    def _destination_of(self, given: Destination | Sender | str, options: RouteOptions) -> RoutedTo:
        """Where a route or a hook leads. `given` is registered unless it is a name, or registered already."""
        to, name = self._with_requests(given, options), options.get("name")
        called = name or (to if isinstance(to, str) else getattr(to, "name", None) or getattr(to, "__name__", ""))
        if not isinstance(called, str) or not called:
            raise InvalidMessage("a destination needs a name", hint="pass name=…")
        own = getattr(to, "attempts", None)
        own = own if isinstance(own, Attempts) else Attempts()
        attempts, backoff = options.get("max_attempts") or own.max_attempts, options.get("backoff") or own.backoff
        if isinstance(to, str):
            refuse_for_name(to, options)
            known = self.registry.get(called)
            return RoutedTo(called, called if known is None else known.queue, attempts)
        if self._served.get(called) is not to:
            self.registry.add(self._target(called, to, Attempts(max_attempts=attempts, backoff=backoff)))
            self._served[called] = to
        target = self.registry[called]
        if target.backoff != (backoff or self.settings.backoff):
            raise InvalidSetting(
                f"two routes to {called!r} differ in backoff", hint="give both the same, or one of them another name="
            )
        return RoutedTo(called, target.queue, attempts)

    def _with_requests(self, to: Destination | Sender | str, options: RouteOptions) -> Destination | Sender | str:
        """A URL becomes an HTTP destination; it has the headers and time limit of its route. Equal ones are one."""
        headers, timeout, name = options.get("headers"), options.get("timeout"), options.get("name")
        if isinstance(to, str) and "://" in to:
            if served_as(to.lower()) not in SCHEMES:
                raise InvalidSetting(
                    f"{without_url_secrets(to)!r} is no destination",
                    hint="http://… or https://…, or a name without ://",
                )
            to = self._requests.setdefault((to, name), self._request_to(to, name=name))
        if not isinstance(to, Destination) or not isinstance(to, RequestDestination):
            if headers is not None:
                raise InvalidSetting("headers are for HTTP requests", hint='route to a URL: to="https://…"')
            return to
        if headers is None and timeout is None:
            return to
        changed = to.for_route(headers=headers, timeout=timeout)
        return self._requests.setdefault((to, frozenset((headers or {}).items()), timeout), changed)

    def _target(self, name: str, to: Destination | Sender, attempts: Attempts) -> Target:
        backoff = attempts.backoff or self.settings.backoff
        usual = self.settings.max_attempts if attempts.max_attempts is None else None
        if isinstance(to, Destination):
            if isinstance(to, Configured):
                to.configure(self.settings)
            if isinstance(to, UsesSecrets):
                to.use_secrets(self.outbox.secrets.afilled)
            return Target(
                name=name, queue=name, backoff=backoff, sender=to, batch=getattr(to, "batch", SEND_BATCH),
                at_once=getattr(to, "at_once", None), usual_attempts=usual,
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
            usual_attempts=usual,
        )

    def add_route(self, route: Route) -> None:
        """Adds a route. All routes to one destination have the same queue, the same `ordered` and `on_dead`."""
        for other in (other for other in self.routes if other.destination == route.destination):
            same = (other.queue, other.ordered) == (route.queue, route.ordered)
            if not same or other.on_dead != route.on_dead:
                raise InvalidSetting(
                    f"two routes to {route.destination!r} differ in {'on_dead' if same else 'queue or ordered'}: "
                    f"{other.pattern}, {route.pattern}",
                    hint="make them agree, or give one of them another name=",
                )
        self.routes.append(route)
        self._declare_on_dead(route)

    def _declare_on_dead(self, route: Route) -> None:
        """Makes workers here record what dead letters of an ordered destination do, before one can die."""
        if route.ordered and route.destination in self.registry.names:
            self.registry.on_dead[route.destination] = route.on_dead
