"""The backend for an App in this process: messages go into the application's own database."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from todoku.app import App
from todoku.client.answers import DeadLetter, DeadLetterFilter, DeadLetters, Published, Queued
from todoku.client.publish_request import CONTENT_TYPE, PublishRequest
from todoku.core.ending import Ending
from todoku.core.errors import CannotOpen, DatabaseBusy, DatabaseUnavailable, InvalidAct, QueueRefused, QueueUnavailable
from todoku.core.http_request import RETRIES, Callback, HttpRequest, dead_id, origin, parse_dead_id, request_of
from todoku.core.identity import key_hash, publish_scope
from todoku.core.message import Draft, Idempotency, Message
from todoku.core.redaction import redact_body, redact_headers, redact_request
from todoku.core.topic_pattern import Route, resolve
from todoku.engine import operations
from todoku.engine.http import request_queues
from todoku.engine.http.publish_requests import CheckedRequest, RequestPublisher
from todoku.engine.http.request_draft import DEDUPLICATED_FOR, Posting
from todoku.engine.publish import Encoded, MessageOptions, directed
from todoku.engine.twins import off_loop
from todoku.store.audit import Signed
from todoku.store.deliveries import Delivery, Filter
from todoku.store.messages import StoredMessage, Story

_JSON: Final = "application/json"
_TWIN: Final = "queue.apublish(…), or queue.aenqueue(…)"


class EmbeddedBackend:
    """An App as a queue. A message to a URL is sent by a worker that serves HTTP; one to a topic follows the routes."""

    def __init__(self, box: App, *, deduplicated_for: float | None = None) -> None:
        self.box = box
        self.name = "queue:embedded"
        self._posts = RequestPublisher(box.outbox)
        self._deduplicated_for = deduplicated_for or DEDUPLICATED_FOR

    def publish(self, request: PublishRequest, body: bytes, *, within: float) -> Published:  # noqa: ARG002 - the store has a timeout
        """Stores the message in its own transaction."""
        try:
            return _published(request, self.box.outbox.put(self._drafts(request, body), None, twin=_TWIN))
        except (DatabaseUnavailable, DatabaseBusy) as error:
            raise QueueUnavailable(f"the database did not accept the message: {error}") from error

    async def insert(self, request: PublishRequest, body: bytes, tx: Any) -> Published:
        """Stores it in the caller's transaction: it commits with that, or not at all (I2). For `engine.twins`."""
        drafts = await off_loop(self._drafts, request, body)
        return _published(request, await self.box.outbox.insert(drafts, tx))

    def ping(self, *, within: float) -> None:  # noqa: ARG002 - as publish
        """Raises QueueUnavailable unless the database answers."""
        try:
            self.box.store.ping()
        except DatabaseUnavailable as error:
            raise QueueUnavailable(str(error)) from error

    def message(self, id: str) -> Queued:
        """Returns a message by its id."""
        return self._queued(self._story(_uuid(id)).message, None)

    def cancel(self, id: str, *, by: str, why: str) -> None:
        """Cancels the deliveries of a message that have not ended."""
        self._story(_uuid(id))
        operations.cancel(self.box.store, Filter(message_id=_uuid(id)), Signed(by, why))

    def dead_letters(self, filters: DeadLetterFilter, *, cursor: str | None, count: int) -> DeadLetters:
        """Returns a page of dead letters. Filtered by URL it may be short: the database can filter only by its host."""
        page = self.box.store.deliveries.find(_filter(filters), cursor=cursor, limit=count)
        found = [self._dead(delivery) for delivery in page.items]
        only = filters.to if filters.to is not None and "://" in filters.to else None
        return DeadLetters(tuple(one for one in found if only in (None, one.message.to)), page.next)

    def dead_letter(self, id: str) -> DeadLetter:
        """Returns a dead letter by its id, which contains the number of its delivery."""
        page = self.box.store.deliveries.find(Filter(ids=(_number(id),), status="aborted"))
        if not page.items:
            raise _gone(f"there is no dead letter {id}")
        if (letter := self._dead(page.items[0])).id != id:
            raise _gone(f"the dead letter {id} was sent again and is now {letter.id}")
        return letter

    def dead_letter_of(self, ending: Ending) -> DeadLetter | None:
        """Returns a dead letter as it was when the hook was published; None: its message is gone."""
        story = self.box.store.messages.story(ending.message_id)
        if story is None:
            return None
        return self._letter(story, ending.delivery_id, ending)

    def retry(self, id: str, *, by: str, why: str) -> str:
        """Replays a dead letter, audited. The message keeps its id."""
        letter = self.dead_letter(id)
        done = operations.replay(self.box.store, Filter(ids=(_number(id),)), Signed(by, why))
        if not done.replayed:
            raise _gone(f"the dead letter {id} is gone")
        self.box.outbox.wake()
        return letter.message.id

    def delete(self, id: str, *, by: str, why: str) -> None:
        """Purges a dead letter, audited."""
        self.dead_letter(id)
        done = operations.purge(self.box.store, Filter(ids=(_number(id),), status="aborted"), Signed(by, why))
        if not done.changed:
            raise _gone(f"the dead letter {id} is gone")

    def close(self) -> None:
        """Does nothing: the App belongs to its owner."""

    # ------------------------------------------------------------------------------------------- drafts

    def _drafts(self, request: PublishRequest, body: bytes) -> list[Draft]:
        """Drafts of one request, of an event that the App routes, or of one request per endpoint of a URL group."""
        if not request.is_url and (resolve(self.box.routes, request.to) or not self._is_group(request.to)):
            return [self._event(request, body)]
        return [draft for drafts in self._posts.drafts([self._request(request, body)]) for draft, _ in drafts]

    def _is_group(self, name: str) -> bool:
        return bool(self.box.store.url_groups.all(names=[name]))

    def _request(self, request: PublishRequest, body: bytes) -> CheckedRequest:
        http_request = HttpRequest(
            url=request.to if request.is_url else "",
            group=None if request.is_url else request.to,
            method=request.method,
            headers=request.headers,
            timeout=request.timeout,
            retries=RETRIES if request.retries is None else request.retries,
            retry_delay=request.retry_delay,
            callback=None if request.callback is None else Callback(url=request.callback),
            failure_callback=None if request.failure_callback is None else Callback(url=request.failure_callback),
            flow=request.flow,
            queue=request.queue,
            labels=request.labels,
        )
        posting = Posting(
            delay=request.delay or 0.0,
            at=_at(request),
            deduplication_id=request.id,
            deduplicated_for=self._deduplicated_for,
            trace=request.trace,
        )
        return CheckedRequest(request=http_request, body=body, posting=posting)

    def _event(self, request: PublishRequest, body: bytes) -> Draft:
        headers = {name: value for name, value in request.headers.items() if name != CONTENT_TYPE} | request.trace
        options = MessageOptions(
            key=request.queue, delay=request.delay, at=_at(request), headers=headers, labels=request.labels
        )
        payload = Encoded(body.decode()) if request.headers[CONTENT_TYPE] == _JSON else body
        draft = self.box.outbox.draft(request.to, payload, options, self._routes(request))
        # As for a request: an id that was used before makes it a duplicate, whatever else differs.
        id_hash = key_hash(request.id)
        idempotency = Idempotency(publish_scope(request.to), request.id, id_hash, id_hash, lasts=self._deduplicated_for)
        return msgspec.structs.replace(draft, idempotency=idempotency)

    def _routes(self, request: PublishRequest) -> list[Route]:
        """The App's routes, with the options of the request. With a queue, they deliver in order through it."""
        box, attempts = self.box, None if request.retries is None else request.retries + 1
        routes = directed(box.routes, box.registry, to=None, max_attempts=attempts, usual=box.settings.max_attempts)
        if request.queue is not None:
            queue = _delivery_queue(request.queue)
            routes = [msgspec.structs.replace(route, queue=queue, ordered=True) for route in routes]
        if request.timeout is not None:
            routes = [msgspec.structs.replace(route, timeout=request.timeout) for route in routes]
        return routes

    # ------------------------------------------------------------------------------------------ reading

    def _story(self, id: UUID) -> Story:
        if (story := self.box.store.messages.story(id)) is None:
            raise _gone(f"there is no message {id}")
        return story

    def _dead(self, delivery: Delivery) -> DeadLetter:
        story = self._story(delivery.message_id or UUID(int=0))
        return self._letter(story, delivery.id, delivery)

    def _letter(self, story: Story, number: int, ending: Delivery | Ending) -> DeadLetter:
        responses = [one.response for one in story.attempts if one.delivery_id == number and one.response]
        return DeadLetter(
            id=dead_id(number, ending.replay_count),
            message=self._queued(story.message, ending.queue),
            status=responses[-1].status if responses else 0,
            error=": ".join(dict.fromkeys(filter(None, (ending.reason, ending.error)))),
            failed_at=ending.ended_at if isinstance(ending, Ending) else ending.updated_at,
        )

    def _queued(self, message: StoredMessage, queue: str | None) -> Queued:
        """A message, with what its publisher redacted left out. `queue`: that of its delivery."""
        raw = (message.payload or "").encode() if message.payload_bytes is None else message.payload_bytes
        try:
            body = self.box.outbox.opener.body(str(message.id), message.topic, message.content_type, raw)
        except CannotOpen:  # its data key is gone; show the dead letter without a body
            body = b""
        request = request_of(message.headers)
        if request is None:
            headers = msgspec.json.decode(message.headers, type=dict[str, str]) if message.headers else {}
            # The key of an enqueued event is the name of its queue.
            name = message.key if message.key is not None and queue == _delivery_queue(message.key) else None
            return Queued(
                id=str(message.id), to=message.topic, queue=name, headers=redact_headers(headers), body=body,
                created_at=message.created_at,
            )  # fmt: skip
        shown = redact_request(request)
        return Queued(
            id=str(message.id),
            to=shown.url,
            method=shown.method,
            queue=shown.queue,
            headers=shown.headers,
            body=redact_body(request, body),
            created_at=message.created_at,
        )


def _delivery_queue(queue: str) -> str:
    """The name of the delivery queue behind a queue, for requests and for events."""
    return f"{request_queues.KIND}{queue}"


def _published(request: PublishRequest, messages: list[Message]) -> Published:
    ids = tuple(str(message.id) for message in messages)
    return Published(
        id=ids[0], ids=ids, duplicate=all(message.duplicate for message in messages), deduplication_id=request.id
    )


def _at(request: PublishRequest) -> datetime | None:
    return None if request.at is None else datetime.fromtimestamp(request.at, UTC)


def _filter(filters: DeadLetterFilter) -> Filter:
    to, queue = filters.to, filters.queue
    url = to is not None and "://" in to
    return Filter(
        status="aborted",
        destination=origin(to) if to is not None and url else None,
        topic=None if url else to,
        queue=None if queue is None else _delivery_queue(queue),
        since=filters.since,
        until=filters.until,
    )


def _gone(what: str) -> QueueRefused:
    return QueueRefused(what, hint="it may have been sent again, deleted or pruned", status=404)


def _uuid(id: str) -> UUID:
    try:
        return UUID(id)
    except (ValueError, AttributeError, TypeError):
        raise InvalidAct(f"id cannot be {id!r}", hint="give the id of a message") from None


def _number(id: str) -> int:
    """The delivery number in the id of a dead letter."""
    if (found := parse_dead_id(str(id))) is None:
        raise InvalidAct(f"id cannot be {id!r}", hint="give the id of a dead letter, as shown by queue.dlq.list()")
    return found[0]
