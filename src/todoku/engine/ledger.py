"""The ledger for applications: an operation runs once per key, and later callers get its stored response."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from todoku.core.digest import digest, digest_bytes
from todoku.core.errors import IdempotencyConflict, InProgress, InvalidMessage
from todoku.core.identity import key_hash, once_scope
from todoku.core.message import MAX_KEY_LENGTH, MAX_TOPIC_LENGTH
from todoku.core.outcome import Duration, seconds
from todoku.engine.outbox import Outbox, new_id
from todoku.engine.publish import check_text, encode
from todoku.engine.transaction_block import Block, BlockSteps
from todoku.engine.twins import asynchronous, blocking
from todoku.store.ledger import Entry, Found, Reservation, conclude, forget, record, reserve
from todoku.store.publish import Publishing
from todoku.store.statements import Steps

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
                    f"key {key!r} was reserved for {hold} s and then taken over by another caller", hint="raise hold="
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
