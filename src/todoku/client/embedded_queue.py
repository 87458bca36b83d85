"""The App in this process as a queue: the same words, in the database the application has."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from todoku.app import App
from todoku.client.answers import DeadLetter, DeadLetters, Published, Queued, Which
from todoku.client.publish_request import CONTENT_TYPE, Posted
from todoku.core.ending import Ending
from todoku.core.errors import CannotOpen, DatabaseBusy, DatabaseUnavailable, InvalidAct, QueueRefused, QueueUnavailable
from todoku.core.http_request import RETRIES, Callback, HttpRequest, dead_id, dead_ref, origin, request_of
from todoku.core.identity import key_hash, publish_scope
from todoku.core.message import Draft, Idempotency, Message
from todoku.core.redaction import redacted, redacted_body, redacted_headers
from todoku.core.topic_pattern import Route, resolve
from todoku.engine import operate
from todoku.engine.http import request_queues
from todoku.engine.http.publish_requests import CheckedRequest, Posts
from todoku.engine.http.request_draft import DEDUPLICATED_FOR, Posting
from todoku.engine.publish import Encoded, MessageOptions, directed
from todoku.engine.twins import off_loop
from todoku.store.values import Delivery, Filter, Signed, StoredMessage, Story

_JSON: Final = "application/json"
_TWIN: Final = "queue.apublish(…), or queue.aenqueue(…)"


class Embedded:
    """An App. A URL is a request that any worker sends which serves HTTP; a topic goes where the App routes it."""

    def __init__(self, box: App, *, deduplicated_for: float | None = None) -> None:
        self.box = box
        self.name = "queue:embedded"
        self._posts = Posts(box.outbox)
        self._deduplicated_for = deduplicated_for or DEDUPLICATED_FOR

    def publish(self, asked: Posted, body: bytes, *, within: float) -> Published:  # noqa: ARG002 - the store has its own
        """Store it, in a transaction of its own."""
        try:
            return _published(asked, self.box.outbox.put(self._drafts(asked, body), None, twin=_TWIN))
        except (DatabaseUnavailable, DatabaseBusy) as error:
            raise QueueUnavailable(f"the database cannot take it: {error}") from error

    async def insert(self, asked: Posted, body: bytes, tx: Any) -> Published:
        """Stores it in the caller's transaction: it commits with that, or not at all (I2). For `engine.twins`."""
        drafts = await off_loop(self._drafts, asked, body)
        return _published(asked, await self.box.outbox.insert(drafts, tx))

    def ping(self, *, within: float) -> None:  # noqa: ARG002 - as publish
        """Whether the database answers."""
        try:
            self.box.store.ping()
        except DatabaseUnavailable as error:
            raise QueueUnavailable(str(error)) from error

    def message(self, id: str) -> Queued:
        """A message by its id."""
        return self._queued(self._story(_uuid(id)).message, None)

    def cancel(self, id: str, *, by: str, why: str) -> None:
        """Let it not be delivered, wherever it still waits."""
        self._story(_uuid(id))
        operate.cancel(self.box.store, Filter(message_id=_uuid(id)), Signed(by, why))

    def dead_letters(self, which: Which, *, cursor: str | None, count: int) -> DeadLetters:
        """A page of dead letters. One that asks for a URL may be short: only its host can be looked up."""
        page = self.box.store.find(_filter(which), cursor=cursor, limit=count)
        found = [self._dead(delivery) for delivery in page.items]
        only = which.to if which.to is not None and "://" in which.to else None
        return DeadLetters(tuple(one for one in found if only in (None, one.message.to)), page.next)

    def dead_letter(self, id: str) -> DeadLetter:
        """One of them, by the number of its delivery."""
        page = self.box.store.find(Filter(ids=(_number(id),), status="aborted"))
        if not page.items:
            raise _gone(f"there is no dead letter {id}")
        if (letter := self._dead(page.items[0])).id != id:
            raise _gone(f"the dead letter {id} was sent again, and is {letter.id} now")
        return letter

    def ended(self, ending: Ending) -> DeadLetter | None:
        """A dead letter as a hook was told of it, whatever became of it since; None: its message is gone."""
        story = self.box.store.story(ending.message_id)
        if story is None:
            return None
        return self._letter(story, ending.delivery_id, ending)

    def retry(self, id: str, *, by: str, why: str) -> str:
        """Let a dead letter be sent again, audited; its message stays the same."""
        letter = self.dead_letter(id)
        done = operate.replay(self.box.store, Filter(ids=(_number(id),)), Signed(by, why))
        if not done.replayed:
            raise _gone(f"the dead letter {id} was not there any more")
        self.box.outbox.wake()
        return letter.message.id

    def delete(self, id: str, *, by: str, why: str) -> None:
        """Remove a dead letter for good, audited."""
        self.dead_letter(id)
        done = operate.purge(self.box.store, Filter(ids=(_number(id),), status="aborted"), Signed(by, why))
        if not done.changed:
            raise _gone(f"the dead letter {id} was not there any more")

    def close(self) -> None:
        """The App is its owner's to close."""

    # ------------------------------------------------------------------------------------------- drafts

    def _drafts(self, asked: Posted, body: bytes) -> list[Draft]:
        """A request, or an event that the App routes, or a request for each endpoint of a URL group."""
        if not asked.is_url and (resolve(self.box.routes, asked.to) or not self._is_group(asked.to)):
            return [self._topic(asked, body)]
        return [draft for made in self._posts.drafts([self._post(asked, body)]) for draft, _ in made]

    def _is_group(self, name: str) -> bool:
        return bool(self.box.store.http.groups(names=[name]))

    def _post(self, asked: Posted, body: bytes) -> CheckedRequest:
        request = HttpRequest(
            url=asked.to if asked.is_url else "",
            group=None if asked.is_url else asked.to,
            method=asked.method,
            headers=asked.headers,
            timeout=asked.timeout,
            retries=RETRIES if asked.retries is None else asked.retries,
            retry_delay=asked.retry_delay,
            callback=None if asked.callback is None else Callback(url=asked.callback),
            failure_callback=None if asked.failure_callback is None else Callback(url=asked.failure_callback),
            flow=asked.flow,
            queue=asked.queue,
            labels=asked.labels,
        )
        posting = Posting(
            delay=asked.delay or 0.0,
            at=_at(asked),
            deduplication_id=asked.id,
            deduplicated_for=self._deduplicated_for,
            trace=asked.trace,
        )
        return CheckedRequest(request=request, body=body, posting=posting)

    def _topic(self, asked: Posted, body: bytes) -> Draft:
        headers = {name: value for name, value in asked.headers.items() if name != CONTENT_TYPE} | asked.trace
        options = MessageOptions(
            key=asked.queue, delay=asked.delay, at=_at(asked), headers=headers, labels=asked.labels
        )
        payload = Encoded(body.decode()) if asked.headers[CONTENT_TYPE] == _JSON else body
        made = self.box.outbox.draft(asked.to, payload, options, self._routes(asked))
        # As for a request: an id that was seen is a repetition, whatever else differs.
        seen = Idempotency(
            publish_scope(asked.to), asked.id, key_hash(asked.id), key_hash(asked.id), lasts=self._deduplicated_for
        )
        return msgspec.structs.replace(made, idempotency=seen)

    def _routes(self, asked: Posted) -> list[Route]:
        """Those of the App. What is in a queue goes through it, one after the other."""
        box, attempts = self.box, None if asked.retries is None else asked.retries + 1
        routes = directed(box.routes, box.registry, to=None, max_attempts=attempts, usual=box.settings.max_attempts)
        if asked.queue is not None:
            routes = [msgspec.structs.replace(route, queue=_place(asked.queue), ordered=True) for route in routes]
        if asked.timeout is not None:
            routes = [msgspec.structs.replace(route, timeout=asked.timeout) for route in routes]
        return routes

    # ------------------------------------------------------------------------------------------ looking

    def _story(self, id: UUID) -> Story:
        if (story := self.box.store.story(id)) is None:
            raise _gone(f"there is no message {id}")
        return story

    def _dead(self, delivery: Delivery) -> DeadLetter:
        story = self._story(delivery.message_id or UUID(int=0))
        return self._letter(story, delivery.id, delivery)

    def _letter(self, story: Story, number: int, told: Delivery | Ending) -> DeadLetter:
        answered = [one.response for one in story.attempts if one.delivery_id == number and one.response]
        return DeadLetter(
            id=dead_id(number, told.replay_count),
            message=self._queued(story.message, told.queue),
            status=answered[-1].status if answered else 0,
            error=": ".join(dict.fromkeys(filter(None, (told.reason, told.error)))),
        )

    def _queued(self, message: StoredMessage, queue: str | None) -> Queued:
        """A message, as its publisher lets it be seen. `queue`: the one its delivery is in."""
        raw = (message.payload or "").encode() if message.payload_bytes is None else message.payload_bytes
        try:
            body = self.box.outbox.opener.body(str(message.id), message.topic, message.content_type, raw)
        except CannotOpen:  # its key is gone: the letter is still one
            body = b""
        request = request_of(message.headers)
        if request is None:
            headers = msgspec.json.decode(message.headers, type=dict[str, str]) if message.headers else {}
            # An event that was enqueued has its queue's name as its key.
            name = message.key if message.key is not None and queue == _place(message.key) else None
            return Queued(
                id=str(message.id), to=message.topic, queue=name, headers=redacted_headers(headers), body=body,
                created_at=message.created_at,
            )  # fmt: skip
        shown = redacted(request)
        return Queued(
            id=str(message.id),
            to=shown.url,
            method=shown.method,
            queue=shown.queue,
            headers=shown.headers,
            body=redacted_body(request, body),
            created_at=message.created_at,
        )


def _place(queue: str) -> str:
    """The queue of deliveries that a queue of this name is, for requests and for events."""
    return f"{request_queues.KIND}{queue}"


def _published(asked: Posted, messages: list[Message]) -> Published:
    ids = tuple(str(message.id) for message in messages)
    return Published(
        id=ids[0], ids=ids, duplicate=all(message.duplicate for message in messages), deduplication_id=asked.id
    )


def _at(asked: Posted) -> datetime | None:
    return None if asked.at is None else datetime.fromtimestamp(asked.at, UTC)


def _filter(which: Which) -> Filter:
    to, queue = which.to, which.queue
    url = to is not None and "://" in to
    return Filter(
        status="aborted",
        destination=origin(to) if to is not None and url else None,
        topic=None if url else to,
        queue=None if queue is None else _place(queue),
        since=which.since,
        until=which.until,
    )


def _gone(what: str) -> QueueRefused:
    return QueueRefused(what, hint="was it sent again, deleted, or pruned?", status=404)


def _uuid(id: str) -> UUID:
    try:
        return UUID(id)
    except (ValueError, AttributeError, TypeError):
        raise InvalidAct(f"id cannot be {id!r}", hint="the id of a message") from None


def _number(id: str) -> int:
    """The delivery of a dead letter."""
    if (found := dead_ref(str(id))) is None:
        raise InvalidAct(f"id cannot be {id!r}", hint="the id of a dead letter, as queue.dlq.list() shows it")
    return found[0]
