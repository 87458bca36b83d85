"""The composition root: App, the object that users hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import cached_property
from typing import Any, Concatenate, Literal, Unpack, overload
from uuid import UUID

import msgspec

from todoku.backend import open_database, printed_migrations
from todoku.capture.captures import Capture, CaptureOptions, Captures
from todoku.core.destination import Destination
from todoku.core.ending import Event as End
from todoku.core.ending import On
from todoku.core.ingest import Verifier
from todoku.core.message import Message
from todoku.core.outcome import Duration
from todoku.core.projection import SearchServer
from todoku.core.schedule import timing
from todoku.core.settings import Settings
from todoku.core.topic_pattern import Route
from todoku.destinations.http import http
from todoku.destinations.http_sender import Requests, is_installed
from todoku.engine.context import Context
from todoku.engine.deliveries import Deliveries, Id
from todoku.engine.diagnostics.summary import About, without_password
from todoku.engine.embedded_worker import run_beside, run_until_idle
from todoku.engine.encryption.secret_ref import Resolve
from todoku.engine.flows.workflow import Workflows
from todoku.engine.group_commit import GroupCommit
from todoku.engine.http.run_calls import RunCalls
from todoku.engine.http.signing_keys import KeyRing
from todoku.engine.ingest.receive import Ingest
from todoku.engine.ingest.source import Sources
from todoku.engine.jobs import batches, hooks
from todoku.engine.jobs.declarations import Declarations, Declare, DeclaredSchedules, Sender, TimedOptions
from todoku.engine.jobs.event import E, Event
from todoku.engine.jobs.handle import Handle
from todoku.engine.jobs.hooks import EndingOptions, HookOptions
from todoku.engine.jobs.job import Call, Job, P, R
from todoku.engine.jobs.options import EventOptions, JobOptions, PublishOptions, RouteOptions
from todoku.engine.ledger import Answer, Block, Inbox, Ledger
from todoku.engine.observability.sentry import wrap_handlers
from todoku.engine.observability.telemetry import Telemetry
from todoku.engine.operations import Replayed
from todoku.engine.outbox import Outbox, Policy, new_id
from todoku.engine.process_settings import load_settings, read_secret
from todoku.engine.projections.chronicle import Chronicle
from todoku.engine.projections.projection import Projection, ProjectionOptions, Projections
from todoku.engine.queues import Queues
from todoku.engine.schedule import Timing, declare, timed
from todoku.engine.schedules import Schedules
from todoku.engine.twins import asynchronous, blocking, in_thread
from todoku.engine.worker.worker import Worker
from todoku.shells import registered_shells
from todoku.store.batches import BatchStatus
from todoku.store.database import Migrated
from todoku.store.store import Store

__all__ = ["App", "PublishOptions", "load_settings", "new_id", "open_database", "printed_migrations"]


class App:
    """Your messages and where they go. Examples call it `box`.

    `database` is `sqlite:///file.db`, `postgresql://…` or `secret://…`; None reads TODOKU_DATABASE or DATABASE_URL.
    `schema` is the PostgreSQL schema of todoku's tables (None: the first of the search path).
    `require_tx`: publishing without `tx=` is an error. `no_route`: what becomes of a message that no route takes.

    `deliveries`, `queues` and `schedules` are for looking after them. Calls that wait have an async form, `a…`.
    """

    def __init__(
        self, database: str | None = None, *, schema: str | None = None, require_tx: bool = False,
        no_route: Literal["error", "dead_letter"] = "error",
    ) -> None:  # fmt: skip
        settings = load_settings(database=database, schema=schema)
        policy = Policy(require_tx=require_tx, no_route=no_route)
        self._database = open_database(settings)
        self.store = Store(self._database, ledger_ttl=settings.ledger_ttl, notify=settings.notify)
        self.telemetry = Telemetry(span_ratio=settings.span_ratio)
        self.outbox = Outbox(self.store, self._database, settings, policy, self.telemetry)
        declared = self.declarations = Declarations(self.outbox, http)
        self.registry, self.jobs, self.events = declared.registry, declared.jobs, declared.events
        self._timetable = DeclaredSchedules(declared)
        self.plans, self.schedules = self._timetable.plans, Schedules(self.outbox, self._timetable.plan)
        self.projections, self.captures = Projections(declared), Captures(declared)
        self.sources, self.queues = Sources(self.outbox), Queues(self.store)
        self.flows = Workflows(declared)
        self.workflow, self.signal, self.asignal = self.flows.workflow, self.flows.signal, self.flows.asignal
        self.deliveries = Deliveries(self.outbox, declared.route_to)
        if is_installed():
            sender = Requests(settings, KeyRing(self.store, settings).keys, run_body=RunCalls(self.outbox).body)
            self.registry.serve_http(sender, settings, batch=sender.batch)

    @property
    def settings(self) -> Settings:
        """The settings of this App; those of the database change with `connect`."""
        return self.outbox.settings

    @property
    def routes(self) -> tuple[Route, ...]:
        """Every route, in the order of their declarations."""
        return tuple(self.declarations.routes)

    def migrate(self) -> Migrated:
        """Creates or updates todoku's tables, and stores the schedules and hooks declared here. Can be repeated."""
        done = self.store.migrate()
        declare(self.store, self.plans)
        self.store.announce_hooks(self.registry.hooks)
        self.projections.announce()
        self.captures.announce()
        return done

    def connect(self, database: str, *, schema: str | None = None) -> None:
        """Moves the App, with its declarations, to another database. Not while a worker of this App runs."""
        url = str(read_secret("database", database, self.settings.secrets_dir))
        settings = msgspec.structs.replace(self.settings, database=url, schema=schema)
        self._database = opened = open_database(settings)
        self.store.close()
        self.store.connect(opened)
        self.outbox.connect(opened, settings)

    def close(self) -> None:
        """Stops bulk acts and closes every connection."""
        self.deliveries.bulk_acts.close()
        self.store.close()

    def about(self) -> About:
        """Returns what `todoku up` prints about the database."""
        database, counts = self._database, self.store.statistics.counts(max_age=60.0)
        return About(without_password(self.settings.database), database.dialect, database.describe(), counts)

    def worker(self, *, name: str | None = None, limit: int | None = None) -> Worker:
        """Creates a worker for everything declared here. `limit`: the most deliveries it claims."""
        # The heartbeat has a connection of its own: handlers that use up the others do not cost the lease.
        own = open_database(msgspec.structs.replace(self.settings, connections=1))
        heart = Store(own, ledger_ttl=self.settings.ledger_ttl)
        wrap_handlers(self.registry)
        worker = Worker(
            self.store, heart, self.registry, self.settings, telemetry=self.telemetry, name=name, limit=limit,
            plans=self.plans,
        )  # fmt: skip
        self.outbox.wake = worker.poke
        return worker

    @asynccontextmanager
    async def lifespan(self, _app: object = None) -> AsyncIterator[None]:
        """Runs a worker beside an ASGI application: `FastAPI(lifespan=box.lifespan)`."""
        await asyncio.to_thread(self.migrate)
        async with run_beside(self.worker()):
            yield

    def drain(self, *, limit: int | None = None) -> int:
        """Runs everything that is due and returns the number of settled attempts: for tests and scripts."""
        return run_until_idle(self.worker(limit=limit))

    async def adrain(self, *, limit: int | None = None) -> int:
        """Runs everything that is due and returns the number of settled attempts: for tests and scripts (async)."""
        return await self.worker(limit=limit).run(until_idle=True)

    @blocking("box")
    async def publish(
        self, event: str | Event, payload: object = None, *, tx: Any, **options: Unpack[PublishOptions]
    ) -> Message:
        """Publishes an event, or a topic and its payload, in your own transaction `tx`.

        It commits with your rows, or not at all (I2); `tx=None` is a transaction of its own. A repetition with the same
        idempotency key returns the earlier message with `duplicate=True`; the same key with another payload raises
        IdempotencyConflict. `delay`, `at`: later. `expires`: seconds after which it is not sent. `priority`: 0 to 15.
        """
        return (await self.outbox.insert([self.declarations.draft(event, payload, options)], tx))[0]

    apublish = asynchronous(publish)

    @blocking("box")
    async def publish_many(self, events: Iterable[tuple[str, object] | Event], *, tx: Any) -> list[Message]:
        """Publishes many events, or (topic, payload), in your transaction: all of them, or none."""
        return (await self.outbox.insert_many(self.declarations.drafts(events), tx)).all_messages()

    apublish_many = asynchronous(publish_many)

    @blocking("box")
    async def enqueue_many(self, calls: Iterable[Call[R]], *, tx: Any) -> list[Handle[R]]:
        """Stores many calls, made by `job.call(…)`, in your transaction: all of them, or none."""
        return await batches.insert_calls(self.outbox, calls, tx)

    aenqueue_many = asynchronous(enqueue_many)

    @blocking("box")
    async def batch(
        self, calls: Iterable[Call[Any]], *, tx: Any, then: Call[Any] | None = None, on: On = "finished"
    ) -> batches.Batch:
        """Stores calls, made by `job.call(…)`, as one batch, in your transaction: all of them, or none.

        `then` is called once, when all have ended; with `on="succeeded"` when all have succeeded, if need be after a
        replay. It is stored in the transaction that ends the last member. An empty batch is complete at once.
        """
        return await batches.insert_batch(self.outbox, calls, tx, then, on)

    abatch = asynchronous(batch)

    @blocking("box")
    async def chain(self, *calls: Call[Any], tx: Any) -> list[Handle[Any]]:
        """Stores calls that run one after the other, in your transaction; returns a handle of each.

        Each is stored in the transaction in which the one before it succeeds. An aborted one stops the chain until its
        replay succeeds. The handle of a call that is not stored yet raises NoSuchMessage.
        """
        return await batches.insert_chain(self.outbox, calls, tx)

    achain = asynchronous(chain)

    @blocking("box")
    async def batch_status(self, id: UUID) -> BatchStatus:
        """Returns how many members of a batch have ended. NoSuchMessage: there is none, or its retention has passed."""
        return await in_thread(batches.batch_status, self.outbox.store, id)

    abatch_status = asynchronous(batch_status)

    @blocking("box")
    async def handle(self, id: Id, destination: str | None = None) -> Handle[Any]:
        """Returns the handle of the only delivery of a message, or of the delivery with this number.

        AmbiguousMessage if the message has several: `destination` chooses one. NoSuchMessage if there is none.
        `job.handle(id)` is typed, and does not read the database.
        """
        return await in_thread(self.declarations.handle, id, destination)

    ahandle = asynchronous(handle)

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
        """Makes a function a job: `@box.job`, or `@box.job(name, queue=…, max_attempts=…, …)`.

        The name is the function's unless you give one. The options are explained at JobOptions.
        """
        if callable(name):
            return self.declarations.job(name, None, options)
        return lambda function: self.declarations.job(function, name, options)

    def on(self, topic: str | type[Any], *, name: str | None = None, **options: Unpack[JobOptions]) -> Declare:
        """Makes a function the consumer of a topic, a pattern, or an event class; the options are those of `job`.

        The function takes the event, after `ctx` if it has that parameter. The event is decoded as its annotation, else
        as the event class, else as JSON.
        """
        return self.declarations.consumer(topic, name, options)

    @overload
    def after(self, *events: End, to: Destination | Sender | str, **which: Unpack[EndingOptions]) -> None: ...
    @overload
    def after(self, *events: End, **options: Unpack[HookOptions]) -> Declare: ...
    def after(self, *events: End, to: Any = None, **options: Unpack[HookOptions]) -> Any:
        """Calls a function after each delivery that has "succeeded" or was "aborted", or sends the Ending to `to`.

        The function takes an `Ending`, after `ctx` if it has that parameter, and becomes a job with these options. Its
        call is stored in the transaction that ends the delivery, once, and retried like any other. `topic` (a pattern),
        `destination` and `from_queue` select the deliveries; `queue` is the hook's own.
        """
        return hooks.declare(self.declarations, events, to, options)

    def event(self, topic: str, **options: Unpack[EventOptions]) -> Callable[[E], E]:
        """Makes a dataclass, msgspec struct or pydantic model an event of `topic`. `key`: the field that orders it.

        `encrypted`: its messages are stored encrypted; their key is not. `search`: fields to find new messages by.
        """
        return self.declarations.event(topic, options)

    def schema(self, topic: str, schema: Mapping[str, Any] | str) -> None:
        """Requires payloads of `topic`, or of a pattern, to fit this JSON Schema: a mapping, or JSON text.

        Checked at publish, which stores nothing then, and again before a message is run or sent.
        """
        self.outbox.schemas.declare(topic, schema)

    def secrets(self, provider: str, resolve: Resolve) -> None:
        """Makes this function, plain or async, the provider of secrets: `Ref("provider:path")` calls it with `path`."""
        self.outbox.secrets.add(provider, resolve)

    def route(
        self, topic: str, to: Destination | Job[..., Any] | Sender | str, **options: Unpack[RouteOptions]
    ) -> None:
        """Sends messages whose topic matches to a destination: `*` is one word of the topic, `**` any number.

        `to` is a destination, a URL (`https://…`, as `todoku.http`), a plain function of an Outgoing, a job, or the
        name of a destination that another process serves. The options are explained at RouteOptions.
        """
        self.declarations.route(topic, to, options)

    def projection(
        self, name: str, *, topics: str | Sequence[str], key: str, to: SearchServer | Chronicle,
        **options: Unpack[ProjectionOptions],
    ) -> Projection:  # fmt: skip
        """Keeps another store equal to the events of `topics`, by key: a search index, or the entries of a table.

        `key`: the field of payloads that is the key of messages without one. The options are in ProjectionOptions.
        """
        return self.projections.declare(name, topics, key, to, options)

    def capture(self, table: str, *, topic: str, key: str | Sequence[str], **how: Unpack[CaptureOptions]) -> Capture:
        """Publishes the changes of a PostgreSQL table, ordered by `key`; `topic` may have {op}, {table}, {schema}."""
        return self.captures.declare(table, topic, key, how)

    def cron(self, expression: str, *, tz: str = "UTC", **options: Unpack[TimedOptions]) -> Declare:
        """Calls a function by a cron expression on the clocks of `tz`: `@box.cron("0 9 * * *", tz="Asia/Tokyo")`.

        The function becomes a job with these options, unless it is one, and is called with `args` and `kwargs`. `name`
        is the schedule's, and that of a new job. `missed`: for slots that no worker fired in time, "skip" fires none,
        "once" one for all of them, "all" each. `ctx.scheduled_at` is the slot.
        """
        return self._timetable.decorator(timing(expression, None, tz), options)

    def every(self, duration: Duration, *, anchor: datetime | None = None, **options: Unpack[TimedOptions]) -> Declare:
        """Calls a function at an interval, counted from `anchor` (1970, UTC): `@box.every(60)`. Else like `cron`."""
        return self._timetable.decorator(timing(None, duration, anchor=anchor), options)

    def schedule(self, name: str, what: Any, payload: object = None, **when: Unpack[Timing]) -> None:
        """Declares a schedule for a job, a call of one (`job.call(…)`), an event, or a topic with its payload.

        `cron` (and `tz`) or `every` (and `anchor`) say when. An event goes to the routes declared before this call.
        """
        self._timetable.declare(name, what, payload, *timed(**when))

    def ingest(
        self, source: str, verifier: Verifier, *, topic: str, model: Any = None, key: str | None = None,
        dedupe_for: Duration | None = None, reopen: bool = True,
    ) -> None:  # fmt: skip
        """Receives the events that `source` posts: verified, stored in one commit, and then acknowledged with 204.

        `verifier`: `todoku.stripe(secrets=[…])`, `github`, `slack`, `shopify`, `standard_webhooks`, `hmac`. `topic`: of
        its messages; `{type}` is the event's type, `{data.object.object}` a value in its JSON. `model`: the class of
        events. `key`: the path of the value that orders them. An event that comes again within `dedupe_for` (setting
        `ingest_dedupe`, 90 days) is acknowledged and not queued; if it is a dead letter, `reopen` replays it.
        """
        self.sources.declare(source, verifier, topic=topic, model=model, key=key, dedupe_for=dedupe_for, reopen=reopen)

    @cached_property
    def ingest_app(self) -> Any:
        """The ASGI application that the sources declared here post to: `api.mount("/ingest", box.ingest_app)`."""
        return registered_shells().ingest_app(self)

    @cached_property
    def metrics_app(self) -> Any:
        """The ASGI application of what this process counted: `api.add_route("/metrics", box.metrics_app)`."""
        return registered_shells().metrics_app(self)

    def web(self, auth: Callable[[Any], Any] | None = None) -> Any:
        """Creates the dashboard as an ASGI application: `api.mount("/todoku", box.web())`.

        `auth`: a function, async or not, that takes the request (Starlette's) and returns who makes it: a
        `todoku.web.viewer.Viewer`, a role ("viewer", "operator" or "admin"), a response to send instead, or None.
        Without it people sign in to the dashboard with a token, a password or the OpenID provider of the settings.
        """
        return registered_shells().web_app(self, auth)

    def receiver(self, together: GroupCommit) -> Ingest:
        """Creates the receiver of the sources declared here; it stores events by the group commit `together`."""
        return Ingest(self.outbox, self.sources, lambda: self.declarations.routes, together)

    @property
    def ledger(self) -> Ledger:
        """Your own idempotency keys: `once`, `conclude`, `entry`."""
        return Ledger(self.outbox)

    def once(self, key: str, *, scope: str, tx: Any, body: object = None) -> Block[Answer]:
        """Does something once for a key: `with box.once(key, scope="refunds", tx=db) as done:`, or `async with`.

        If `done.first`, do it, and `done.store(response)`. Otherwise `done.response` is the stored response. Another
        `body` raises IdempotencyConflict. The entry commits with your rows (I2). With `tx=None` the key is reserved
        while the block runs, and another caller gets InProgress.
        """
        return self.ledger.once(key, scope=scope, tx=tx, body=body)

    def inbox(self, consumer: str) -> Inbox:
        """The messages a consumer has seen: `with box.inbox("points").once(message_id, tx=db) as first:`."""
        return Inbox(self.outbox, consumer)

    def replay(
        self, *ids: Id, reason: str | None = None, by: str, why: str, dry_run: bool = False, limit: int | None = None,
        rate: float | None = None, again: bool = False,
    ) -> Replayed:  # fmt: skip
        """Runs dead letters again, by id or by reason; see `box.deliveries.replay`, which has an async form."""
        return self.deliveries.replay(
            *ids, reason=reason, by=by, why=why, dry_run=dry_run, limit=limit, rate=rate, again=again
        )
