"""What every change of a workflow run has in common: its lock, its steps, and the calls of its URL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from todoku.core.errors import InvalidMessage, RunEnded
from todoku.core.http_request import HttpRequest, RunPart
from todoku.core.message import Draft
from todoku.core.workflow_run import MOST_BYTES, RunStep, call_request, parse_step
from todoku.engine.encryption.run_texts import RunTexts
from todoku.engine.http.request_draft import Posting, request_draft
from todoku.engine.outbox import Outbox, new_id
from todoku.store.http_runs import CallType, NewStep, RunRow, RunTransaction, WaiterRow


def open_run(change: RunTransaction, run_id: str) -> RunRow:
    """Locks a run that has not ended. RunEnded."""
    run = change.lock(run_id)
    if run is None or not run.is_open:
        what = "does not exist" if run is None else f"has ended: {run.state}"
        raise RunEnded(f"the workflow run {run_id} {what}", hint="start another one")
    return run


def part_of(run_id: str, created_at: datetime) -> RunPart:
    """Returns the part of a call in its run."""
    return RunPart(id=run_id, created_at=round(created_at.timestamp() * 1000))


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

    def resolve(self, change: RunTransaction, row: WaiterRow, body: Callable[[dict[str, Any]], bytes]) -> RunRow | None:
        """Ends a wait: appends the step with this body, and makes its call due. None: the wait had ended before."""
        run = change.lock(row.run_id)
        if run is None or not run.is_open or not change.take_waiter(row.run_id, row.message_id):
            return None
        made = body(msgspec.json.decode(row.step))
        self.add(change, run.id, row.step_key, made, row.message_id, before=run.bytes, step=parse_step(made))
        change.hasten(row.message_id)
        return run
