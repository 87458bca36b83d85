"""Workflow runs that have failed: go on with the step that failed, or begin again as a new run."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final
from uuid import UUID

import msgspec

from todoku.core.errors import InvalidAct, NotThere, RunEnded
from todoku.core.http_request import FlowControl, HttpRequest, RunPart
from todoku.core.message import Draft
from todoku.core.workflow_run import INITIAL, RunOptions, call_request
from todoku.engine.http import dead_letters, flow_control, request_acts
from todoku.engine.http.dead_letters import DeadLetterPage, RequestDeadLetter, Selection
from todoku.engine.http.request_draft import Posting
from todoku.engine.http.run_acts import HttpRunActs
from todoku.engine.http.run_publisher import RunPost, RunPublisher
from todoku.engine.http.run_writer import RunWriter, open_run, part_of
from todoku.engine.outbox import Outbox, new_id
from todoku.store.acts import Acted
from todoku.store.audit import Signed
from todoku.store.deliveries import Filter
from todoku.store.http_runs import RunRow, RunTransaction
from todoku.store.letters import Letters, LetterTransaction

_STOPPING: Final = ("step", "result")
"""The parts of a run without which it does not go on. A failed request to a third party was answered nevertheless."""

_FAILURE: Final = ("failure",)
_MOST_PAGES: Final = 50


class ResumedRun(msgspec.Struct, frozen=True):
    """A run that goes on, or a new one."""

    id: str
    created_at: datetime


class ResumedRuns(msgspec.Struct, frozen=True):
    """Runs that go on, and the cursor of the next page (None: this is the last)."""

    runs: tuple[ResumedRun, ...]
    cursor: str | None


class RunSelection(msgspec.Struct, frozen=True, kw_only=True):
    """Selects dead letters of runs. `callback_failed`: only those whose failure callback is a dead letter, too."""

    chosen: Selection = dead_letters.EVERYTHING
    callback_failed: bool = False


class OptionChanges(msgspec.Struct, frozen=True, kw_only=True):
    """Options that a run gets instead of those it was started with; None: it keeps its own."""

    retries: int | None = None
    flow: FlowControl | None = None

    def applied(self, to: HttpRequest) -> HttpRequest:
        """Returns the options of a run with these changes."""
        retries = to.retries if self.retries is None else self.retries
        return msgspec.structs.replace(to, retries=retries, flow=self.flow or to.flow)


UNCHANGED: Final = OptionChanges()
_Found = tuple[RequestDeadLetter, RunPart]


class RunDeadLetters:
    """Dead letters of workflow runs, for one App. Calls block."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._writer, self._acts, self._publisher = RunWriter(outbox), HttpRunActs(outbox), RunPublisher(outbox)

    def find(self, which: RunSelection, *, cursor: str | None = None, limit: int = 100) -> DeadLetterPage:
        """Returns one page of dead letters that runs stop for, the last to die first."""
        chosen = _of(which.chosen, _STOPPING)
        if not which.callback_failed:
            return dead_letters.find(self._outbox, chosen, cursor=cursor, limit=limit)
        since = Filter(run_ids=chosen.which.run_ids, run_parts=_FAILURE, since=chosen.which.since)
        page = dead_letters.find(self._outbox, Selection(which=since), cursor=cursor, limit=limit)
        sources = tuple(UUID(id) for each in page.items if (id := each.request.request.source) is not None)
        if not sources:
            return DeadLetterPage((), page.cursor)
        chosen = Selection(which=msgspec.structs.replace(chosen.which, message_ids=sources))
        return DeadLetterPage(dead_letters.find(self._outbox, chosen, limit=limit).items, page.cursor)

    def failed_callbacks(self, letters: Sequence[RequestDeadLetter]) -> dict[UUID, RequestDeadLetter]:
        """Returns those failure callbacks of dead letters that are dead letters, too, by the message that failed."""
        with_callback = [each.request for each in letters if each.request.request.failure_callback is not None]
        if not with_callback:
            return {}
        sources = tuple(str(each.message_id) for each in with_callback)
        since = min(each.delivery.updated_at for each in with_callback)
        which, cursor = Selection(which=Filter(sources=sources, run_parts=_FAILURE, since=since)), None
        found: dict[UUID, RequestDeadLetter] = {}
        for _ in range(_MOST_PAGES):
            page = dead_letters.find(self._outbox, which, cursor=cursor)
            for each in page.items:
                found.setdefault(UUID(each.request.request.source), each)  # the last to die comes first
            if (cursor := page.cursor) is None:
                break
        return found

    def resume(
        self,
        which: RunSelection,
        signed: Signed,
        *,
        changes: OptionChanges = UNCHANGED,
        cursor: str | None = None,
        limit: int = 100,
    ) -> ResumedRuns:
        """Replays one page of dead letters of runs, from the step that failed."""
        found, following = self._page(which, cursor, limit)
        if changes == UNCHANGED:
            return ResumedRuns(tuple(self._replay(found, signed)), following)
        self._ensure(changes)
        runs = [self._resume_changed(each, part, changes, signed) for each, part in found]
        return ResumedRuns(tuple(run for run in runs if run is not None), following)

    def restart(
        self,
        which: RunSelection,
        signed: Signed,
        *,
        changes: OptionChanges = UNCHANGED,
        cursor: str | None = None,
        limit: int = 100,
    ) -> ResumedRuns:
        """Starts a new run for each failed one of a page, with its first body.

        The failed run is cancelled, and its dead letters on the page removed: one transaction for each run.
        """
        self._ensure(changes)
        found, following = self._page(which, cursor, limit)
        by_run: dict[str, list[RequestDeadLetter]] = {}
        for each, part in found:
            by_run.setdefault(part.id, []).append(each)
        runs = [self._restart(run_id, letters, changes, signed) for run_id, letters in by_run.items()]
        return ResumedRuns(tuple(run for run in runs if run is not None), following)

    def remove(
        self, which: RunSelection, signed: Signed, *, cursor: str | None = None, limit: int = 100
    ) -> tuple[int, str | None]:
        """Removes one page of dead letters of runs for good: the runs do not go on. Returns how many, and a cursor."""
        found, following = self._page(which, cursor, limit)
        return self._purge(found, signed) if found else 0, following

    def retry_callback(self, dead_id: str, signed: Signed) -> ResumedRun:
        """Sends the failure callback of a run again. NotThere: the dead letter. InvalidAct: it has not failed."""
        letter = dead_letters.get(self._outbox, dead_id)
        part = None if letter is None else letter.request.request.run
        if letter is None or part is None:
            hint = "GET /v2/dlq?source=workflow lists them"
            raise NotThere(f"there is no dead letter {dead_id[:64]!r} of a workflow run", hint=hint)
        if part.part != "failure":
            callback = self.failed_callbacks([letter]).get(letter.request.message_id)
            if callback is None:
                hint = "it has none, or it is still being tried, or has succeeded"
                raise InvalidAct(f"the failure callback of the run {part.id} is no dead letter", hint=hint)
            letter = callback
        dead_letters.replay(self._outbox, Selection(dead_ids=(letter.id,)), signed)
        return _resumed(part)

    # ------------------------------------------------------------------------------------------ private

    def _page(self, which: RunSelection, cursor: str | None, limit: int) -> tuple[list[_Found], str | None]:
        page = self.find(which, cursor=cursor, limit=limit)
        found = [(each, part) for each in page.items if (part := each.request.request.run) is not None]
        return found, page.cursor

    def _ensure(self, changes: OptionChanges) -> None:
        if changes.flow is not None:
            flow_control.check(changes.flow)
            flow_control.ensure(self._outbox.store, changes.flow)

    def _replay(self, found: Sequence[_Found], signed: Signed) -> list[ResumedRun]:
        chosen = Selection(dead_ids=tuple(each.id for each, _ in found))
        done = dead_letters.replay(self._outbox, chosen, signed, limit=len(found)).message_ids if found else ()
        return [_resumed(part) for each, part in found if each.request.message_id in done]

    def _purge(self, found: Sequence[_Found], signed: Signed) -> int:
        chosen = Selection(dead_ids=tuple(each.id for each, _ in found))
        return len(dead_letters.purge(self._outbox, chosen, signed, limit=len(found)).message_ids)

    def _resume_changed(
        self, letter: RequestDeadLetter, part: RunPart, changes: OptionChanges, signed: Signed
    ) -> ResumedRun | None:
        """Calls the URL of a run again with other options, by a new message: messages are never changed.

        It takes the place of the dead letter in one transaction. None: the dead letter is gone, or no step needs it.
        """
        if part.part != "step":
            return next(iter(self._replay([(letter, part)], signed)), None)

        def work(change: LetterTransaction, letters: Letters) -> Acted:
            run = open_run(change, part.id)
            taken = change.take(letters, signed)
            if taken.changed:
                config = changes.applied(self._writer.config(run))
                draft = self._writer.draft(call_request(config, part_of(run.id, run.created_at)), Posting())
                if not change.replace_call(run.id, letter.request.message_id, draft.id):
                    raise RunEnded(f"no step of the run {run.id} needs the call", hint="delete the dead letter")
                change.change_options(run.id, self._writer.texts.close_request(run.id, config))
                change.publish([draft])
            return taken

        try:
            taken = self._take([letter], work)
        except RunEnded:
            return None
        self._outbox.wake()
        return _resumed(part) if taken else None

    def _restart(
        self, run_id: str, letters: Sequence[RequestDeadLetter], changes: OptionChanges, signed: Signed
    ) -> ResumedRun | None:
        """Takes the dead letters of a run, ends it and begins another in its place, in one transaction.

        None: the dead letters are gone, or the run had ended before. Calls of the old run that wait are cancelled
        afterwards; if this process dies before, they are dropped when they are due.
        """
        begun: list[tuple[Draft, ResumedRun]] = []
        calls = self._outbox.store.http_runs.calls(run_id)

        def work(change: LetterTransaction, letters: Letters) -> Acted:
            run = change.lock(run_id)
            taken = change.take(letters, signed)
            if taken.changed and run is not None and run.is_open:
                begun[:] = self._begin_again(change, run, changes)
            return taken

        self._take(letters, work)
        if not begun:
            return None
        ((draft, run),) = begun
        self._publisher.tell([draft])
        self._acts.cancel_waiting(calls, signed)
        return run

    def _begin_again(
        self, change: RunTransaction, run: RunRow, changes: OptionChanges
    ) -> list[tuple[Draft, ResumedRun]]:
        """Ends a run that is locked, and begins another with its first body. Nothing, if that is not there any more."""
        if (first := change.initial_body(run.id)) is None:
            return []
        body = base64.b64decode(self._writer.texts.open_body(run.id, INITIAL, first))
        options = RunOptions(id=f"wfr_{new_id().hex}", url=run.url, init=True)
        config = changes.applied(self._writer.config(run))
        draft = self._publisher.begin(change, RunPost(run=options, request=config, body=body, posting=Posting()))
        self._writer.end(change, run.id, b"", canceled=True)
        new = open_run(change, options.id)
        return [(draft, ResumedRun(new.id, new.created_at))]

    def _take(
        self, letters: Sequence[RequestDeadLetter], work: Callable[[LetterTransaction, Letters], Acted]
    ) -> frozenset[int]:
        """Takes dead letters by `work`, which is called inside a transaction. Returns the deliveries it has taken."""
        store = self._outbox.store

        def act(letters: Letters) -> Acted:
            return store.letters.write(lambda change: work(change, letters))

        return request_acts.take_each(store, [each.request.delivery for each in letters], act)


def _of(chosen: Selection, parts: tuple[str, ...]) -> Selection:
    return msgspec.structs.replace(chosen, which=msgspec.structs.replace(chosen.which, run_parts=parts))


def _resumed(part: RunPart) -> ResumedRun:
    return ResumedRun(part.id, datetime.fromtimestamp(part.created_at / 1000, UTC))
