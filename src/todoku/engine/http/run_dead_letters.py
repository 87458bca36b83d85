"""Workflow runs that have failed: go on with the step that failed, or begin again as a new run."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from todoku.core.http_request import RunPart
from todoku.core.workflow_run import RunOptions
from todoku.engine.http import dead_letters
from todoku.engine.http.dead_letters import RequestDeadLetter, Selection
from todoku.engine.http.request_draft import Posting
from todoku.engine.http.run_acts import RunActs
from todoku.engine.http.run_publisher import RunPost, RunPublisher
from todoku.engine.http.run_writer import RunWriter
from todoku.engine.outbox import Outbox, new_id
from todoku.store.audit import Signed


class ResumedRun(msgspec.Struct, frozen=True):
    """A run that goes on, or a new one."""

    id: str
    created_at: datetime


class RunDeadLetters:
    """Dead letters of workflow runs, for one App. Calls block."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._writer, self._acts, self._publisher = RunWriter(outbox), RunActs(outbox), RunPublisher(outbox)

    def resume(self, dead_ids: Sequence[str], signed: Signed) -> list[ResumedRun]:
        """Replays dead letters of runs, from the step that failed. Others are passed over."""
        found = self._found(dead_ids)
        chosen = Selection(dead_ids=tuple(each.id for each, _ in found))
        done = dead_letters.replay(self._outbox, chosen, signed).message_ids if found else ()
        return [_resumed(part) for each, part in found if each.request.message_id in done]

    def restart(self, dead_ids: Sequence[str], signed: Signed) -> list[ResumedRun]:
        """Starts a new run for each failed one, with its options and its first body; the failed one is cancelled."""
        return [
            new for _, part in self._found(dead_ids) if (new := self._restart(part.id, signed)) is not None
        ]  # fmt: skip

    def remove(self, dead_ids: Sequence[str], signed: Signed) -> int:
        """Removes dead letters of runs for good: these runs do not go on. Returns how many."""
        chosen = Selection(dead_ids=tuple(each.id for each, _ in self._found(dead_ids)))
        return len(dead_letters.purge(self._outbox, chosen, signed).message_ids) if chosen.dead_ids else 0

    def _found(self, dead_ids: Sequence[str]) -> list[tuple[RequestDeadLetter, RunPart]]:
        page = dead_letters.find(self._outbox, Selection(dead_ids=tuple(dead_ids)), limit=len(dead_ids) or 1)
        return [(each, each.request.request.run) for each in page.items if each.request.request.run is not None]

    def _restart(self, run_id: str, signed: Signed) -> ResumedRun | None:
        run, steps = self._outbox.store.http_runs.get(run_id), self._outbox.store.http_runs.steps(run_id)
        if run is None or not run.is_open or not steps:
            return None
        body = base64.b64decode(self._writer.texts.open_body(run_id, steps[0].key, steps[0].body))
        id = f"wfr_{new_id().hex}"
        options = RunOptions(id=id, url=run.url, init=True)
        post = RunPost(run=options, request=self._writer.config(run), body=body, posting=Posting())
        self._publisher.put([post], [])
        self._acts.cancel(run_id, signed)
        new = self._outbox.store.http_runs.get(id)
        return None if new is None else ResumedRun(id, new.created_at)


def _resumed(part: RunPart) -> ResumedRun:
    return ResumedRun(part.id, datetime.fromtimestamp(part.created_at / 1000, UTC))
