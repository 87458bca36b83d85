"""Stores drafts: in the caller's transaction, or in one of their own. Every publish ends here."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, Protocol, TypeVar
from uuid import UUID

import msgspec

from todoku.core.ending import Following, NewBatch
from todoku.core.ending import following_drafts as later_drafts
from todoku.core.errors import BlockingCall, InvalidMessage, TransactionError
from todoku.core.identity import uuid7, uuids7
from todoku.core.message import Alike, Draft, Message
from todoku.core.settings import Settings
from todoku.core.topic_pattern import Route
from todoku.engine.encryption.opener import Opener
from todoku.engine.encryption.sealer import Sealer
from todoku.engine.encryption.secret_ref import SecretSources
from todoku.engine.jobs.decoders import Schemas
from todoku.engine.observability.log import Log
from todoku.engine.observability.telemetry import Telemetry
from todoku.engine.observability.tracing import inject
from todoku.engine.publish import (
    Encoded,
    MessageOptions,
    PreparedDraft,
    check_sizes,
    encode,
    fill,
    fills_alike,
    prepare,
)
from todoku.engine.random_bytes import random_16
from todoku.engine.searched_fields import SearchedFields
from todoku.engine.shared_commit import MOST as SHARED
from todoku.engine.shared_commit import SharedCommit
from todoku.engine.twins import Awaited, later, now, refuse_in_event_loop
from todoku.store.batches import begin
from todoku.store.database import Database, DialectName
from todoku.store.join import Savepoint, run, run_async
from todoku.store.publish import Publishing, is_plain, publish
from todoku.store.publish_parts import PART, StoredParts, Unbuilt, publish_parts
from todoku.store.sql import Steps
from todoku.store.store import Store

T = TypeVar("T")


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """The options of an App that concern publishing."""

    require_tx: bool = False
    no_route: Literal["error", "dead_letter"] = "error"


class Instead(Protocol):
    """A stand-in for the store: a test that runs jobs where they are enqueued."""

    def put(self, drafts: list[Draft], tx: Any) -> list[Message]:
        """As `Outbox.put`."""

    async def aput(self, drafts: list[Draft], tx: Any) -> list[Message]:
        """As `Outbox.aput`."""


class Outbox:
    """Checks and stores drafts of events and of jobs."""

    def __init__(
        self, store: Store, database: Database, settings: Settings, policy: Policy, telemetry: Telemetry
    ) -> None:
        self.store = store
        self.settings = settings
        self.telemetry = telemetry
        self._database = database
        self._policy = policy
        self.schemas = Schemas()
        """The schemas of payloads, by topic."""
        self.sealer = Sealer(settings)
        self.searched = SearchedFields(settings)
        """The payload fields that are kept as labels, by topic."""
        self.opener = Opener(settings.master_keys, store, monotonic=time.monotonic)
        self.secrets = SecretSources(settings.secrets_dir)
        self.instead: Instead | None = None
        self._shared = SharedCommit(self._store_now, self._stored)
        self.wake: Callable[[], None] = _nothing
        """Called after a commit without `tx`, so that a worker in this process does not wait for its next poll."""

    def connect(self, database: Database, settings: Settings) -> None:
        """Changes to another database, which the store already uses."""
        self._database, self.settings = database, settings
        self.sealer.forget()
        self.opener = Opener(settings.master_keys, self.store, monotonic=time.monotonic)

    def draft(self, topic: str, payload: object, options: MessageOptions, routes: Sequence[Route]) -> Draft:
        """Returns a checked draft that carries the current trace, or raises InvalidMessage."""
        return self.fill(self.prepare(topic, options, routes), new_id(), payload)

    def prepare(self, topic: str, options: MessageOptions, routes: Sequence[Route]) -> PreparedDraft:
        """Checks how messages are to be published: they carry the current trace. InvalidMessage."""
        headers = inject(options.headers)
        return prepare(
            topic,
            options if headers is options.headers else msgspec.structs.replace(options, headers=headers),
            routes,
            max_payload_bytes=self.settings.max_payload_bytes,
            no_route=self._policy.no_route,
        )

    def is_current(self, prepared: PreparedDraft) -> bool:
        """Whether it would be prepared the same way now. One with headers never is: they may be those of a trace."""
        same = prepared.max_payload_bytes == self.settings.max_payload_bytes
        return same and prepared.options.headers is None and inject(None) is None

    def fill(self, prepared: PreparedDraft, id: UUID, payload: object) -> Draft:
        """Returns the checked draft of one message, or raises InvalidMessage."""
        return self.finished(fill(prepared, id, self.encoded(payload)))

    def alike(self, prepared: PreparedDraft, payloads: list[str]) -> Alike | None:
        """Returns checked messages with these JSON payloads. None: filling gives them more than ids and payloads."""
        if not fills_alike(prepared) or not is_plain(prepared.draft):
            return None
        seals = self.sealer.is_used and self.sealer.is_encrypted(prepared.draft.topic)
        if seals or self.schemas.declared or self.searched.declared:
            return None
        check_sizes(prepared, payloads)
        return Alike(prepared.draft, new_ids(len(payloads)), payloads)

    def encoded(self, payload: object) -> Encoded | bytes:
        """Returns the payload in the form in which it is stored, or raises InvalidMessage."""
        if isinstance(payload, bytes | Encoded):
            return payload
        with self.secrets.near():
            return Encoded(encode(payload))

    def finished(self, made: Draft) -> Draft:
        """Returns the draft with the labels of its topic, encrypted if its topic is.

        InvalidMessage: it breaks the schema of its topic.
        """
        if self.schemas.declared and made.payload is not None:
            self.schemas.check(made.topic, made.payload)
        # A stand-in for the store stores nothing, so nothing is encrypted for it.
        seals = self.sealer.is_used and self.instead is None and self.sealer.is_encrypted(made.topic)
        if self.searched.declared and made.payload is not None:
            made = self.searched.labelled(made, keyed=seals)
        return self.sealer.seal(made) if seals else made

    def put(self, drafts: list[Draft], tx: Any, *, twin: str) -> list[Message]:
        """Stores drafts, all or none. `twin`: the call that BlockingCall suggests to await instead."""
        return now(self.insert(drafts, tx), twin)

    async def aput(self, drafts: list[Draft], tx: Any) -> list[Message]:
        """Stores drafts, all or none (async)."""
        return await later(self.insert(drafts, tx))

    # ---------------------------------------------------------------- for implementations (engine/twins.py)

    async def insert(self, drafts: list[Draft], tx: Any, *, batch: NewBatch | None = None) -> list[Message]:
        """Stores drafts, all or none, in `tx` or in a transaction of their own; with the batch they belong to."""
        self._require(tx)
        if self.instead is not None:
            return (await _Instead(self.instead, _with_later(drafts, batch), tx))[: len(drafts)]
        if tx is None and batch is None and self._may_share(drafts):
            return await self._failing(_SharedTransaction(self._shared, drafts), len(drafts))
        steps = self._steps(drafts, batch, whole=True) if tx is None else self._joining(drafts, batch)
        return await self._counted(self.run(tx, steps), drafts, tx)

    async def insert_many(self, many: Unbuilt, tx: Any) -> StoredParts:
        """Stores messages like `insert`. On PostgreSQL many are sent in parts, while the next part is built.

        Not in a caller's transaction: it may be committed although a draft could not be built. If an async caller is
        cancelled meanwhile, nothing is stored; if it is cancelled in the commit, nobody knows.
        """
        number, is_one = len(many), tx is not None or self._database.dialect == "sqlite"
        if number <= PART or is_one or self.instead is not None:
            drafts = many.build(0, number)
            return StoredParts([], drafts, await self.insert(drafts, tx))
        self._require(tx)
        storing = _Parts(self.store, self._database.dialect, None, publish_parts(self.publishing(), many))
        stored = await self._failing(storing, number)
        for some, _ in stored.alike:
            self.telemetry.published_alike(some)
        self._stored(stored.drafts, stored.messages)
        return stored

    async def _counted(self, storing: Awaited[list[Message]], drafts: list[Draft], tx: Any) -> list[Message]:
        """Stores drafts and counts them."""
        messages = await self._failing(storing, len(drafts))
        if tx is None:
            self.wake()
        self.telemetry.published(drafts, messages)
        return messages

    async def _failing(self, storing: Awaited[T], number: int) -> T:
        """Stores so many drafts, and counts them if they could not be stored."""
        try:
            return await storing
        except (BlockingCall, InvalidMessage):  # nothing was tried, or a draft could not be built
            raise
        except Exception as error:
            self.telemetry.publish_failed(error, number)
            raise

    def _may_share(self, drafts: list[Draft]) -> bool:
        """Whether drafts may be stored in one transaction with those of other threads: they take no lock."""
        return len(drafts) <= SHARED and all(map(is_plain, drafts))

    def _store_now(self, drafts: list[Draft]) -> list[Message]:
        return self.store.run(publish(self.publishing(), drafts, whole=True))

    def _stored(self, drafts: Sequence[Draft], messages: Sequence[Message]) -> None:
        self.wake()
        self.telemetry.published(drafts, messages)

    async def try_insert(self, drafts: list[Draft], tx: Any) -> list[Message] | None:
        """Stores drafts like `insert`, but logs a failure of the database and returns None (S3-72).

        The caller's own transaction stays usable.
        """
        self._require(tx)
        if self.instead is not None:
            return await self.insert(drafts, tx)
        try:
            if tx is None:
                return await self.insert(drafts, None)
            async with Savepoint(self.publishing(), partial(self.run, tx)):
                return await self.insert(drafts, tx)
        except TransactionError:
            raise  # a mistake in the program, or the caller's own rows are gone
        except Exception as error:  # noqa: BLE001 - any error of the database or its driver
            self._log_failure(drafts, error)
            return None

    def run(self, tx: Any, steps: Steps[T]) -> Awaited[T]:
        """Runs statements in `tx`, or, if that is None, in a transaction of their own."""
        return _Transaction(self.store, self._database.dialect, tx, steps)

    def publishing(self) -> Publishing:
        """The facts about the database that statements are built from, as of now."""
        database = self._database
        return Publishing(database.dialect, database.queries, database.now(), self.settings.notify)

    def _steps(self, drafts: list[Draft], batch: NewBatch | None, *, whole: bool = False) -> Steps[list[Message]]:
        to = self.publishing()
        if batch is None:
            return publish(to, drafts, whole=whole)
        return begin(to, [Following(tuple(drafts), batch)])

    def _joining(self, drafts: list[Draft], batch: NewBatch | None) -> Steps[list[Message]]:
        yield from self._database.check_tx()
        return (yield from self._steps(drafts, batch))

    def _require(self, tx: Any) -> None:
        if tx is None and self._policy.require_tx:
            raise InvalidMessage("this App requires tx=", hint="pass your connection or session")

    def _log_failure(self, drafts: list[Draft], error: Exception) -> None:
        self.telemetry.fell_back(len(drafts))
        for each in drafts:
            Log(message_id=str(each.id), topic=each.topic).error("ENQUEUE_FAILED", error_type=type(error).__name__)


class _Transaction(Awaited[T]):
    """Statements in the caller's transaction, or in one of their own."""

    def __init__(self, store: Store, dialect: DialectName, tx: Any, steps: Steps[T]) -> None:
        self._store = store
        self._dialect = dialect
        self._tx = tx
        self._steps = steps

    def now(self, twin: str) -> T:
        if self._tx is None:
            refuse_in_event_loop(twin)
            return self._store.run(self._steps)
        return run(self._tx, self._dialect, self._steps, twin=twin)

    async def later(self) -> T:
        if self._tx is None:
            return await asyncio.to_thread(self._store.run, self._steps)
        return await run_async(self._tx, self._dialect, self._steps)


class _SharedTransaction(Awaited[list[Message]]):
    """Drafts that may be stored in one transaction with those of other threads."""

    def __init__(self, shared: SharedCommit, drafts: list[Draft]) -> None:
        self._shared = shared
        self._drafts = drafts

    def now(self, twin: str) -> list[Message]:
        refuse_in_event_loop(twin)
        return self._shared.put(self._drafts)

    async def later(self) -> list[Message]:
        return await asyncio.to_thread(self._shared.put, self._drafts)


class _Parts(_Transaction[T]):
    """Statements in a transaction of their own. A cancelled async caller waits until its thread has rolled back."""

    async def later(self) -> T:
        stopped = threading.Event()
        thread = asyncio.ensure_future(asyncio.to_thread(self._store.run, _until(stopped, self._steps)))
        try:
            return await asyncio.shield(thread)
        except asyncio.CancelledError:
            stopped.set()
            await asyncio.wait([thread])
            thread.exception()  # it was to fail
            raise


class _Stopped(Exception):
    """The caller has gone: the transaction is to be rolled back."""


def _until(stopped: threading.Event, steps: Steps[T]) -> Steps[T]:
    """The same work, which ends with an error after the statement during which it was stopped."""
    try:
        statement = next(steps)
        while True:
            rows = yield statement
            if stopped.is_set():
                raise _Stopped
            statement = steps.send(rows)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


class _Instead(Awaited[list[Message]]):
    """Drafts for the stand-in of the store."""

    def __init__(self, instead: Instead, drafts: list[Draft], tx: Any) -> None:
        self._instead = instead
        self._drafts = drafts
        self._tx = tx

    def now(self, twin: str) -> list[Message]:
        if self._tx is None:
            refuse_in_event_loop(twin)
        return self._instead.put(self._drafts, self._tx)

    async def later(self) -> list[Message]:
        return await self._instead.aput(self._drafts, self._tx)


def _with_later(drafts: list[Draft], batch: NewBatch | None) -> list[Draft]:
    """The drafts, and those that follow the batch: a stand-in for the store runs both."""
    return drafts if batch is None else [*drafts, *later_drafts(batch)]


def new_id() -> UUID:
    """Returns a new public message id: the time, then unguessable bits."""
    return uuid7(time.time_ns() // 1_000_000, random_16())


def new_ids(number: int) -> list[UUID]:
    """Returns new public message ids in ascending order: the rows of a batch go to the end of the index."""
    return uuids7(time.time_ns() // 1_000_000, os.urandom(10 * number))


def _nothing() -> None:
    """No worker in this process."""
