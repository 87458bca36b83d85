"""`failed_webhook_events`: the dead letters of a queue in a table of the application, to look at and to run again.

Of a queue elsewhere it is filled by looking (`todoku dlq-sync`), of an App by a hook, in the transaction of the hook.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec

from todoku.app import App
from todoku.client.answers import DeadLetter
from todoku.client.embedded_queue import Embedded
from todoku.client.queue import Queue
from todoku.core.ending import Ending
from todoku.core.errors import InvalidAct, NoSuchMessage, QueueRefused
from todoku.core.http_headers import forwardable, is_secret
from todoku.core.msgspec_warmup import learned
from todoku.core.outcome import error_text
from todoku.core.redaction import is_redacted
from todoku.engine.context import Context
from todoku.engine.jobs.job import Job
from todoku.store import failed_event_table
from todoku.store.failed_event_table import TABLE, FailedEvent, checked_table
from todoku.store.join import run
from todoku.store.publish import Publishing
from todoku.store.statements import Steps

EventId = Callable[[DeadLetter], str]
"""Which event a dead letter is about."""

T = TypeVar("T")
_HOOK: Final = "todoku-failed-events"
_NAMED: Final = ("X-Event-Id", "Idempotency-Key", "Webhook-Id")
_LONGEST: Final = 512


class _Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """How to publish an event anew. `coded`: its payload is base64, because it is no text."""

    to: str
    method: str = "POST"
    headers: dict[str, str] = {}
    queue: str | None = None
    coded: bool = False


learned(_Request)


def usual_id(letter: DeadLetter) -> str:
    """The id its publisher gave it, as it travels in the headers; else the message's own."""
    named = {name.lower(): value for name, value in letter.message.headers.items()}
    found = next((value for name in _NAMED if (value := named.get(name.lower()))), letter.message.id)
    return found[:_LONGEST]


def event_of(letter: DeadLetter, event_id: EventId = usual_id) -> FailedEvent:
    """A dead letter as a row. Secrets among its headers are left out, and what its publisher redacted."""
    message = letter.message
    text = _text(message.body)
    headers = {
        name: value
        for name, value in message.headers.items()
        if not is_secret(name) and not is_redacted(value) and forwardable(name)
    }
    request = _Request(message.to, message.method, headers, message.queue, coded=text is None)
    return FailedEvent(
        event_id=event_id(letter),
        payload=base64.b64encode(message.body).decode() if text is None else text,
        error=error_text(letter.error),
        message_id=message.id,
        dlq_id=letter.id,
        request=msgspec.json.encode(request).decode(),
    )


def _text(body: bytes) -> str | None:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


class FailedEvents:
    """The table, in the database of an App; which need not be a todoku database."""

    def __init__(self, box: App, table: str = TABLE, *, event_id: EventId = usual_id) -> None:
        self._box = box
        self._table = checked_table(table)
        self._event_id = event_id

    def sync(self, queue: Queue) -> Iterator[tuple[FailedEvent, bool]]:
        """Look at all dead letters of a queue, and keep them: each with whether it was new, or had died again."""
        self._run(lambda to: failed_event_table.made(to, self._table))
        cursor: str | None = None
        while True:
            looked_at = self._run(lambda to: failed_event_table.clock(to, self._table))
            page = queue.dlq.list(cursor=cursor)
            yield from self._kept([event_of(letter, self._event_id) for letter in page.items], looked_at)
            if (cursor := page.cursor) is None:
                return

    def get(self, event_id: str) -> FailedEvent:
        """An event by its id, or NoSuchMessage."""
        self._run(lambda to: failed_event_table.made(to, self._table))
        event = self._run(lambda to: failed_event_table.found(to, self._table, event_id))
        if event is None:
            raise NoSuchMessage(f"there is no failed event {event_id}", hint=f"todoku dlq-sync fills {self._table}")
        return event

    def rerun(self, queue: Queue, event_id: str, *, by: str, why: str, publish: bool = False) -> str:
        """Have an event sent again, then note who and why; returns the id of the message that is.

        Its dead letter is sent again. `publish`: it is published anew, which works when that is gone, too; the same
        failure is published anew once, however often this is called.
        """
        event = self.get(event_id)
        id = self._published(queue, event) if publish else self._retried(queue, event, by, why)
        self._run(lambda to: failed_event_table.rerun(to, self._table, event, by=by, why=why))
        return id

    def note(self, tx: Any, letter: DeadLetter) -> None:
        """Keep a dead letter in a transaction that is open."""
        to = self._box.outbox.publishing()
        event = event_of(letter, self._event_id)
        run(tx, to.dialect, failed_event_table.made(to, self._table))
        looked_at = run(tx, to.dialect, failed_event_table.clock(to, self._table))
        run(tx, to.dialect, failed_event_table.added(to, self._table, event, looked_at=looked_at))

    # ------------------------------------------------------------------------------------------- inside

    def _run(self, steps: Callable[[Publishing], Steps[T]]) -> T:
        return self._box.store.run(steps(self._box.outbox.publishing()))

    def _kept(self, events: Sequence[FailedEvent], looked_at: str) -> list[tuple[FailedEvent, bool]]:
        """A page in one transaction."""

        def steps(to: Publishing) -> Steps[list[tuple[FailedEvent, bool]]]:
            kept = []
            for event in events:
                new = yield from failed_event_table.added(to, self._table, event, looked_at=looked_at)
                kept.append((event, new))
            return kept

        return self._run(steps) if events else []

    def _retried(self, queue: Queue, event: FailedEvent, by: str, why: str) -> str:
        try:
            return queue.dlq.retry(event.dlq_id, by=by, why=why)
        except QueueRefused as error:
            if error.status != 404:
                raise
            hint = "somebody has sent it again, or deleted it; to publish it anew: --publish"
            raise InvalidAct(f"the queue has no dead letter {event.dlq_id} any more", hint=hint) from error

    def _published(self, queue: Queue, event: FailedEvent) -> str:
        request = msgspec.json.decode(event.request, type=_Request)
        body = base64.b64decode(event.payload) if request.coded else event.payload.encode()
        # Not the event's own id: its first publish may still be remembered by that, and this one be taken for it.
        id = f"rerun:{event.dlq_id}:{event.message_id}"
        if request.queue is None:
            done = queue.publish(request.to, body, method=request.method, headers=request.headers, deduplication_id=id)
        else:
            done = queue.enqueue(
                request.queue, request.to, body, method=request.method, headers=request.headers, deduplication_id=id
            )  # fmt: skip
        return done.id


def failed_events(
    box: App, *, table: str = TABLE, topic: str = "**", name: str = _HOOK, event_id: EventId = usual_id
) -> Job[..., Any]:
    """Let an App fill the table by itself: whatever of `topic` becomes a dead letter is in it, once (S4-31)."""
    events = FailedEvents(box, table, event_id=event_id)
    queue = Embedded(box)

    @box.after("aborted", topic=topic, name=name, transactional=True)
    def note(ctx: Context, ending: Ending) -> None:
        letter = queue.ended(ending)
        if letter is None:
            return ctx.log.warning("FAILED_EVENT_GONE")  # pruned or purged before anybody looked
        return events.note(ctx.tx, letter)

    return note


def chosen_id(rule: str) -> EventId:
    """`header:NAME` or `body:FIELD`, as the command line says it; what has neither is known by the usual id."""
    kind, _, name = rule.partition(":")
    if kind not in ("header", "body") or not name:
        raise InvalidAct(f"event-id cannot be {rule!r}", hint="header:X-Event-Id, or body:id")

    def of(letter: DeadLetter) -> str:
        try:
            if kind == "header":
                named = {key.lower(): value for key, value in letter.message.headers.items()}
                return named[name.lower()][:_LONGEST]
            value = json.loads(letter.message.body)[name]
            return str(value)[:_LONGEST] if value else usual_id(letter)
        except (ValueError, KeyError, TypeError):
            return usual_id(letter)

    return of
