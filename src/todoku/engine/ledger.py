"""The ledger for applications: an operation runs once per key, and later callers get its stored response."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, Literal, TypeVar
from uuid import UUID

import msgspec

from todoku.core.errors import IdempotencyConflict, InProgress, InvalidMessage
from todoku.core.identity import digest, digest_bytes, key_hash, once_scope
from todoku.core.message import MAX_KEY_LENGTH, MAX_TOPIC_LENGTH
from todoku.core.outcome import Duration, seconds
from todoku.engine.outbox import Outbox, new_id
from todoku.engine.publish import check_text, encode
from todoku.engine.twins import asynchronous, blocking, later, now
from todoku.store.join import Savepoint
from todoku.store.ledger import Entry, Found, Reservation, conclude, forget, record, record_newer, record_seen, reserve
from todoku.store.publish import Publishing
from todoku.store.sql import Steps

# ------------------------------------------------------------
# A block inside a transaction: `with` and `async with` over one implementation.

T = TypeVar("T")


class BlockSteps(msgspec.Struct, Generic[T], frozen=True):
    """The statements of a block: at its beginning, at its end, and, without a caller's transaction, after a failure."""

    begin: Callable[[Publishing], Steps[T]]
    end: Callable[[Publishing], Steps[None]]
    undo: Callable[[Publishing], Steps[None]]


class Block(Generic[T]):
    """Statements before and after the code inside `with`, or `async with`, in the caller's transaction `tx`.

    If the code raises, its own writes in `tx` and these statements are undone, even if the caller then commits. With
    `tx=None` the statements before and after are a transaction each.
    """

    def __init__(self, outbox: Outbox, tx: Any, parts: BlockSteps[T], *, twin: str) -> None:
        self._outbox = outbox
        self._tx = tx
        self._parts = parts
        self._twin = twin
        self._open = AsyncExitStack()

    def __enter__(self) -> T:
        return now(self._begin(), self._twin)

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        now(self._end(error), self._twin)

    async def __aenter__(self) -> T:
        return await later(self._begin())

    async def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await later(self._end(error))

    # ------------------------------------------------------------------------------------------- inside

    async def _begin(self) -> T:
        outbox, to = self._outbox, self._outbox.publishing()
        async with AsyncExitStack() as opening:
            if self._tx is not None:
                await opening.enter_async_context(Savepoint(to, partial(outbox.run, self._tx)))
            value = await outbox.run(self._tx, self._parts.begin(to))
            self._open = opening.pop_all()
        return value

    async def _end(self, error: BaseException | None) -> None:
        outbox, to = self._outbox, self._outbox.publishing()
        if error is None:
            async with self._open:
                await outbox.run(self._tx, self._parts.end(to))
            return
        if self._tx is None:
            await outbox.run(None, self._parts.undo(to))
        await self._open.__aexit__(type(error), error, error.__traceback__)


# ------------------------------------------------------------
# The inbox: a consumer processes each message once, in its own transaction, also if it is delivered twice (I6).

_LARGEST = 2**63 - 1


class Inbox:
    """The messages one consumer has seen, stored in the consumer's database, which need not be the publisher's."""

    def __init__(self, outbox: Outbox, consumer: str) -> None:
        check_text(consumer, "consumer", MAX_TOPIC_LENGTH)
        self._outbox = outbox
        self._consumer = consumer

    def once(self, message_id: UUID | str, *, tx: Any) -> Block[bool]:
        """`with box.inbox("points").once(id, tx=db) as first:`, or `async with`: True the first time only.

        The mark commits with your rows, or not at all; if the block raises, both are undone. It is stored for 90 days.
        """
        id = _as_uuid(message_id)
        return self._block(tx, lambda to: record_seen(to, self._consumer, id))

    def newer(self, key: str, sequence: int, *, tx: Any) -> Block[bool]:
        """`with box.inbox("stock").newer(key, sequence, tx=db) as first:`: False if a newer one of the key was seen.

        For consumers that store only the latest state of each key, and whose messages carry a rising number.
        """
        check_text(key, "key", MAX_KEY_LENGTH)
        if type(sequence) is not int or not -_LARGEST <= sequence <= _LARGEST:
            raise InvalidMessage(f"sequence cannot be {sequence!r}", hint="a whole number of at most 63 bits")
        return self._block(tx, lambda to: record_newer(to, self._consumer, key, sequence))

    def _block(self, tx: Any, begin: Any) -> Block[bool]:
        if tx is None:
            raise InvalidMessage(
                "an inbox needs a transaction", hint="pass tx=, the connection that your own writes use"
            )
        return Block(self._outbox, tx, BlockSteps(begin, _no_steps, _no_steps), twin="use `async with`")


def _no_steps(_to: Publishing) -> Steps[None]:
    yield from ()


def _as_uuid(message_id: UUID | str) -> UUID:
    try:
        return message_id if isinstance(message_id, UUID) else UUID(message_id)
    except (ValueError, AttributeError, TypeError):
        raise InvalidMessage(
            f"message_id cannot be {message_id!r}", hint="pass the UUID that todoku sent in the message's headers"
        ) from None


State = Literal["accepted", "succeeded", "failed"]

HOLD: Final = 60.0
"""Seconds for which a key stays reserved without a transaction; if its holder dies, the next caller takes it over."""


class Answer:
    """The entry of a key. `first`: this caller is the first, does the work and calls `store` with its response."""

    def __init__(self, found: Found) -> None:
        self.first = found.first
        self.state: str = "succeeded" if found.first else found.state
        self.status = found.status
        self._response = found.response
        self.created_at = found.created_at

    @property
    def response(self) -> Any:
        """The stored response, decoded; None: there is none."""
        return None if self._response is None else msgspec.json.decode(self._response)

    @property
    def text(self) -> str | None:
        """The stored response as JSON text."""
        return self._response

    def store(self, response: object, status: int = 200, *, state: State = "succeeded") -> None:
        """Stores `response` for later callers. With `state="accepted"`, `ledger.conclude` stores the end later."""
        if not self.first:
            raise InvalidMessage("this key already has a response", hint="call store only if done.first is true")
        self._response, self.status, self.state = encode(response), status, state


class Ledger:
    """The entries of the application: (scope, key) → digest of the body, state, response."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._ttl = outbox.settings.ledger_ttl

    def once(
        self, key: str, *, scope: str, tx: Any, body: object = None, hold: Duration = HOLD, ttl: Duration | None = None
    ) -> Block[Answer]:
        """`with box.once(key, scope=…, tx=…) as done:` or `async with`; see `App.once` for the guarantees."""
        wanted = self._reservation(key, scope, body, lasts=self._ttl if ttl is None else seconds(ttl, what="ttl"))
        held = wanted if tx is not None else msgspec.structs.replace(wanted, lasts=seconds(hold, what="hold"))
        answers: list[Answer] = []
        telemetry = self._outbox.telemetry

        def begin(to: Publishing) -> Steps[Answer]:
            found = yield from reserve(to, held)
            try:
                answers.append(_check_found(found, wanted, key))
            except IdempotencyConflict:
                telemetry.conflicted()
                raise
            return answers[0]

        def end(to: Publishing) -> Steps[None]:
            if not answers[0].first:
                return
            if not (yield from _record(to, wanted, answers[0])):
                raise InProgress(
                    f"key {key!r} was reserved for {hold} s and then taken over by another caller",
                    hint="reserve it for longer: box.ledger.once(…, hold=600)",
                )
            telemetry.kept(answers[0].state)

        def undo(to: Publishing) -> Steps[None]:
            if answers[0].first:
                yield from forget(to, wanted)

        return Block(self._outbox, tx, BlockSteps(begin, end, undo), twin="use `async with`")

    @blocking("ledger")
    async def conclude(
        self, key: str, *, scope: str, tx: Any, response: object, status: int = 200, ok: bool = True
    ) -> bool:
        """Stores the response of a key that was stored as accepted. False: no such key waits for its response."""
        text, state = encode(response), "succeeded" if ok else "failed"
        where, hashed, to = once_scope(scope), key_hash(key), self._outbox.publishing()
        steps = conclude(to, where, hashed, state=state, status=status, response=text, lasts=self._ttl)
        return await self._outbox.run(tx, steps)

    aconclude = asynchronous(conclude)

    def entry(self, key: str, *, scope: str) -> Entry | None:
        """Returns the entry of a key, if there is one."""
        return self._outbox.store.ledger.entry(once_scope(scope), key_hash(key))

    # ------------------------------------------------------------------------------------------- inside

    def _reservation(self, key: str, scope: str, body: object, *, lasts: float) -> Reservation:
        check_text(key, "key", MAX_KEY_LENGTH)
        check_text(scope, "scope", MAX_TOPIC_LENGTH)
        body_digest = digest_bytes(body) if isinstance(body, bytes) else digest(msgspec.json.decode(encode(body)))
        return Reservation(
            scope=once_scope(scope), key_hash=key_hash(key), digest=body_digest, token=new_id(), lasts=lasts
        )


def _check_found(found: Found, wanted: Reservation, key: str) -> Answer:
    if found.digest != wanted.digest:
        raise IdempotencyConflict(
            f"key {key!r} was used at {found.created_at:%Y-%m-%d %H:%M:%S} UTC with another body",
            hint="use a new key for a new request",
        )
    if not found.first and found.state == "accepted" and found.response is None:
        raise InProgress(f"another caller is processing key {key!r}", hint="try again in a moment")
    return Answer(found)


def _record(to: Publishing, wanted: Reservation, done: Answer) -> Steps[bool]:
    return (yield from record(to, wanted, state=done.state, status=done.status, response=done.text))
