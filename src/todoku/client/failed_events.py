"""`failed_webhook_events`: a table with the dead letters of a queue, to inspect and to send again.

For a remote queue, `todoku dlq-sync` fills it and closes rows. For an App, a hook fills it, in the transaction of the
hook, and its workers close the rows of dead letters that were replayed.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import msgspec

from todoku.app import App
from todoku.client.answers import DeadLetter
from todoku.client.embedded_queue import EmbeddedBackend
from todoku.client.queue import Queue
from todoku.core.ending import Ending
from todoku.core.errors import InvalidAct, NoSuchMessage, QueueRefused
from todoku.core.http_request import is_forwardable, is_secret
from todoku.core.msgspec_warmup import warm_up
from todoku.core.outcome import error_text
from todoku.core.redaction import is_redacted
from todoku.engine.context import Context
from todoku.engine.jobs.job import Job
from todoku.store import failed_event_table
from todoku.store.failed_event_table import TABLE, FailedEvent, checked_table
from todoku.store.join import run
from todoku.store.publish import Publishing
from todoku.store.sql import Steps

EventId = Callable[[DeadLetter], str]
"""Returns the id of the event that a dead letter carries."""

T = TypeVar("T")
_HOOK: Final = "todoku-failed-events"
_ID_HEADERS: Final = ("X-Event-Id", "Idempotency-Key", "Webhook-Id")
_MAX_ID_LENGTH: Final = 512
_GONE: Final = "the queue no longer has its dead letter: it was sent again or deleted there"


class _Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """How to publish an event again. `coded`: the payload is base64, because it is not text."""

    to: str
    method: str = "POST"
    headers: dict[str, str] = {}
    queue: str | None = None
    coded: bool = False


warm_up(_Request)


def default_event_id(letter: DeadLetter) -> str:
    """The id that the publisher put into a header, else the id of the message."""
    named = {name.lower(): value for name, value in letter.message.headers.items()}
    found = next((value for name in _ID_HEADERS if (value := named.get(name.lower()))), letter.message.id)
    return found[:_MAX_ID_LENGTH]


def build_event(letter: DeadLetter, event_id: EventId = default_event_id) -> FailedEvent:
    """Converts a dead letter into a row, without secret headers and those that the publisher redacted."""
    message = letter.message
    text = _text(message.body)
    headers = {
        name: value
        for name, value in message.headers.items()
        if not is_secret(name) and not is_redacted(value) and is_forwardable(name)
    }
    request = _Request(message.to, message.method, headers, message.queue, coded=text is None)
    return FailedEvent(
        event_id=event_id(letter),
        payload=base64.b64encode(message.body).decode() if text is None else text,
        error=error_text(letter.error),
        created_at="" if letter.failed_at is None else _iso(letter.failed_at),
        message_id=message.id,
        dlq_id=letter.id,
        request=msgspec.json.encode(request).decode(),
    )


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _text(body: bytes) -> str | None:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


class FailedEvents:
    """The table, in the database of an App. That database needs no other table of todoku."""

    def __init__(self, box: App, table: str = TABLE, *, event_id: EventId = default_event_id) -> None:
        self._box = box
        self._table = checked_table(table)
        self._event_id = event_id

    def sync(self, queue: Queue) -> Iterator[tuple[FailedEvent, bool]]:
        """Stores all dead letters of a queue. Yields each, and whether it is new or has failed again.

        At the end, closes the rows whose dead letters the queue does not have any more.
        """
        self._run(lambda to: failed_event_table.create_table(to, self._table))
        cursor: str | None = None
        seen: set[str] = set()
        while True:
            read_at = self._run(lambda to: failed_event_table.read_clock(to, self._table))
            page = queue.dlq.list(cursor=cursor)
            seen.update(letter.id for letter in page.items)
            yield from self._store([build_event(letter, self._event_id) for letter in page.items], read_at)
            if (cursor := page.cursor) is None:
                break
        self._close_gone(queue, seen)

    def close(self, tx: Any, event_id: str, *, by: str, why: str) -> bool:
        """Closes the row of an event that was done after all, such as by its provider's own repetition.

        In your transaction `tx`; None: one of its own. False: it has no open row.
        """
        to = self._box.outbox.publishing()
        steps = self._close_steps(to, event_id, None, by, why)
        return self._box.store.run(steps) if tx is None else run(tx, to.dialect, steps)

    def close_replayed(self) -> int:
        """Closes the rows of an App whose dead letters were replayed, by whichever way. Returns how many."""
        return self._run(lambda to: failed_event_table.close_replayed(to, self._table))

    def get(self, event_id: str) -> FailedEvent:
        """Returns an event by its id. NoSuchMessage: there is none."""
        self._run(lambda to: failed_event_table.create_table(to, self._table))
        event = self._run(lambda to: failed_event_table.find_event(to, self._table, event_id))
        if event is None:
            hint = f"run `todoku dlq-sync` to update {self._table}"
            raise NoSuchMessage(f"there is no failed event {event_id}", hint=hint)
        return event

    def rerun(self, queue: Queue, event_id: str, *, by: str, why: str, publish: bool = False) -> str:
        """Sends an event again, then records who did it and why; returns the id of the message that is sent.

        Replays its dead letter. `publish`: publishes a new message instead, which also works if the dead letter is
        gone; the same failure is published once, however often this is called.
        """
        event = self.get(event_id)
        id = self._publish(queue, event) if publish else self._retry(queue, event, by, why)
        self._run(lambda to: failed_event_table.record_rerun(to, self._table, event, by=by, why=why))
        return id

    def note(self, tx: Any, letter: DeadLetter) -> None:
        """Stores a dead letter in the caller's transaction."""
        to = self._box.outbox.publishing()
        event = build_event(letter, self._event_id)
        run(tx, to.dialect, failed_event_table.create_table(to, self._table))
        read_at = run(tx, to.dialect, failed_event_table.read_clock(to, self._table))
        run(tx, to.dialect, failed_event_table.add_event(to, self._table, event, looked_at=read_at))

    # ------------------------------------------------------------------------------------------- inside

    def _run(self, steps: Callable[[Publishing], Steps[T]]) -> T:
        return self._box.store.run(steps(self._box.outbox.publishing()))

    def _store(self, events: Sequence[FailedEvent], read_at: str) -> list[tuple[FailedEvent, bool]]:
        """Stores a page of events in one transaction."""

        def steps(to: Publishing) -> Steps[list[tuple[FailedEvent, bool]]]:
            stored = []
            for event in events:
                new = yield from failed_event_table.add_event(to, self._table, event, looked_at=read_at)
                stored.append((event, new))
            return stored

        return self._run(steps) if events else []

    def _close_gone(self, queue: Queue, seen: set[str]) -> None:
        """Closes the rows of dead letters that the queue has neither listed nor finds by their ids."""
        for event_id, dlq_id in self._run(lambda to: failed_event_table.open_events(to, self._table)):
            if dlq_id not in seen and _is_gone(queue, dlq_id):
                self._run(lambda to: self._close_steps(to, event_id, dlq_id, "queue", _GONE))  # noqa: B023 - runs at once

    def _close_steps(self, to: Publishing, event_id: str, dlq_id: str | None, by: str, why: str) -> Steps[bool]:
        if not (yield from failed_event_table.has_table(to, self._table)):
            return False
        return (yield from failed_event_table.close_event(to, self._table, event_id, dlq_id=dlq_id, by=by, why=why))

    def _retry(self, queue: Queue, event: FailedEvent, by: str, why: str) -> str:
        try:
            return queue.dlq.retry(event.dlq_id, by=by, why=why)
        except QueueRefused as error:
            if error.status != 404:
                raise
            hint = "it was sent again or deleted; to publish a new message, use --publish"
            raise InvalidAct(f"the queue no longer has the dead letter {event.dlq_id}", hint=hint) from error

    def _publish(self, queue: Queue, event: FailedEvent) -> str:
        request = msgspec.json.decode(event.request, type=_Request)
        body = base64.b64decode(event.payload) if request.coded else event.payload.encode()
        # Not the event's id: the queue may still know it from the first publish, and would call this one a duplicate.
        id = f"rerun:{event.dlq_id}:{event.message_id}"
        if request.queue is None:
            done = queue.publish(request.to, body, method=request.method, headers=request.headers, deduplication_id=id)
        else:
            done = queue.enqueue(
                request.queue, request.to, body, method=request.method, headers=request.headers, deduplication_id=id
            )  # fmt: skip
        return done.id


def _is_gone(queue: Queue, dlq_id: str) -> bool:
    try:
        queue.dlq.get(dlq_id)
    except QueueRefused as refused:
        if refused.status == 404:
            return True
        raise
    except InvalidAct:  # an id of another kind of queue
        return False
    return False


def failed_events(
    box: App, *, table: str = TABLE, topic: str = "**", name: str = _HOOK, event_id: EventId = default_event_id
) -> Job[..., Any]:
    """Adds a hook to an App that stores each dead letter of `topic` in the table, once (S4-31).

    Every few seconds the App's workers close the rows whose dead letters were replayed, by whichever way.
    """
    events = FailedEvents(box, table, event_id=event_id)
    queue = EmbeddedBackend(box)

    @box.after("aborted", topic=topic, name=name, transactional=True)
    def note(ctx: Context, ending: Ending) -> None:
        letter = queue.dead_letter_of(ending)
        if letter is None:
            return ctx.log.warning("FAILED_EVENT_GONE")  # pruned or purged before the hook ran
        return events.note(ctx.tx, letter)

    box.registry.duties.append(events.close_replayed)
    return note


def parse_event_id_rule(rule: str) -> EventId:
    """Parses `header:NAME` or `body:FIELD`. Dead letters without it get the default id."""
    kind, _, name = rule.partition(":")
    if kind not in ("header", "body") or not name:
        raise InvalidAct(f"event-id cannot be {rule!r}", hint="write header:NAME or body:FIELD, such as body:id")

    def event_id(letter: DeadLetter) -> str:
        try:
            if kind == "header":
                named = {key.lower(): value for key, value in letter.message.headers.items()}
                return named[name.lower()][:_MAX_ID_LENGTH]
            value = json.loads(letter.message.body)[name]
            return str(value)[:_MAX_ID_LENGTH] if value else default_event_id(letter)
        except (ValueError, KeyError, TypeError):
            return default_event_id(letter)

    return event_id
