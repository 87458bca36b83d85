"""The composition root: the only place that names a backend, and the object people hold in their hands."""

from __future__ import annotations

import asyncio
import os
import tomllib
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, TypedDict, TypeVar, Unpack
from uuid import UUID

import msgspec

from todoku.core.alert_settings import SECRET_ALERTS
from todoku.core.errors import InvalidAct, InvalidMessage, InvalidSetting, UnknownDatabase
from todoku.core.http_request import QUEUE, SCHEMES
from todoku.core.message import Draft, Message
from todoku.core.outcome import Duration
from todoku.core.settings import Settings, read_settings
from todoku.destinations.http_requests import Requests
from todoku.destinations.http_sender import is_installed
from todoku.engine import operate
from todoku.engine.diagnostics.summary import About, without_password
from todoku.engine.embedded_worker import run_beside, run_until_idle
from todoku.engine.group_commit import GroupCommit
from todoku.engine.http.signing_keys import KeyRing
from todoku.engine.inbox import Inbox
from todoku.engine.ingest.receive import Ingest
from todoku.engine.ingest.source import IngestDeclarations, Sources
from todoku.engine.jobs.batches import Batches, without_tx
from todoku.engine.jobs.event import Event
from todoku.engine.jobs.handle import Handle, signed
from todoku.engine.jobs.hooks import HookDeclarations
from todoku.engine.jobs.job import Call
from todoku.engine.ledger import Answer, Ledger
from todoku.engine.observability.sentry import wrap_handlers
from todoku.engine.observability.telemetry import Telemetry
from todoku.engine.operate import Replayed
from todoku.engine.outbox import Outbox, Policy, new_id, refuse_in_event_loop
from todoku.engine.publish import MessageOptions
from todoku.engine.registry import Target
from todoku.engine.schedule import declare
from todoku.engine.transaction_block import Block
from todoku.engine.worker.worker import Worker
from todoku.shells import registered_shells
from todoku.store.database import Database, Migrated
from todoku.store.filter import Filter
from todoku.store.store import Store

__all__ = ["App", "load_settings", "new_id", "open_database", "printed_migrations"]

R = TypeVar("R")


def load_settings(**given: object) -> Settings:
    """Settings of this process: arguments, then the environment, then `todoku.toml`."""
    file = Path("todoku.toml")
    try:
        stored = tomllib.loads(file.read_text("utf-8")) if file.is_file() else {}
    except (OSError, ValueError) as error:  # not ours to read, not UTF-8, not TOML
        raise InvalidSetting(f"todoku.toml cannot be read: {error}", hint="mend it, or move it away") from error
    return read_settings(_with_secret_files(os.environ), stored, **given)


_SECRETS: Final = ("TODOKU_DATABASE", "DATABASE_URL", "TODOKU_MASTER_KEYS", "TODOKU_TOKEN", "TODOKU_SIGNING_KEYS")


def _with_secret_files(environ: Mapping[str, str]) -> dict[str, str]:
    """NAME_FILE names a file that holds NAME: how secrets reach containers."""
    read = dict(environ)
    for name in (*_SECRETS, *SECRET_ALERTS):
        if path := environ.get(f"{name}_FILE"):
            try:
                read[name] = Path(path).read_text("utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidSetting(f"{name}_FILE cannot be read: {error}", hint="does the file exist?") from error
    return read


def open_database(settings: Settings) -> Database:
    """The database a URL names."""
    scheme, separator, rest = settings.database.partition("://")
    if scheme == "sqlite":
        from todoku.store.sqlite.database import SqliteDatabase  # noqa: PLC0415 - only the backend in use

        return SqliteDatabase(settings)
    if separator and scheme.split("+")[0] in ("postgresql", "postgres"):
        try:
            from todoku.store.postgres.database import PostgresDatabase  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise UnknownDatabase(
                "PostgreSQL needs psycopg, which is not installed", hint='pip install "todoku[postgres]"'
            ) from error
        return PostgresDatabase(_replaced(settings, f"postgresql://{rest}"))
    raise UnknownDatabase(
        f"{scheme or settings.database!r} is no database todoku knows",
        hint="use sqlite:///name.db or postgresql://user@host/name",
    )


def _replaced(settings: Settings, url: str) -> Settings:
    return msgspec.structs.replace(settings, database=url)


def printed_migrations(database: str | None, schema: str | None) -> str:
    """The whole schema as one SQL script, for people who apply SQL with their own tools."""
    opened = open_database(load_settings(database=database, schema=schema))
    return opened.migration_script()


class PublishOptions(TypedDict, total=False):
    """How to publish: the keywords of `publish`, beside `tx`."""

    key: str | None
    idempotency_key: str | None
    delay: Duration | None
    at: datetime | None
    expires: Duration | None
    priority: int
    headers: Mapping[str, str] | None


class App(HookDeclarations, Batches, IngestDeclarations):
    """Your messages and where they go. Examples call it `box`.

    `database` is `sqlite:///file.db` or `postgresql://…`; None reads TODOKU_DATABASE or DATABASE_URL.
    `schema` is the PostgreSQL schema todoku lives in (None: wherever the search path leads).
    `require_tx`: a publish or enqueue without `tx=` is an error.
    `no_route`: what is published and no route takes is an error, or a dead letter.
    """

    def __init__(
        self,
        database: str | None = None,
        *,
        schema: str | None = None,
        require_tx: bool = False,
        no_route: Literal["error", "dead_letter"] = "error",
    ) -> None:
        settings = load_settings(database=database, schema=schema)
        self._database = open_database(settings)
        self.store = Store(self._database, ledger_ttl=settings.ledger_ttl, notify=settings.notify)
        policy = Policy(require_tx=require_tx, no_route=no_route)
        self.telemetry = Telemetry(span_ratio=settings.span_ratio)
        self.sources = Sources()
        super().__init__(Outbox(self.store, self._database, settings, policy, self.telemetry), settings)
        if is_installed():
            self._serve_http(Requests(settings, KeyRing(self.store, settings).keys))

    def _serve_http(self, sender: Requests) -> None:
        """Every worker of every App sends requests, to whatever host."""
        for name in SCHEMES:
            self.registry.add(
                Target(
                    name=name, queue=QUEUE, backoff=self.settings.backoff, sender=sender, batch=sender.batch,
                    at_once=self.settings.http_per_host,
                )
            )  # fmt: skip

    def migrate(self) -> Migrated:
        """Create or update todoku's tables, and store the schedules declared here; nothing, if all that is there."""
        done = self.store.migrate()
        declare(self.store, self.plans)
        self.store.announce_hooks(self.registry.hooks)
        return done

    def connect(self, database: str, *, schema: str | None = None) -> None:
        """Leave this database for another; what is declared stays. Not while a worker of this App runs."""
        settings = msgspec.structs.replace(self.settings, database=database, schema=schema)
        opened = open_database(settings)
        self.store.close()
        self._database = opened
        self.store.connect(opened)
        self.settings = settings
        self.outbox.connect(opened, settings)

    def close(self) -> None:
        """Give back every connection."""
        self.store.close()

    def about(self) -> About:
        """What is in the database, for `todoku up`."""
        counts = self.store.statistics.counts(max_age=60.0)
        shown = without_password(self.settings.database)
        return About(shown, self._database.dialect, self._database.describe(), counts)

    # ----------------------------------------------------------------------------------------- running

    def worker(self, *, name: str | None = None, limit: int | None = None) -> Worker:
        """A worker for everything declared here. `limit`: it claims no more than so many."""
        # The heartbeat has a connection of its own: whatever handlers do to the others, the lease is kept.
        heart = Store(
            open_database(msgspec.structs.replace(self.settings, connections=1)), ledger_ttl=self.settings.ledger_ttl
        )
        wrap_handlers(self.registry)
        worker = Worker(
            self.store, heart, self.registry, self.settings, telemetry=self.telemetry, name=name, limit=limit,
            plans=self.plans,
        )  # fmt: skip
        self.outbox.wake = worker.poke
        return worker

    @asynccontextmanager
    async def lifespan(self, _app: object = None) -> AsyncIterator[None]:
        """Run a worker beside an ASGI application: `FastAPI(lifespan=box.lifespan)`."""
        await asyncio.to_thread(self.migrate)
        async with run_beside(self.worker()):
            yield

    def drain(self, *, limit: int | None = None) -> int:
        """Run what is due, here and now, and return how many attempts were settled: for tests and scripts."""
        return run_until_idle(self.worker(limit=limit))

    async def adrain(self, *, limit: int | None = None) -> int:
        """As `drain`, for async code."""
        return await self.worker(limit=limit).run(until_idle=True)

    # ----------------------------------------------------------------------------------------- publish

    def publish(
        self, event: str | Event, payload: object = None, *, tx: Any, **options: Unpack[PublishOptions]
    ) -> Message:
        """Publish an event, or a topic and its payload, in your own transaction `tx`.

        It commits with your rows, or not at all (I2); `tx=None` is a transaction of its own, on purpose. With an
        idempotency key, a repetition returns the earlier message with `duplicate=True`; the same key with another
        payload raises IdempotencyConflict. `delay`, `at`: later. `expires`: not after so long. `priority`: 0 to 15.
        """
        return self._publish([self._drafted(event, payload, options)], tx)[0]

    async def apublish(
        self, event: str | Event, payload: object = None, *, tx: Any, **options: Unpack[PublishOptions]
    ) -> Message:
        """As `publish`, for async code."""
        return (await self._apublish([self._drafted(event, payload, options)], tx))[0]

    def publish_many(self, events: Iterable[tuple[str, object] | Event], *, tx: Any) -> list[Message]:
        """Publish many events, or (topic, payload), at once, in your transaction: all of them, or none."""
        return self._publish(self._all_drafted(events), tx, twin="box.apublish_many(…)")

    async def apublish_many(self, events: Iterable[tuple[str, object] | Event], *, tx: Any) -> list[Message]:
        """As `publish_many`, for async code."""
        return await self._apublish(self._all_drafted(events), tx)

    def enqueue_many(self, calls: Iterable[Call[R]], *, tx: Any) -> list[Handle[R]]:
        """Store many calls, made by `job.call(…)`, at once, in your transaction: all of them, or none."""
        calls = without_tx(calls)
        messages = self.outbox.put([call.draft() for call in calls], tx, twin="box.aenqueue_many(…)")
        return [call.handle(message) for call, message in zip(calls, messages, strict=True)]

    async def aenqueue_many(self, calls: Iterable[Call[R]], *, tx: Any) -> list[Handle[R]]:
        """As `enqueue_many`, for async code."""
        calls = without_tx(calls)
        messages = await self.outbox.aput([call.draft() for call in calls], tx)
        return [call.handle(message) for call, message in zip(calls, messages, strict=True)]

    # ------------------------------------------------------------------------------------------ ingest

    @cached_property
    def ingest_app(self) -> Any:
        """An ASGI application that takes in what the sources declared here post: `api.mount("/ingest", …)`."""
        return registered_shells().ingest_app(self)

    def receiver(self, together: GroupCommit) -> Ingest:
        """Who takes in the events of the sources declared here, and stores them with what others store."""
        return Ingest(self.outbox, self.sources, lambda: self._routes, together)

    # -------------------------------------------------------------------------------------------- once

    @property
    def ledger(self) -> Ledger:
        """Ledger entries of your own: `once`, `conclude`, `entry`."""
        return Ledger(self.outbox)

    def once(self, key: str, *, scope: str, tx: Any, body: object = None) -> Block[Answer]:
        """Do something once for a key: `with box.once(key, scope="refunds", tx=db) as done:`, or `async with`.

        `done.first`: do it, and `done.store(response)`. Otherwise `done.response` is what was stored. The same key with
        another `body` raises IdempotencyConflict. The entry commits with your rows (I2), and lasts `ledger_ttl`; with
        `tx=None` it is held while the block runs, and whoever else comes meanwhile is told InProgress.
        """
        return self.ledger.once(key, scope=scope, tx=tx, body=body)

    def inbox(self, consumer: str) -> Inbox:
        """What a consumer has seen: `with box.inbox("points").once(message_id, tx=db) as first:`."""
        return Inbox(self.outbox, consumer)

    # ------------------------------------------------------------------------------- what a person does

    def replay(
        self,
        *ids: UUID | int | str,
        reason: str | None = None,
        by: str,
        why: str,
        dry_run: bool = False,
        limit: int | None = None,
        rate: float | None = None,
    ) -> Replayed:
        """Let dead letters run again, from attempt 0, audited: by id of message or delivery, or all of a `reason`.

        `limit`: at most so many. `rate`: at most so many a second. `dry_run`: only say what would be replayed.
        """
        if not ids and reason is None:
            raise InvalidAct("replay what?", hint="give ids, or reason=…: box.replay(reason='TIMEOUT', by=…, why=…)")
        refuse_in_event_loop("asyncio.to_thread(box.replay, …)")
        which = Filter(ids=operate.resolve(self.store, ids) if ids else None, reason=reason)
        done = operate.replay(self.store, which, signed(by, why), limit=limit, rate=rate, dry_run=dry_run)
        if not dry_run:
            self.outbox.wake()
        return done

    # ------------------------------------------------------------------------------------------- inside

    def _drafted(self, event: str | Event, payload: object, options: PublishOptions) -> Draft:
        topic, body, key = self._events.split(event, payload)
        given: PublishOptions = {"key": key, **options}
        return self._draft(topic, body, MessageOptions(**given))

    def _all_drafted(self, events: Iterable[tuple[str, object] | Event]) -> list[Draft]:
        pairs = (event if isinstance(event, tuple) else _alone(event) for event in events)
        return [self._drafted(event, payload, {}) for event, payload in pairs]

    def _draft(self, topic: str, payload: object, options: MessageOptions) -> Draft:
        return self.outbox.draft(topic, payload, options, self._routes)

    def _publish(self, drafts: list[Draft], tx: Any, *, twin: str = "box.apublish(…)") -> list[Message]:
        return self.outbox.put(drafts, tx, twin=twin)

    async def _apublish(self, drafts: list[Draft], tx: Any) -> list[Message]:
        return await self.outbox.aput(drafts, tx)


def _alone(event: object) -> tuple[Any, None]:
    if isinstance(event, str):
        raise InvalidMessage(f"{event!r} is a topic without its payload", hint="pass (topic, payload), or an event")
    return event, None
