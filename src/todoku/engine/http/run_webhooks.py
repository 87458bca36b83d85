"""Webhooks of workflow runs: they are created by a step, and a request to one is an event for its run."""

from __future__ import annotations

import os

from todoku.core.errors import NotThere, RunEnded
from todoku.core.workflow_run import MOST_BYTES, is_run_id
from todoku.core.workflow_webhook import (
    MOST_KEPT,
    TOKEN_BYTES,
    WebhookRequest,
    created_webhook,
    received_event,
    webhook_digest,
    webhook_event,
    webhook_token,
)
from todoku.engine.http.run_writer import RunWriter, open_run
from todoku.engine.outbox import Outbox
from todoku.store.http_runs import RunRow, RunTransaction


def create_webhook(change: RunTransaction, run: RunRow, body: bytes) -> bytes:
    """Stores the webhook that a step creates. Returns the step with the secret URL. The run is locked."""
    token = webhook_token(os.urandom(TOKEN_BYTES))
    made, origin = created_webhook(run.id, body, token)
    change.add_webhook(run.id, webhook_digest(token), origin)
    return made


def waited_event(change: RunTransaction, run_id: str, event: str) -> str:
    """Returns the event that a step waits for, which is that of a webhook if the run has one. The run is locked."""
    digest = webhook_digest(event)
    return event if change.webhook(run_id, digest) is None else webhook_event(digest)


class RunWebhooks:
    """The webhooks of one App. Thread-safe; calls block."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._writer = RunWriter(outbox)

    def find(self, run_id: str, token: str) -> str | None:
        """Returns the digest of a webhook; None: there is no such webhook, or its run has ended."""
        digest = webhook_digest(token)
        return digest if is_run_id(run_id) and self._outbox.store.http_runs.has_webhook(run_id, digest) else None

    def receive(self, run_id: str, digest: str, request: WebhookRequest) -> bool:
        """Continues the run if it waits, or keeps the request until it does, in one transaction. NotThere.

        False: there is no room for more until the run has taken some.
        """
        event = webhook_event(digest)

        def work(change: RunTransaction) -> bool:
            try:
                run = open_run(change, run_id)
            except RunEnded:
                raise no_webhook() from None
            if (origin := change.webhook(run_id, digest)) is None:
                raise no_webhook()
            data = received_event(origin, request)
            return bool(self._writer.tell(change, event, data, run_id)) or self._keep(change, run, event, data)

        found = self._outbox.store.http_runs.write(work)
        self._outbox.wake()
        return found

    def _keep(self, change: RunTransaction, run: RunRow, event: str, data: bytes) -> bool:
        """Keeps a request for a run that does not wait for it yet. What is kept has to fit among its steps, too."""
        number, size = change.kept(run.id)
        size += len(data) * 4 // 3
        if number >= MOST_KEPT or run.bytes + size * 4 // 3 > MOST_BYTES:  # twice base64
            return False
        self._writer.keep(change, run.id, event, data)
        return True


def no_webhook() -> NotThere:
    """Returns the error for a URL that is none, and for that of a run that has ended: a stranger learns no more."""
    return NotThere("there is no such webhook", hint="it may be that of a workflow run that has ended")
