"""The end of every publish: drafts go into the caller's transaction, or into one of their own."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol
from uuid import UUID

import msgspec

from todoku.core.ending import Following, NewBatch, following_drafts
from todoku.core.errors import BlockingCall, InvalidMessage, TransactionError
from todoku.core.identity import uuid7
from todoku.core.message import Draft, Message
from todoku.core.settings import Settings
from todoku.core.topic_pattern import Route
from todoku.engine.encryption.opener import Opener
from todoku.engine.encryption.sealer import Sealer
from todoku.engine.encryption.secret_ref import SecretSources
from todoku.engine.jobs.schema import Schemas
from todoku.engine.observability.log import Log
from todoku.engine.observability.telemetry import Telemetry
from todoku.engine.observability.tracing import inject
from todoku.engine.publish import Encoded, MessageOptions, draft, encode
from todoku.store.batches import begin
from todoku.store.database import Database
from todoku.store.join import run, run_async
from todoku.store.publish import Publishing, publish
from todoku.store.savepoint import asavepoint, savepoint
from todoku.store.statements import Steps
from todoku.store.store import Store


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What an App allows its publishers."""

    require_tx: bool = False
    no_route: Literal["error", "dead_letter"] = "error"


class Instead(Protocol):
    """Somebody who takes drafts in the store's place: a test that runs jobs where they are enqueued."""

    def put(self, drafts: list[Draft], tx: Any) -> list[Message]:
        """As `Outbox.put`."""

    async def aput(self, drafts: list[Draft], tx: Any) -> list[Message]:
        """As `Outbox.aput`."""


class Outbox:
    """Takes drafts: of events and of jobs, from blocking and from async code, with `tx` and without."""

    def __init__(
        self, store: Store, database: Database, settings: Settings, policy: Policy, telemetry: Telemetry
    ) -> None:
        self.store = store
        self.settings = settings
        self.telemetry = telemetry
        self._database = database
        self._policy = policy
        self.schemas = Schemas()
        """What payloads must look like, by topic."""
        self.sealer = Sealer(settings)
        self.opener = Opener(settings.master_keys, store, monotonic=time.monotonic)
        self.secrets = SecretSources(settings.secrets_dir)
        self.instead: Instead | None = None
        self.wake: Callable[[], None] = _nothing
        """Called after a commit of our own: a worker in this process need not wait for its next poll."""

    def connect(self, database: Database, settings: Settings) -> None:
        """From now on, another database; the store is on it already."""
        self._database, self.settings = database, settings
        self.sealer.forget()
        self.opener = Opener(settings.master_keys, self.store, monotonic=time.monotonic)

    def draft(self, topic: str, payload: object, options: MessageOptions, routes: Sequence[Route]) -> Draft:
        """A checked draft that carries the current trace, or InvalidMessage and nothing stored."""
        headers = inject(options.headers)
        if not isinstance(payload, bytes | Encoded):
            with self.secrets.near():
                payload = Encoded(encode(payload))
        made = draft(
            new_id(),
            topic,
            payload,
            options if headers is options.headers else msgspec.structs.replace(options, headers=headers),
            routes,
            max_payload_bytes=self.settings.max_payload_bytes,
            no_route=self._policy.no_route,
        )
        return self.finished(made)

    def finished(self, made: Draft) -> Draft:
        """A draft that fits the schema of its topic, sealed if that is declared; or InvalidMessage."""
        if self.schemas and made.payload is not None:
            self.schemas.check(made.topic, made.payload)
        # Nobody stores what is taken in the store's place.
        return self.sealer.seal(made) if self.sealer.is_encrypted(made.topic) and self.instead is None else made

    def put(self, drafts: list[Draft], tx: Any, *, twin: str, batch: NewBatch | None = None) -> list[Message]:
        """Store drafts, all or none. `twin` names the call to await instead where an event loop runs.

        `batch`: the one they are the members of, stored with them.
        """
        self._check(tx, twin)
        if self.instead is not None:
            return self.instead.put(_with_later(drafts, batch), tx)[: len(drafts)]
        try:
            if tx is None:
                messages = self._put(drafts, batch)
            else:
                messages = run(tx, self._database.dialect, self._joining(drafts, batch), twin=twin)
        except Exception as error:
            self.telemetry.publish_failed(error, len(drafts))
            raise
        self.telemetry.published(drafts, messages)
        return messages

    async def aput(self, drafts: list[Draft], tx: Any, *, batch: NewBatch | None = None) -> list[Message]:
        """As `put`, for async code."""
        self._check(tx, None)
        if self.instead is not None:
            return (await self.instead.aput(_with_later(drafts, batch), tx))[: len(drafts)]
        try:
            if tx is None:
                messages = await asyncio.to_thread(self._put, drafts, batch)
            else:
                messages = await run_async(tx, self._database.dialect, self._joining(drafts, batch))
        except Exception as error:
            self.telemetry.publish_failed(error, len(drafts))
            raise
        self.telemetry.published(drafts, messages)
        return messages

    def try_put(self, drafts: list[Draft], tx: Any, *, twin: str) -> list[Message] | None:
        """As `put`, but what the database cannot do is logged, and None: the caller's own work goes on (S3-72)."""
        self._check(tx, twin)
        if self.instead is not None:
            return self.instead.put(drafts, tx)
        try:
            if tx is None:
                return self.put(drafts, None, twin=twin)
            with savepoint(tx, self.publishing(), twin=twin):
                return self.put(drafts, tx, twin=twin)
        except TransactionError:
            raise  # a mistake in the program, or the caller's own rows are gone
        except Exception as error:  # noqa: BLE001 - whatever the database or its driver says
            self._fell_back(drafts, error)
            return None

    async def atry_put(self, drafts: list[Draft], tx: Any) -> list[Message] | None:
        """As `try_put`, for async code."""
        self._check(tx, None)
        if self.instead is not None:
            return await self.instead.aput(drafts, tx)
        try:
            if tx is None:
                return await self.aput(drafts, None)
            async with asavepoint(tx, self.publishing()):
                return await self.aput(drafts, tx)
        except TransactionError:
            raise
        except Exception as error:  # noqa: BLE001 - as in try_put
            self._fell_back(drafts, error)
            return None

    # ------------------------------------------------------------------------------------------- inside

    def _check(self, tx: Any, twin: str | None) -> None:
        if tx is not None:
            return
        if self._policy.require_tx:
            raise InvalidMessage("this App requires tx=", hint="pass your connection or session")
        if twin is not None:
            refuse_in_event_loop(twin)

    def _put(self, drafts: list[Draft], batch: NewBatch | None) -> list[Message]:
        messages = self.store.run(self._steps(drafts, batch))
        self.wake()
        return messages

    def publishing(self) -> Publishing:
        """What the builders of statements must know about the database, at this moment."""
        database = self._database
        return Publishing(database.dialect, database.queries, database.now(), self.settings.notify)

    def _steps(self, drafts: list[Draft], batch: NewBatch | None) -> Steps[list[Message]]:
        to = self.publishing()
        return publish(to, drafts) if batch is None else begin(to, [Following(tuple(drafts), batch)])

    def _joining(self, drafts: list[Draft], batch: NewBatch | None) -> Steps[list[Message]]:
        yield from self._database.check_tx()
        return (yield from self._steps(drafts, batch))

    def _fell_back(self, drafts: list[Draft], error: Exception) -> None:
        self.telemetry.fell_back(len(drafts))
        for each in drafts:
            Log(message_id=str(each.id), topic=each.topic).error("ENQUEUE_FAILED", error_type=type(error).__name__)


def _with_later(drafts: list[Draft], batch: NewBatch | None) -> list[Draft]:
    """Who takes drafts in the store's place gets what follows them, too."""
    return drafts if batch is None else [*drafts, *following_drafts(batch)]


def refuse_in_event_loop(twin: str) -> None:
    """Say which call to await, where this one would block an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise BlockingCall("this call blocks, and this thread runs an event loop", hint=f"await {twin}")


def new_id() -> UUID:
    """A public message id: time in front, unguessable behind."""
    return uuid7(time.time_ns() // 1_000_000, os.urandom(10))


def _nothing() -> None:
    """Nobody is to be woken."""
