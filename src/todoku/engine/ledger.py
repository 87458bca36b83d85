"""The ledger as a feature: something is done once for a key, and whoever asks again is told what came of it."""

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
from todoku.store.port import Steps
from todoku.store.publish import Publishing
from todoku.store.reservations import Found, Reservation, conclude, forget, record, reserve
from todoku.store.values import Entry

State = Literal["accepted", "succeeded", "failed"]

HOLD: Final = 60.0
"""Without a transaction, a key is somebody's for so long while he works; if he dies, it is free after that."""


class Answer:
    """What is known about a key. `first`: nobody has done it before, so do it and `store` what came of it."""

    def __init__(self, found: Found) -> None:
        self.first = found.first
        self.state: str = "succeeded" if found.first else found.state
        self.status = found.status
        self._response = found.response
        self.created_at = found.created_at

    @property
    def response(self) -> Any:
        """What was stored for the key, decoded; None: nothing."""
        return None if self._response is None else msgspec.json.decode(self._response)

    @property
    def text(self) -> str | None:
        """The stored response as JSON text."""
        return self._response

    def store(self, response: object, status: int = 200, *, state: State = "succeeded") -> None:
        """Remember `response` for whoever asks again. `state="accepted"`: `ledger.conclude` tells the end later."""
        if not self.first:
            raise InvalidMessage("this key has its response already", hint="store only where done.first is true")
        self._response, self.status, self.state = encode(response), status, state


class Ledger:
    """Entries of people's own: (scope, key) → digest of the body, state, response."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._ttl = outbox.settings.ledger_ttl

    def once(
        self, key: str, *, scope: str, tx: Any, body: object = None, hold: Duration = HOLD, ttl: Duration | None = None
    ) -> Block[Answer]:
        """`with box.once(key, scope=…, tx=…) as done:` or `async with`; what is promised is said at `App.once`."""
        wanted = self._reservation(key, scope, body, lasts=self._ttl if ttl is None else seconds(ttl, what="ttl"))
        held = wanted if tx is not None else msgspec.structs.replace(wanted, lasts=seconds(hold, what="hold"))
        kept: list[Answer] = []
        telemetry = self._outbox.telemetry

        def begin(to: Publishing) -> Steps[Answer]:
            found = yield from reserve(to, held)
            try:
                kept.append(_checked(found, wanted, key))
            except IdempotencyConflict:
                telemetry.conflicted()
                raise
            return kept[0]

        def end(to: Publishing) -> Steps[None]:
            if not kept[0].first:
                return
            if not (yield from _recorded(to, wanted, kept[0])):
                raise InProgress(
                    f"key {key!r} was held for longer than {hold} s, and is somebody else's now", hint="raise hold="
                )
            telemetry.kept(kept[0].state)

        def undo(to: Publishing) -> Steps[None]:
            if kept[0].first:
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
        """The entry of a key, if there is one."""
        return self._outbox.store.entry(once_scope(scope), key_hash(key))

    # ------------------------------------------------------------------------------------------- inside

    def _reservation(self, key: str, scope: str, body: object, *, lasts: float) -> Reservation:
        check_text(key, "key", MAX_KEY_LENGTH)
        check_text(scope, "scope", MAX_TOPIC_LENGTH)
        of_body = digest_bytes(body) if isinstance(body, bytes) else digest(msgspec.json.decode(encode(body)))
        return Reservation(scope=once_scope(scope), key_hash=key_hash(key), digest=of_body, token=new_id(), lasts=lasts)


def _checked(found: Found, wanted: Reservation, key: str) -> Answer:
    if found.digest != wanted.digest:
        raise IdempotencyConflict(
            f"key {key!r} was used at {found.created_at:%Y-%m-%d %H:%M:%S} UTC with another body",
            hint="use a new key for a new request",
        )
    if not found.first and found.state == "accepted" and found.response is None:
        raise InProgress(f"key {key!r} is being worked on", hint="ask again in a moment")
    return Answer(found)


def _recorded(to: Publishing, wanted: Reservation, done: Answer) -> Steps[bool]:
    return (yield from record(to, wanted, state=done.state, status=done.status, response=done.text))
