"""Handles: one delivery of a message, by the message's id. Its status, result and attempts; cancel and replay it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

import msgspec

from todoku.core.errors import AmbiguousMessage, InvalidAct, JobAborted, NoSuchMessage, ResultNotKept
from todoku.core.outcome import Duration, seconds
from todoku.core.status import Status
from todoku.core.topic_pattern import Route
from todoku.engine import operations
from todoku.engine.deliveries import Id, parse_id
from todoku.engine.outbox import Outbox
from todoku.engine.twins import Signal, asynchronous, blocking, in_thread
from todoku.store.attempts import Attempt
from todoku.store.audit import Signed
from todoku.store.deliveries import Delivery, Filter, Standing
from todoku.store.store import Store
from todoku.store.waiters import ANNOUNCED_FOR

R_co = TypeVar("R_co", covariant=True)

_FIRST_WAIT: Final = 0.01
_LONGEST_WAIT: Final = 0.5
_LONGEST_WAIT_WITH_NOTICE: Final = 2.0
_ANNOUNCE_AFTER: Final = 0.25
"""Seconds of waiting after which a caller asks other processes for a notice; polling finds shorter jobs soon enough."""

_ANNOUNCE_AGAIN: Final = ANNOUNCED_FOR / 2
_NAMED: Final = 20
"""Destinations that an error lists, at most."""

_ENDED: Final = frozenset({Status.SUCCEEDED, Status.ABORTED})


class ResultReader(msgspec.Struct, frozen=True):
    """How a job's result is decoded; None: it keeps none."""

    decode: Callable[[str], Any] | None


class Handle(Generic[R_co]):
    """One delivery of a message: an enqueued job. Every call has an async form, `a…`.

    `id`: the message's. `job`: the destination's name. `duplicate`: an equal one was stored before. `stored`: False if
    a `best_effort` call failed.
    """

    __slots__ = ("_kept", "_names", "_outbox", "_route", "_store", "duplicate", "id", "job", "stored")

    def __init__(
        self, outbox: Outbox, id: UUID, names: tuple[str, ...], kept: ResultReader, route: Route | None, *,
        duplicate: bool = False, stored: bool = True,
    ) -> None:  # fmt: skip
        self._outbox = outbox
        self._store: Store = outbox.store
        self._names = names
        self._kept = kept
        self._route = route
        self.id = id
        self.job = names[0]
        self.duplicate = duplicate
        self.stored = stored

    def __repr__(self) -> str:
        return f"<Handle {self.job} {self.id}{' duplicate' if self.duplicate else ''}{'' if self.stored else ' lost'}>"

    @blocking("handle")
    async def status(self) -> Status:
        """Returns its status. NoSuchMessage: it was rolled back, is not committed yet, or its retention has passed."""
        return Status((await in_thread(self._standing)).status)

    astatus = asynchronous(status)

    @blocking("handle")
    async def error(self) -> str | None:
        """Returns the error of its last failed attempt; None: none has failed, or it succeeded. NoSuchMessage."""
        standing = await in_thread(self._standing)
        return standing.error or standing.reason

    aerror = asynchronous(error)

    @blocking("handle")
    async def attempts(self) -> tuple[Attempt, ...]:
        """Returns its failed attempts, the oldest first: when, reason, error, traceback, and all else known.

        The traceback of an encrypted message is decrypted. Raises NoSuchMessage, CannotOpen.
        """
        return await in_thread(self._attempts)

    aattempts = asynchronous(attempts)

    @blocking("handle")
    async def delivery(self) -> Delivery:
        """Returns its delivery, with its number, queue, due time and the rest. NoSuchMessage."""
        return await in_thread(self._delivery)

    adelivery = asynchronous(delivery)

    @blocking("handle")
    async def result(self, timeout: Duration | None = None) -> R_co:  # noqa: ASYNC109 - of the result, not of this call
        """Waits for the job's return value, at most `timeout` (None: without a limit).

        JobAborted if it became a dead letter, TimeoutError if it takes longer, ResultNotKept if the job was declared
        without `keep_result=True`, CannotOpen if it is encrypted and its key is gone or not here.
        """
        if self._kept.decode is None:
            hint = "declare it with keep_result=True; ended() waits without a result"
            raise ResultNotKept(f"{self.job} keeps no result", hint=hint)
        standing = await self._end(timeout, "has no result")
        self._refuse_aborted(standing)
        return self._value(await in_thread(self._open, standing))

    aresult = asynchronous(result)

    @blocking("handle")
    async def ended(self, timeout: Duration | None = None) -> Status:  # noqa: ASYNC109 - as of `result`
        """Waits until it has succeeded or was aborted, and returns which. TimeoutError if that takes longer."""
        return Status((await self._end(timeout, "has not ended")).status)

    aended = asynchronous(ended)

    @blocking("handle")
    async def cancel(self, *, by: str, why: str) -> bool:
        """Cancels it: True if it had not ended. A running attempt is asked to stop, and a success before that wins."""
        return await in_thread(self._cancel, operations.sign(by, why))

    acancel = asynchronous(cancel)

    @blocking("handle")
    async def replay(self, *, by: str, why: str, again: bool = False) -> Handle[R_co]:
        """Runs a dead letter again, from attempt 0, and returns this handle. InvalidAct if it is none.

        With `again`, runs a success again: as a new message to this destination alone, without the idempotency key, and
        with the label `todoku.again_of:<id>`. Returns the handle of the new message.
        """
        return await in_thread(self._replay, operations.sign(by, why), again=again)

    areplay = asynchronous(replay)

    # ------------------------------------------------------------------------------------------- inside

    def _standing(self) -> Standing:
        """Where it is now. Blocks."""
        if (standing := self._store.deliveries.standing(self.id, self._names)) is None:
            raise self._missing()
        return standing

    def _delivery(self) -> Delivery:
        which = Filter(message_id=self.id, ids=(self._standing().id,))
        for found in self._store.deliveries.of_message(which, limit=1).items:
            return found
        raise self._missing()  # it was purged between the two reads

    def _missing(self) -> NoSuchMessage:
        hint = "its transaction is not committed or was rolled back, or its retention has passed"
        return NoSuchMessage(f"there is no {self.job} {self.id}", hint=hint)

    async def _end(self, timeout: Duration | None, what: str) -> Standing:  # noqa: ASYNC109 - as of `result`
        """Waits until it has ended: looks after each wake-up, and at growing intervals always. For `engine.twins`."""
        began = time.monotonic()
        limit = None if timeout is None else began + seconds(timeout, what="timeout")
        announce_at, wait, longest = began + _ANNOUNCE_AFTER, _FIRST_WAIT, _LONGEST_WAIT
        signal, waiters = Signal(), self._store.waiters
        with waiters.waiting(str(self.id), signal.give):
            while True:
                standing = await in_thread(self._store.deliveries.standing, self.id, self._names)
                if standing is not None and standing.status in _ENDED:
                    return standing
                now = time.monotonic()
                if limit is not None and now >= limit:
                    raise TimeoutError(f"{self.job} {self.id} {what} after {timeout} s; it goes on")
                if now >= announce_at:
                    heard = await in_thread(waiters.announce, str(self.id))
                    announce_at, longest = now + _ANNOUNCE_AGAIN, _LONGEST_WAIT_WITH_NOTICE if heard else _LONGEST_WAIT
                woken = await signal.within(wait if limit is None else max(0.0, min(wait, limit - time.monotonic())))
                # The wake-up may come just before the commit: look soon again.
                wait = _FIRST_WAIT if woken else min(wait * 1.5, longest)

    def _open(self, standing: Standing) -> str | None:
        """The JSON text of the result, decrypted. Blocks."""
        if standing.result is None:
            return None
        return self._outbox.opener.result(standing.result, str(self.id), standing.destination)

    def _attempts(self) -> tuple[Attempt, ...]:
        standing, opener = self._standing(), self._outbox.opener
        return tuple(
            attempt
            if attempt.traceback is None
            else msgspec.structs.replace(
                attempt, traceback=opener.traceback(attempt.traceback, str(self.id), standing.destination)
            )
            for attempt in self._store.attempts.of(standing.id)
        )

    def _value(self, text: str | None) -> R_co:
        if text is None or self._kept.decode is None:
            return None  # type: ignore[return-value]  # it returned None, and that is what R says then
        return self._kept.decode(text)  # type: ignore[no-any-return]

    def _refuse_aborted(self, standing: Standing) -> None:
        if standing.status == Status.ABORTED:
            reason = standing.reason or "UNKNOWN"
            raise JobAborted(
                f"{self.job} {self.id} was aborted: {reason}: {standing.error or reason}",
                hint="remove the cause, then replay it",
                reason=reason,
            )

    def _cancel(self, signed: Signed) -> bool:
        standing = self._store.deliveries.standing(self.id, self._names)
        return standing is not None and operations.cancel(self._store, Filter(ids=(standing.id,)), signed).changed > 0

    def _replay(self, signed: Signed, *, again: bool) -> Handle[R_co]:
        standing = self._standing()
        which = Filter(ids=(standing.id,), message_id=self.id)
        if again:
            done = operations.repeat(self._outbox, which, signed, route_to=lambda _: self._route)
        elif standing.status == Status.SUCCEEDED:
            done = operations.refuse_successes(operations.Replayed(0, 0, {operations.SUCCEEDED: 1}))
        else:
            done = operations.replay(self._store, which, signed)
        if not done.replayed:
            hint = "again=True is for a success" if again else "only a dead letter is replayed"
            raise InvalidAct(f"{self.job} {self.id} was not replayed: it {', '.join(done.skipped)}", hint=hint)
        self._outbox.wake()
        return Handle(self._outbox, done.messages[0], self._names, self._kept, self._route) if again else self


def locate(store: Store, id: Id, destination: str | None) -> tuple[UUID, str]:
    """Returns the message and the destination of one delivery: of that number, or the only one of a message.

    NoSuchMessage: there is none. AmbiguousMessage: the message has several, and `destination` does not choose.
    """
    given = parse_id(id)
    if isinstance(given, UUID):
        found = store.deliveries.of_message(Filter(message_id=given, destination=destination), limit=1000).items
    else:
        pages = (
            store.deliveries.find(Filter(ids=(given,), destination=destination, status=status), limit=1).items
            for status in (None, "succeeded")
        )
        found = next((rows for rows in pages if rows), ())
    places = [(each.message_id, each.destination) for each in found if each.message_id is not None]
    match places:
        case []:
            to = "" if destination is None else f" to {destination}"
            hint = "it was rolled back, is not committed yet, or its retention has passed"
            raise NoSuchMessage(f"there is no delivery of {id}{to}", hint=hint)
        case [(message_id, name)]:
            return message_id, name
        case _:
            names = tuple(sorted(name for _, name in places))
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            raise AmbiguousMessage(
                f"the message {id} has several deliveries: {', '.join(names[:_NAMED])}{more}",
                hint=f"choose one with destination={names[0]!r}",
                destinations=names,
            )
