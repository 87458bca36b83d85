"""Publishes of a workflow's SDK: they start runs, append the results of steps, and request third parties.

The SDK decides what a step is and in which order steps run. todoku stores each result once, and calls the URL of the
run again after each (decision 50).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import msgspec

from todoku.core.errors import InvalidMessage, RunEnded
from todoku.core.http_request import TOPIC, HttpRequest
from todoku.core.message import Draft, Message
from todoku.core.workflow_run import (
    INITIAL,
    Invocation,
    RunOptions,
    RunStep,
    call_request,
    invoked_event,
    parse_step,
    third_party_request,
)
from todoku.core.workflow_webhook import CREATE
from todoku.engine.http.request_draft import Posting
from todoku.engine.http.run_webhooks import create_webhook
from todoku.engine.http.run_writer import RunWriter, open_run, part_of
from todoku.engine.outbox import Outbox
from todoku.store.columns import EPOCH
from todoku.store.http_runs import NewRun, RunRow, RunTransaction

_INVOKED_FOR: Final = 3660 * 86_400.0
"""Seconds after which a run that invoked another stops waiting for it."""

_INITIAL_STEP: Final = RunStep(step_id=0, step_name="init", step_type="Initial")

_Put = tuple[Message, Draft | None]
"""The message of a publish, and its draft; without one it is a duplicate."""


class RunPost(msgspec.Struct, frozen=True, kw_only=True):
    """A publish of a workflow's SDK, parsed and checked."""

    run: RunOptions
    request: HttpRequest
    body: bytes
    posting: Posting


class RunPublisher:
    """Stores what the SDKs of workflows publish. Thread-safe; calls block."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._writer = RunWriter(outbox)

    def put(self, posts: Sequence[RunPost], others: Sequence[Draft]) -> tuple[list[Message], list[Message]]:
        """Starts runs, and appends steps with the messages that continue them, in one transaction: all or none.

        A run or a step that exists is a duplicate: its first message is returned. `others`: drafts that belong to no
        run, stored in the same transaction; their messages are the second list. RunEnded.
        """
        drafts: list[Draft] = []

        def work(change: RunTransaction) -> tuple[list[Message], list[Message]]:
            drafts[:] = others
            found: dict[int, Message] = {}
            for number in sorted(range(len(posts)), key=lambda at: (posts[at].run.id, at)):  # sorted locks (H11)
                found[number], draft = self._put(change, posts[number])
                if draft is not None:
                    drafts.append(draft)
            stored = change.publish(drafts)
            return [found[number] for number in range(len(posts))], stored[: len(others)]

        result = self._outbox.store.http_runs.write(work)
        self.tell(drafts)
        return result

    def begin(self, change: RunTransaction, post: RunPost) -> Draft:
        """Starts a run with an id that is new, in an open transaction. `tell` is for after its commit. RunEnded."""
        _, draft = self._start(change, post, None, post.body)
        if draft is None:
            raise RunEnded(f"there is a workflow run {post.run.id} already", hint="start one with another id")
        change.publish([draft])
        return draft

    def tell(self, drafts: Sequence[Draft]) -> None:
        """Wakes the workers, and counts these drafts, which are committed."""
        self._outbox.wake()
        self._outbox.telemetry.published(drafts, [_message(draft.id) for draft in drafts])

    def _put(self, change: RunTransaction, post: RunPost) -> _Put:
        if post.run.init:
            return self._invoke(change, post) if post.run.invoke else self._start(change, post, None, post.body)
        run = open_run(change, post.run.id)
        if post.run.call is not None:
            return self._call(change, run, post, post.run.call)
        step = parse_step(post.body)
        if (known := change.message_of(run.id, step.key) or change.waiter_of(run.id, step.key)) is not None:
            return _message(known, duplicate=True), None
        draft = self._writer.call_draft(run, post.posting)
        creates = step.step_type == CREATE and not step.is_plan
        body = create_webhook(change, run, post.body) if creates else post.body
        self._writer.add(change, run.id, step.key, body, draft.id, before=run.bytes, step=step)
        return _message(draft.id), draft

    def _start(self, change: RunTransaction, post: RunPost, invoker: str | None, body: bytes) -> _Put:
        id, config = post.run.id, msgspec.structs.replace(post.request, url=post.run.url, callback=None)
        request = self._writer.texts.close_request(id, config)
        new = NewRun(id=id, url=config.url, request=request, labels=config.labels, invoker=invoker)
        if (created_at := change.create(new)) is None:
            if (first := change.message_of(id, INITIAL)) is None:
                raise RunEnded(f"the workflow run {id} is being removed", hint="start one with another id")
            return _message(first, duplicate=True), None
        draft = self._writer.draft(call_request(config, part_of(id, created_at)), post.posting)
        self._writer.add(change, id, INITIAL, body, draft.id, step=_INITIAL_STEP)
        return _message(draft.id), draft

    def _invoke(self, change: RunTransaction, post: RunPost) -> _Put:
        """Starts a run for another one, which waits until it has ended; once for each step of the other."""
        try:
            given = msgspec.json.decode(post.body, type=Invocation)
        except msgspec.DecodeError as error:
            raise InvalidMessage(f"the invocation cannot be read: {error}", hint="only the SDK invokes") from None
        run, step = open_run(change, given.workflow_run_id), parse_step(msgspec.json.encode(given.step))
        key = f"invoke-{step.key}"
        if (known := change.message_of(run.id, key)) is not None:
            return _message(known, duplicate=True), None
        message, draft = self._start(change, post, run.id, (given.body or "").encode())
        if draft is None:
            raise InvalidMessage(f"the workflow run {post.run.id} exists", hint="invoke it with another workflowRunId")
        self._writer.add(change, run.id, key, b"", message.id, step=step, call_type="toCallback")
        self._writer.wait(change, run, step.key, invoked_event(post.run.id), given.step, _INVOKED_FOR)
        return message, draft

    def _call(self, change: RunTransaction, run: RunRow, post: RunPost, key: str) -> _Put:
        """Requests a third party, once for each step; its answer comes back to the run's URL by a callback."""
        if (known := change.message_of(run.id, key)) is not None:
            return _message(known, duplicate=True), None
        part = part_of(run.id, run.created_at)
        request = third_party_request(post.request, self._writer.config(run), part)
        draft = self._writer.draft(request, post.posting, post.body)
        self._writer.add(change, run.id, key, b"", draft.id, call_type="toCallback")
        return _message(draft.id), draft


def _message(id: UUID, *, duplicate: bool = False) -> Message:
    return Message(id=id, topic=TOPIC, key=None, duplicate=duplicate, created_at=EPOCH)
