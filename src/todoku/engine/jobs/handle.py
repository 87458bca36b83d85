"""What an enqueue returns: a handle by which the job is watched, awaited and cancelled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

import msgspec

from todoku.core.errors import InvalidAct, JobAborted, NoSuchMessage, ResultNotKept
from todoku.core.outcome import Duration, seconds
from todoku.core.status import Status
from todoku.engine import operate
from todoku.engine.encryption.opener import Opener
from todoku.engine.outbox import refuse_in_event_loop
from todoku.store.audit import Signed
from todoku.store.deliveries import Standing
from todoku.store.filter import Filter
from todoku.store.store import Store

R_co = TypeVar("R_co", covariant=True)

_FIRST_WAIT: Final = 0.01
_LONGEST_WAIT: Final = 0.5


class ResultReader(msgspec.Struct, frozen=True):
    """How a job's result is read; None: it keeps none."""

    decode: Callable[[str], Any] | None


class Handle(Generic[R_co]):
    """One enqueued job. `duplicate`: it was there already. `stored`: False only where best effort was not enough."""

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

    def status(self) -> Status:
        """Where it is now. NoSuchMessage: it was rolled back, is not committed yet, or its retention has passed."""
        refuse_in_event_loop("handle.astatus(…)")
        return self._status()

    async def astatus(self) -> Status:
        """As `status`, for async code."""
        return await asyncio.to_thread(self._status)

    def result(self, timeout: Duration | None = None) -> R_co:
        """What the job returned, once it has: waits up to `timeout` (None: as long as it takes).

        JobAborted if it became a dead letter, TimeoutError if it takes longer, ResultNotKept if the job was declared
        without `keep_result=True`, CannotOpen if it is encrypted and its key is gone or not here.
        """
        refuse_in_event_loop("handle.aresult(…)")
        for wait in self._waits(timeout):
            standing = self._look_inside()
            if standing is not None and standing.status == Status.SUCCEEDED:
                return self._value(standing)
            self._refuse_aborted(standing)
            time.sleep(wait)
        raise self._late(timeout)

    async def aresult(self, timeout: Duration | None = None) -> R_co:  # noqa: ASYNC109 - the same call as `result`
        """As `result`, for async code."""
        for wait in self._waits(timeout):
            standing = await asyncio.to_thread(self._look_inside)
            if standing is not None and standing.status == Status.SUCCEEDED:
                return self._value(standing)
            self._refuse_aborted(standing)
            await asyncio.sleep(wait)
        raise self._late(timeout)

    def cancel(self, *, by: str, why: str) -> bool:
        """Cancel it: True if it had not ended. What runs is asked to stop, and a success that comes first wins."""
        refuse_in_event_loop("handle.acancel(…)")
        return self._cancel(signed(by, why))

    async def acancel(self, *, by: str, why: str) -> bool:
        """As `cancel`, for async code."""
        return await asyncio.to_thread(self._cancel, signed(by, why))

    # ------------------------------------------------------------------------------------------- inside

    def _look(self) -> Standing | None:
        return self._store.deliveries.standing(self.id, self.job)

    def _look_inside(self) -> Standing | None:
        """As _look, with the result opened if it is sealed. Blocks."""
        standing = self._look()
        if standing is None or standing.result is None or self._opener is None:
            return standing
        opened = self._opener.result(standing.result, str(self.id), self.job)
        return msgspec.structs.replace(standing, result=opened)

    def _status(self) -> Status:
        standing = self._look()
        if standing is None:
            raise NoSuchMessage(
                f"there is no {self.job} {self.id}",
                hint="its transaction is not committed or was rolled back, or its retention has passed",
            )
        return Status(standing.status)

    def _cancel(self, who: Signed) -> bool:
        return operate.cancel(self._store, Filter(message_id=self.id, destination=self.job), who).changed > 0

    def _waits(self, timeout: Duration | None) -> Iterator[float]:
        """How long to wait after each look: longer each time, and the last look is when the time is up."""
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
                hint="mend the cause, then replay it",
                reason=reason,
            )

    def _late(self, timeout: Duration | None) -> TimeoutError:
        return TimeoutError(f"{self.job} {self.id} has no result after {timeout} s; it goes on")


def signed(by: str, why: str) -> Signed:
    """Who and why, both said: they are all that the audit will know."""
    if not (by and by.strip() and why and why.strip()):
        raise InvalidAct(f"by={by!r}, why={why!r} does not say who and why", hint='by="ada", why="sent by mistake"')
    return Signed(by, why)
