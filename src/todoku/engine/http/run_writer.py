"""What every change of a workflow run has in common: its lock, its steps, and the calls of its URL."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from todoku.core.duration import milliseconds
from todoku.core.errors import InvalidMessage, RunEnded
from todoku.core.http_request import HttpRequest, RunPart
from todoku.core.message import Draft
from todoku.core.workflow_run import (
    MOST_BYTES,
    RunStep,
    call_request,
    invoked_event,
    invoked_step,
    parse_step,
    waited_step,
)
from todoku.engine.encryption.run_texts import RunTexts
from todoku.engine.http.request_draft import Posting, request_draft
from todoku.engine.outbox import Outbox, new_id
from todoku.store.http_runs import CallType, NewStep, RunRow, RunTransaction, WaiterRow

RESULT: Final = "result"
"""The place of a run's result among its sealed texts."""


def open_run(change: RunTransaction, run_id: str) -> RunRow:
    """Locks a run that has not ended. RunEnded."""
    run = change.lock(run_id)
    if run is None or not run.is_open:
        what = "does not exist" if run is None else f"has ended: {run.state}"
        raise RunEnded(f"the workflow run {run_id} {what}", hint="start another one")
    return run


def part_of(run_id: str, created_at: datetime) -> RunPart:
    """Returns the part of a call in its run."""
    return RunPart(id=run_id, created_at=milliseconds(created_at))


class RunWriter:
    """Builds the steps and the calls of runs, for one App. Thread-safe."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.texts = RunTexts(outbox.sealer)

    def config(self, run: RunRow) -> HttpRequest:
        """Returns the options that a run was started with."""
        return self.texts.open_request(run.id, run.request)

    def draft(self, request: HttpRequest, posting: Posting, body: bytes = b"") -> Draft:
        """Returns the draft of a request of a run."""
        most = self.outbox.settings.max_payload_bytes
        draft = request_draft(new_id(), request, body, posting, max_payload_bytes=most)
        return self.outbox.sealer.seal_request(draft)

    def call_draft(self, run: RunRow, posting: Posting) -> Draft:
        """Returns the draft of a call of the run's URL. Its body is built when it is sent."""
        return self.draft(call_request(self.config(run), part_of(run.id, run.created_at)), posting)

    def add(
        self,
        change: RunTransaction,
        run_id: str,
        key: str,
        body: bytes,
        message_id: UUID,
        *,
        before: int = 0,
        step: RunStep | None = None,
        call_type: CallType = "step",
    ) -> None:
        """Appends a step to a run that has `before` bytes. InvalidMessage: it would have too many."""
        if before + len(body) > MOST_BYTES:
            hint = f"all steps of a run may have {MOST_BYTES >> 20} MiB: return references from steps"
            raise InvalidMessage("the steps of the workflow run are too large", hint=hint)
        named = {} if step is None else {"name": step.step_name, "type": step.step_type}
        text = self.texts.close_body(run_id, key, body)
        change.add(run_id, NewStep(key=key, message_id=message_id, body=text, call_type=call_type, **named))

    def wait(
        self, change: RunTransaction, run: RunRow, key: str, event: str, step: Mapping[str, Any], timeout: float
    ) -> UUID:
        """Stores that a step waits, and the call that is made after it: at the latest when its time is over."""
        draft = self.call_draft(run, Posting(delay=timeout))
        change.publish([draft])
        change.add_waiter(run.id, key, event, msgspec.json.encode(step).decode(), draft.id, timeout)
        return draft.id

    def tell(self, change: RunTransaction, event: str, data: bytes, run_id: str | None) -> list[tuple[WaiterRow, str]]:
        """Continues the runs that wait for an event; a named run only. Returns their waits and URLs."""
        return [
            (row, run.url)
            for row in change.waiters(event, run_id)  # sorted locks (H11)
            if (run := self.resolve(change, row, lambda step: waited_step(step, event, data))) is not None
        ]

    def keep(self, change: RunTransaction, run_id: str, event: str, data: bytes) -> None:
        """Keeps an event for a run that does not wait for it yet. The run is locked."""
        change.keep_event(run_id, event, self.texts.close_body(run_id, f"event {event}", data))

    def take(self, change: RunTransaction, run_id: str, event: str) -> bytes | None:
        """Takes the data of the oldest event that was kept for a run; None: there is none. The run is locked."""
        kept = change.take_event(run_id, event)
        return None if kept is None else base64.b64decode(self.texts.open_body(run_id, f"event {event}", kept))

    def end(self, change: RunTransaction, run_id: str, result: bytes, *, canceled: bool) -> bool:
        """Ends a run, and continues the one that has invoked it. The run is locked. False: it had ended before."""
        closed = self.texts.close_body(run_id, RESULT, result)
        if not change.end(run_id, "canceled" if canceled else "success", closed):
            return False
        text = result.decode(errors="replace")
        for row in change.waiters(invoked_event(run_id), None):
            self.resolve(change, row, lambda step: invoked_step(step, text, canceled=canceled))
        return True

    def resolve(self, change: RunTransaction, row: WaiterRow, body: Callable[[dict[str, Any]], bytes]) -> RunRow | None:
        """Ends a wait: appends the step with this body, and makes its call due. None: the wait had ended before."""
        run = change.lock(row.run_id)
        if run is None or not run.is_open or not change.take_waiter(row.run_id, row.message_id):
            return None
        made = body(msgspec.json.decode(row.step))
        self.add(change, run.id, row.step_key, made, row.message_id, before=run.bytes, step=parse_step(made))
        change.hasten(row.message_id)
        return run
