"""What is done to workflow runs besides publishing: waiting for events, sending them, and ending runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar
from uuid import UUID

import msgspec

from todoku.core.duration import interval
from todoku.core.errors import NotThere
from todoku.core.upstash_headers import with_unit
from todoku.core.workflow_run import (
    Wait,
    check_event,
    check_run_id,
    parse_step,
    waited_step,
)
from todoku.engine.http import request_acts
from todoku.engine.http.request_draft import Posting
from todoku.engine.http.run_webhooks import waited_event
from todoku.engine.http.run_writer import RunWriter, open_run
from todoku.engine.operations import BATCH
from todoku.engine.outbox import Outbox
from todoku.store.audit import Signed
from todoku.store.deliveries import Filter
from todoku.store.http_runs import RunFilter, RunTransaction, ShownState, WaiterRow

LONGEST_WAIT: Final = 366 * 86_400.0
_WAIT: Final = "7d"
_FINISHED: Final = Signed("todoku", "the workflow run has ended")
_OPEN: Final[tuple[ShownState, ...]] = ("started", "failed")
T = TypeVar("T")


class HttpRunActs:
    """Events and ends of workflow runs, for one App. Thread-safe; calls block."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._writer = RunWriter(outbox)

    def wait(self, run_id: str, event: str, wait: Wait) -> UUID:
        """Lets a step wait for an event: for one that was kept for the run, or until the time to wait is over.

        Returns the message that continues the run. Repeated, it changes nothing. RunEnded.
        """
        check_event(event)
        step = parse_step(msgspec.json.encode(wait.step))
        timeout = interval(with_unit(wait.timeout or _WAIT), what="timeout", longest=LONGEST_WAIT)

        def work(change: RunTransaction) -> UUID:
            run = open_run(change, run_id)
            if (known := change.message_of(run_id, step.key) or change.waiter_of(run_id, step.key)) is not None:
                return known
            awaited = waited_event(change, run_id, event)
            if (data := self._writer.take(change, run_id, awaited)) is None:
                return self._writer.wait(change, run, step.key, awaited, wait.step, timeout)
            draft = self._writer.call_draft(run, Posting())
            body = waited_step(wait.step, awaited, data)
            self._writer.add(change, run_id, step.key, body, draft.id, before=run.bytes, step=step)
            change.publish([draft])
            return draft.id

        return self._changed(work)

    def notify(self, event: str, data: bytes, run_id: str | None = None) -> list[tuple[WaiterRow, str]]:
        """Continues the runs that wait for an event; a named run only. Returns their waits and URLs.

        The event is kept for a named run that does not wait for it yet. RunEnded: the named run.
        """
        check_event(event)

        def work(change: RunTransaction) -> list[tuple[WaiterRow, str]]:
            if run_id is not None:
                open_run(change, check_run_id(run_id))
            done = self._writer.tell(change, event, data, run_id)
            if run_id is not None and not done:
                self._writer.keep(change, run_id, event, data)
            return done

        return self._changed(work)

    def finish(self, run_id: str, result: bytes) -> None:
        """Ends a run as a success, with the JSON text that it returned. Repeated, it changes nothing. NotThere."""
        self._end(run_id, result, _FINISHED, canceled=False)

    def cancel(self, run_id: str, signed: Signed) -> bool:
        """Cancels a run with its waiting requests: nothing can be added. NotThere. False: it had ended before."""
        return self._end(run_id, b"", signed, canceled=True)

    def cancel_many(self, which: RunFilter, signed: Signed, *, limit: int) -> int:
        """Cancels the newest matching runs that have not ended. Returns how many."""
        number = 0
        for state in _OPEN:
            rows = self._outbox.store.http_runs.find(msgspec.structs.replace(which, state=state), limit=limit - number)
            number += sum(self.cancel(row.id, signed) for row in rows)
            if number >= limit:
                break
        return number

    def _end(self, run_id: str, result: bytes, signed: Signed, *, canceled: bool) -> bool:
        """Ends a run, and continues the one that has invoked it, in one transaction. False: it had ended before.

        Requests of the run that wait are cancelled afterwards. A running one ends by itself, as the run takes no more
        steps. If this process dies before, nothing is sent, either: a call of an ended run is dropped when it is due.
        """
        calls = self._outbox.store.http_runs.calls(check_run_id(run_id))

        def work(change: RunTransaction) -> bool:
            if change.lock(run_id) is None:
                raise NotThere(f"there is no workflow run {run_id!r}", hint="GET /v2/workflows/logs lists them")
            return self._writer.end(change, run_id, result, canceled=canceled)

        ended = self._changed(work)
        if ended:
            self.cancel_waiting(calls, signed)
        return ended

    def cancel_waiting(self, calls: tuple[int, ...], signed: Signed) -> None:
        """Cancels those of these calls that wait. Their run has ended."""
        store = self._outbox.store
        for start in range(0, len(calls), BATCH):
            some = calls[start : start + BATCH]
            rows = store.deliveries.find(Filter(ids=some), limit=len(some)).items
            request_acts.cancel_each(store, [row for row in rows if row.status != "sending"], signed)

    def _changed(self, work: Callable[[RunTransaction], T]) -> T:
        found = self._outbox.store.http_runs.write(work)
        self._outbox.wake()
        return found
