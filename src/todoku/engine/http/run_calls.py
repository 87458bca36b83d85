"""The requests of workflow runs at the moment they are sent: whether their run goes on, and the body of a call."""

from __future__ import annotations

from uuid import UUID

from todoku.core.destination import Outgoing
from todoku.core.errors import NotThere
from todoku.core.http_request import RunPart
from todoku.core.workflow_run import CallItem, call_body, timed_out_step
from todoku.engine.encryption.run_texts import RunTexts
from todoku.engine.http.run_writer import RunWriter
from todoku.engine.outbox import Outbox
from todoku.store.http_runs import HttpRunStep, RunTransaction


class RunCalls:
    """Builds the bodies of calls, for one App. Thread-safe; calls block."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._writer = RunWriter(outbox)

    def body(self, part: RunPart, message: Outgoing) -> bytes | None:
        """Returns the body of a request of a run: that of a call has all steps up to its own.

        None: the run has ended, so there is nothing to send. A call without a step is that of a wait whose time is
        over: its step is appended now, unless an event has ended the wait.
        """
        if part.part == "failure":
            return message.payload
        run = self._outbox.store.http_runs.get(part.id)
        if run is None or not run.is_open:
            return None
        if part.part != "step":
            return message.payload
        id = UUID(message.message_id)
        steps = self._outbox.store.http_runs.steps(part.id, until=id)
        if not steps:
            self._end_wait(part.id, id)
            steps = self._outbox.store.http_runs.steps(part.id, until=id)
        return call_body(call_items(self._writer.texts, part.id, steps)) if steps else None

    def steps(self, run_id: str) -> list[CallItem]:
        """Returns the steps of a run that has not ended. NotThere."""
        run = self._outbox.store.http_runs.get(run_id)
        if run is None or not run.is_open:
            raise NotThere(f"there is no workflow run {run_id!r}, or it has ended", hint="GET /v2/workflows/logs")
        return call_items(self._writer.texts, run_id, self._outbox.store.http_runs.steps(run_id))

    def _end_wait(self, run_id: str, message_id: UUID) -> None:
        """Appends the step of a wait whose time is over, unless an event has ended the wait meanwhile."""

        def work(change: RunTransaction) -> None:
            if (row := change.waiter_with(run_id, message_id)) is not None:
                self._writer.resolve(change, row, lambda step: timed_out_step(step, row.event_id))

        self._outbox.store.http_runs.write(work)


def call_items(texts: RunTexts, run_id: str, steps: tuple[HttpRunStep, ...]) -> list[CallItem]:
    """Returns the steps of a run as its calls contain them, without the requests to third parties."""
    return [
        CallItem(message_id=str(step.message_id), body=texts.open_body(run_id, step.key, step.body))
        for step in steps
        if step.call_type == "step"
    ]
