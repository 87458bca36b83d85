"""The handle of an enqueued job: its status, its result, and cancelling it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

import msgspec

from todoku.core.errors import JobAborted, NoSuchMessage, ResultNotKept
from todoku.core.outcome import Duration, seconds
from todoku.core.status import Status
from todoku.engine import operations
from todoku.engine.encryption.opener import Opener
from todoku.engine.twins import Pause, asynchronous, blocking, in_thread
from todoku.store.deliveries import Filter, Standing
from todoku.store.store import Store

R_co = TypeVar("R_co", covariant=True)

_FIRST_WAIT: Final = 0.01
_LONGEST_WAIT: Final = 0.5


class ResultReader(msgspec.Struct, frozen=True):
    """How a job's result is decoded; None: it keeps none."""

    decode: Callable[[str], Any] | None


class Handle(Generic[R_co]):
    """One enqueued job. `duplicate`: an equal one was stored before. `stored`: False if a `best_effort` call failed."""

    __slots__ = ("_kept", "_opener", "_store", "duplicate", "id", "job", "stored")

    def __init__(
        self, store: Store, id: UUID, job: str, kept: ResultReader, *, duplicate: bool = False, stored: bool = True,
        opener: Opener | None = None,
    ) -> None:  # fmt: skip
        self._store = store
        self._kept = kept
        self._opener = opener
        self.id = id
        self.job = job
        self.duplicate = duplicate
        self.stored = stored

    def __repr__(self) -> str:
        return f"<Handle {self.job} {self.id}{' duplicate' if self.duplicate else ''}{'' if self.stored else ' lost'}>"

    @blocking("handle")
    async def status(self) -> Status:
        """Returns its status. NoSuchMessage: it was rolled back, is not committed yet, or its retention has passed."""
        standing = await in_thread(self._store.deliveries.standing, self.id, self.job)
        if standing is None:
            raise NoSuchMessage(
                f"there is no {self.job} {self.id}",
                hint="its transaction is not committed or was rolled back, or its retention has passed",
            )
        return Status(standing.status)

    astatus = asynchronous(status)

    @blocking("handle")
    async def result(self, timeout: Duration | None = None) -> R_co:  # noqa: ASYNC109 - of the result, not of this call
        """Waits for the job's return value, at most `timeout` (None: without a limit).

        JobAborted if it became a dead letter, TimeoutError if it takes longer, ResultNotKept if the job was declared
        without `keep_result=True`, CannotOpen if it is encrypted and its key is gone or not here.
        """
        for wait in self._waits(timeout):
            standing = await in_thread(self._look)
            if standing is not None and standing.status == Status.SUCCEEDED:
                return self._value(standing)
            self._refuse_aborted(standing)
            await Pause(wait)
        raise TimeoutError(f"{self.job} {self.id} has no result after {timeout} s; it goes on")

    aresult = asynchronous(result)

    @blocking("handle")
    async def cancel(self, *, by: str, why: str) -> bool:
        """Cancels it: True if it had not ended. A running attempt is asked to stop, and a success before that wins."""
        which, who = Filter(message_id=self.id, destination=self.job), operations.sign(by, why)
        return (await in_thread(operations.cancel, self._store, which, who)).changed > 0

    acancel = asynchronous(cancel)

    # ------------------------------------------------------------------------------------------- inside

    def _look(self) -> Standing | None:
        """Where it is now, with its result decrypted. Blocks."""
        standing = self._store.deliveries.standing(self.id, self.job)
        if standing is None or standing.result is None or self._opener is None:
            return standing
        opened = self._opener.result(standing.result, str(self.id), self.job)
        return msgspec.structs.replace(standing, result=opened)

    def _waits(self, timeout: Duration | None) -> Iterator[float]:
        """The pauses between looks, each longer than the one before; the last look is at the end of the timeout."""
        if self._kept.decode is None:
            raise ResultNotKept(f"{self.job} keeps no result", hint="declare it with keep_result=True")
        ends = None if timeout is None else time.monotonic() + seconds(timeout, what="timeout")
        wait = _FIRST_WAIT
        while ends is None or (left := ends - time.monotonic()) > 0:
            yield wait if ends is None else min(wait, left)
            wait = min(wait * 1.5, _LONGEST_WAIT)
        yield 0.0

    def _value(self, standing: Standing) -> R_co:
        if standing.result is None or self._kept.decode is None:
            return None  # type: ignore[return-value]  # it returned None, and that is what R says then
        return self._kept.decode(standing.result)  # type: ignore[no-any-return]

    def _refuse_aborted(self, standing: Standing | None) -> None:
        if standing is not None and standing.status == Status.ABORTED:
            reason = standing.reason or "UNKNOWN"
            raise JobAborted(
                f"{self.job} {self.id} was aborted: {reason}: {standing.error or reason}",
                hint="remove the cause, then replay it",
                reason=reason,
            )
