"""The end of every publish: drafts go into the caller's transaction, or into one of their own."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal
from uuid import UUID

import msgspec

from todoku.core.errors import BlockingCall, InvalidMessage, TransactionError
from todoku.core.identity import uuid7
from todoku.core.message import Draft, Message
from todoku.core.route import Route
from todoku.core.settings import Settings
from todoku.engine.publish import Options, draft
from todoku.engine.telling.log import Log
from todoku.engine.telling.telemetry import Telemetry
from todoku.engine.telling.tracing import inject
from todoku.store.database import Database
from todoku.store.join import run, run_async
from todoku.store.port import Steps, Store
from todoku.store.publish import Publishing, publish
from todoku.store.savepoint import asavepoint, savepoint


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What an App allows its publishers."""

    require_tx: bool = False
    no_route: Literal["error", "dead_letter"] = "error"


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
        self.wake: Callable[[], None] = _nothing
        """Called after a commit of our own: a worker in this process need not wait for its next poll."""

    def draft(self, topic: str, payload: object, options: Options, routes: Sequence[Route]) -> Draft:
        """A checked draft that carries the current trace, or InvalidMessage and nothing stored."""
        headers = inject(options.headers)
        return draft(
            new_id(),
            topic,
            payload,
            options if headers is options.headers else msgspec.structs.replace(options, headers=headers),
            routes,
            max_payload_bytes=self.settings.max_payload_bytes,
            no_route=self._policy.no_route,
        )

    def put(self, drafts: list[Draft], tx: Any, *, twin: str) -> list[Message]:
        """Store drafts, all or none. `twin` names the call to await instead where an event loop runs."""
        self._check(tx, twin)
        try:
            messages = (
                self._put(drafts) if tx is None else run(tx, self._database.dialect, self._joining(drafts), twin=twin)
            )
        except Exception as error:
            self.telemetry.publish_failed(error, len(drafts))
            raise
        self.telemetry.published(drafts, messages)
        return messages

    async def aput(self, drafts: list[Draft], tx: Any) -> list[Message]:
        """As `put`, for async code."""
        self._check(tx, None)
        try:
            if tx is None:
                messages = await asyncio.to_thread(self._put, drafts)
            else:
                messages = await run_async(tx, self._database.dialect, self._joining(drafts))
        except Exception as error:
            self.telemetry.publish_failed(error, len(drafts))
            raise
        self.telemetry.published(drafts, messages)
        return messages

    def try_put(self, drafts: list[Draft], tx: Any, *, twin: str) -> list[Message] | None:
        """As `put`, but what the database cannot do is logged, and None: the caller's own work goes on (S3-72)."""
        self._check(tx, twin)
        try:
            if tx is None:
                return self.put(drafts, None, twin=twin)
            with savepoint(tx, self._publishing(), twin=twin):
                return self.put(drafts, tx, twin=twin)
        except TransactionError:
            raise  # a mistake in the program, or the caller's own rows are gone
        except Exception as error:  # noqa: BLE001 - whatever the database or its driver says
            self._fell_back(drafts, error)
            return None

    async def atry_put(self, drafts: list[Draft], tx: Any) -> list[Message] | None:
        """As `try_put`, for async code."""
        self._check(tx, None)
        try:
            if tx is None:
                return await self.aput(drafts, None)
            async with asavepoint(tx, self._publishing()):
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

    def _put(self, drafts: list[Draft]) -> list[Message]:
        messages = self.store.run(self._steps(drafts))
        self.wake()
        return messages

    def _publishing(self) -> Publishing:
        database = self._database
        return Publishing(database.dialect, database.queries, database.now(), self.settings.notify)

    def _steps(self, drafts: list[Draft]) -> Steps[list[Message]]:
        return publish(self._publishing(), drafts)

    def _joining(self, drafts: list[Draft]) -> Steps[list[Message]]:
        yield from self._database.check_tx()
        return (yield from self._steps(drafts))

    def _fell_back(self, drafts: list[Draft], error: Exception) -> None:
        self.telemetry.fell_back(len(drafts))
        for each in drafts:
            Log(message_id=str(each.id), topic=each.topic).error("ENQUEUE_FAILED", error_type=type(error).__name__)


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
