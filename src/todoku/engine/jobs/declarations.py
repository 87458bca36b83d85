"""What an App is told before it runs: jobs, events, consumers, routes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

import msgspec

from todoku.core.destination import Configured, Destination, Outgoing
from todoku.core.errors import InvalidMessage, InvalidSetting, UnknownJob
from todoku.core.settings import Settings
from todoku.core.topic_pattern import Route, pattern
from todoku.engine.context import Context
from todoku.engine.encryption.secret_providers import Resolve
from todoku.engine.jobs.event import E, EventClasses
from todoku.engine.jobs.handler import is_async, made
from todoku.engine.jobs.job import Job
from todoku.engine.jobs.options import JobOptions
from todoku.engine.outbox import Outbox
from todoku.engine.registry import SEND_BATCH, Registry, Target, outgoing

P = ParamSpec("P")
R = TypeVar("R")

Sender = Callable[[Outgoing], Any]
"""A destination as a plain function, sync or async: given each message, and raises what is wrong with it."""


class Declare(Protocol):
    """What `@box.job(…)` and `@box.on(…)` put on a function; `ctx` is not part of the job's own signature."""

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> Job[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Job[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Job[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Job[P, R]: ...


class Jobs(Mapping[str, Job[..., Any]]):
    """The jobs of an App by name. An unknown name is refused with those there are."""

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
        """Keep a job whose name the registry has taken."""
        for name in (job.name, *job.aliases):
            self._jobs[name] = job


class Declarations:
    """Jobs, events, consumers and routes of one App."""

    def __init__(self, outbox: Outbox, settings: Settings) -> None:
        self.outbox = outbox
        self.settings = settings
        self.registry = Registry(outbox.schemas)
        self.jobs = Jobs()
        self._events = EventClasses()
        self._routes: list[Route] = []
        self._served: dict[str, object] = {}

    @property
    def events(self) -> EventClasses:
        """The event classes declared here."""
        return self._events

    @property
    def routes(self) -> tuple[Route, ...]:
        """Every route, in the order they were declared."""
        return tuple(self._routes)

    @overload
    def job(self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /) -> Job[P, R]: ...
    @overload
    def job(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Job[P, R]: ...
    @overload
    def job(self, function: Callable[Concatenate[Context, P], R], /) -> Job[P, R]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> Job[P, R]: ...
    @overload
    def job(self, name: str | None = None, /, **options: Unpack[JobOptions]) -> Declare: ...
    def job(self, name: Any = None, /, **options: Unpack[JobOptions]) -> Any:
        """Make a function a job: `@box.job`, or `@box.job(name, queue=…, max_attempts=…, …)`.

        The name is the function's unless you give one. `timeout`, `backoff`, `max_attempts`: of its attempts. `run`:
        "loop" (async), "thread" (sync), "process" (killed at its timeout). `transactional`: hand it an open
        transaction that commits with its success. `ordered`: calls with the same key run in turn. `per_key`: of calls
        with the same key so many at once, so many a second (`todoku.Limit`), over all workers. `unique_for`: an
        equal call within that time is a duplicate. `keep_result`: what it returns can be asked for. `max_retries`:
        `max_attempts` less the first. `retry_on`: only these exceptions are retried; `abort_on`: these never.
        `aliases`: names it had before. `schema`: a JSON Schema of its arguments, or of the event. `encrypted`: its
        arguments and its result are stored encrypted, and of an error only the type.
        """
        if callable(name):
            return self._job(name, None, options)
        return lambda function: self._job(function, name, options)

    def _job(self, function: Callable[..., Any], name: str | None, options: JobOptions) -> Job[..., Any]:
        handler = made(function, name, options, self.settings, secrets=self.outbox.secrets)
        job: Job[..., Any] = Job(self.outbox, handler)
        if options.get("encrypted"):
            self.outbox.sealer.declare(handler.topic)
        self._schema_of(options, job.name)
        return self._add(job)

    def on(self, topic: str | type[Any], *, name: str | None = None, **options: Unpack[JobOptions]) -> Declare:
        """Consume what is published under a topic, a pattern, or as an event class; the options are those of `job`.

        The handler is given the event, after `ctx` if it takes that: as its annotation says, else as the event class,
        else as the JSON value.
        """
        kind, text = (Any, topic) if isinstance(topic, str) else (topic, self._events.of(topic).topic)

        def declared(function: Callable[..., Any]) -> Job[..., Any]:
            handler = made(
                function, name, options, self.settings, consumes=text, kind=kind, secrets=self.outbox.secrets
            )  # fmt: skip
            self._schema_of(options, text)
            job = self._add(Job(self.outbox, handler))
            self._route(msgspec.structs.replace(handler.route, pattern=text))
            return job

        pattern(text)
        return cast("Declare", declared)

    def _add(self, job: Job[..., Any]) -> Job[..., Any]:
        names = (job.name, *job.aliases)
        for name in self.registry.free(names):
            self.registry.add(msgspec.structs.replace(job.target, name=name))
        self.jobs.add(job)
        return job

    def schema(self, topic: str, schema: Mapping[str, Any] | str) -> None:
        """What is published under `topic`, or a pattern, must fit this JSON Schema: a mapping, or JSON text.

        Checked at publish, where nothing is stored if it does not fit, and again before anything is run or sent.
        """
        self.outbox.schemas.declare(topic, schema)

    def _schema_of(self, options: JobOptions, topic: str) -> None:
        if (schema := options.get("schema")) is not None:
            self.schema(topic, schema)

    def event(self, topic: str, *, key: str | None = None, encrypted: bool = False) -> Callable[[E], E]:
        """Make a dataclass, msgspec struct or pydantic model an event of `topic`. `key`: the field that orders it.

        `encrypted`: whatever is published under this topic is stored encrypted; its key is not.
        """
        declared = self._events.declare(topic, key)
        if encrypted:
            self.outbox.sealer.declare(topic)
        return declared

    def secrets(self, provider: str, resolve: Resolve) -> None:
        """Let `Ref("provider:path")` ask this function, plain or async, for the secret behind `path`."""
        self.outbox.secrets.add(provider, resolve)

    def route(
        self,
        topic: str,
        to: Destination | Job[..., Any] | Sender | str,
        *,
        name: str | None = None,
        ordered: bool = False,
    ) -> None:
        """Send what matches `topic` to a destination: `*` is one word of the topic, `**` any number.

        `to` is a destination, a plain function of an Outgoing, a job, or the name of a destination that another
        process serves. `ordered`: messages with the same key arrive one after the other, as they were committed.
        """
        pattern(topic)
        if isinstance(to, Job):
            if name is not None or ordered:
                raise InvalidSetting("a job has its own name and order", hint="say it where the job is declared")
            self._route(msgspec.structs.replace(to.route, pattern=topic))
            return
        destination = self._destination(to, name)
        known = self.registry.get(destination)
        self._route(
            Route(
                pattern=topic,
                destination=destination,
                queue=known.queue if known is not None else destination,
                ordered=ordered,
                max_attempts=self.settings.max_attempts,
            )
        )

    def _destination(self, to: Destination | Sender | str, name: str | None) -> str:
        """The name of a destination; one that is served here is registered, once."""
        called = name or (to if isinstance(to, str) else getattr(to, "name", None) or getattr(to, "__name__", ""))
        if not isinstance(called, str) or not called:
            raise InvalidMessage("a destination needs a name", hint="pass name=…")
        if isinstance(to, str):
            return called
        if self._served.get(called) is not to:
            self.registry.add(self._target(called, to))
            self._served[called] = to
        return called

    def _target(self, name: str, to: Destination | Sender) -> Target:
        backoff, attempts = self.settings.backoff, self.settings.max_attempts
        if isinstance(to, Destination):
            if isinstance(to, Configured):
                to.configure(self.settings)
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

    def _route(self, route: Route) -> None:
        """Add a route. One destination has one queue and one order, whichever pattern a message comes by."""
        for other in self._routes:
            if other.destination == route.destination and (other.queue, other.ordered) != (route.queue, route.ordered):
                raise InvalidSetting(
                    f"two routes to {route.destination!r} differ in queue or ordered: {other.pattern}, {route.pattern}",
                    hint="give one of them another name=",
                )
        self._routes.append(route)
