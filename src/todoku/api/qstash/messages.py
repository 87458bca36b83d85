"""`/v2/messages`: get and cancel messages."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from todoku.api.body import decode_json, read_body
from todoku.api.problem import Refused
from todoku.api.qstash.answers import DeadPage, EventPage, dead_letter, empty_response, event, json, message
from todoku.api.qstash.parsing import LARGEST, MOST_COUNT, Query, refuse_query_and_body, segment, signed
from todoku.api.request_context import RequestContext
from todoku.core.errors import NoSuchMessage, NotThere
from todoku.engine.http import dead_letters, request_events, requests
from todoku.engine.http.dead_letters import Selection
from todoku.engine.http.request_events import EventFilter
from todoku.store.deliveries import Filter

# ------------------------------------------------------------
# Selects requests by the filters of a query or by ids in a JSON body.
#
# Requests that change something must select explicitly: a lost body, a misspelled name or an empty value never select
# everything.

OF_MESSAGES: Final = (
    "messageId", "messageIds", "url", "host", "path", "topicName", "urlGroup", "queueName", "scheduleId",
    "label", "flowControlKey", "callerIp", "callerIP", "fromDate", "toDate", "count", "cursor", "all",
)  # fmt: skip
"""Parameters that select messages to cancel."""

OF_DEAD: Final = (*OF_MESSAGES, "dlqId", "dlqIds", "responseStatus")
"""Parameters that select dead letters to replay or delete."""


class MessageIds(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Ids of messages to cancel."""

    message_ids: list[str]


class DeadIds(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Ids of dead letters to delete or replay."""

    dlq_ids: list[str]


def request_filter(query: Query) -> Filter | None:
    """Returns the filter of a query, without its dates; None if it matches nothing because no id is valid."""
    texts = query.many("messageId", "messageIds")
    ids = message_ids(texts)
    if texts and not ids:
        return None
    return Filter(
        message_ids=ids,
        urls=query.many("url"),
        hosts=query.many("host"),
        paths=query.many("path"),
        labels=query.many("label"),
        request_queues=query.many("queueName"),
        url_groups=query.many("topicName", "urlGroup"),
        schedules=query.many("scheduleId"),
        caller_ips=query.many("callerIp", "callerIP"),
        flow_keys=query.many("flowControlKey"),
        run_ids=query.many("workflowRunId"),
        response_statuses=query.numbers("responseStatus"),
    )


def dead_letter_selection(query: Query) -> Selection | None:
    """Returns the dead letters that a query selects; None: none. Its dates refer to when they died."""
    which = request_filter(query)
    if which is None:
        return None
    which = msgspec.structs.replace(which, since=query.moment("fromDate"), until=after(query.moment("toDate")))
    return Selection(dead_ids=query.many("dlqId", "dlqIds"), which=which)


def after(moment: datetime | None) -> datetime | None:
    """Returns the exclusive end for a `toDate`, whose whole millisecond is included."""
    return None if moment is None else moment + timedelta(milliseconds=1)


def message_ids(texts: tuple[str, ...]) -> tuple[UUID, ...]:
    """Returns the valid ids; others match no message."""
    return tuple(id for text in texts if (id := message_id(text)) is not None)


def message_id(text: str) -> UUID | None:
    """Returns the text as an id of a message; None if it is not valid."""
    try:
        return UUID(text) if len(text) in (32, 36) else None
    except ValueError:
        return None


async def read_optional_body(request: Request) -> bytes:
    """Returns the JSON body, or b"" without one. Raises Refused if a body is declared but empty: it was lost."""
    body = await read_body(request, limit=LARGEST)
    if body:
        return body
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind == "application/json":
        raise Refused(400, "a JSON body is declared but empty", hint="send the body, or omit the Content-Type")
    if "content-type" in request.headers or "transfer-encoding" in request.headers:
        raise Refused(422, "a body is declared but empty", hint="send the body, or omit the headers that declare it")
    return body


def messages_to_cancel(query: Query, body: bytes) -> Filter | None:
    """Returns the messages to cancel; None: none. The dates of the query refer to when they were published.

    `all=true` selects all, and so does a request without query and body, which the official clients send for it.
    `count` limits the number.
    """
    if not body:
        return _cancel_filter(query)
    if query:
        raise Refused(422, "ids in the body and filters in the query cannot be combined", hint="send one of them")
    ids = message_ids(tuple(decode_json(body, MessageIds).message_ids))
    return Filter(message_ids=ids) if ids else None


def _cancel_filter(query: Query) -> Filter | None:
    which = request_filter(query)
    if which is None:
        return None
    since, until = query.moment("fromDate"), after(query.moment("toDate"))
    which = msgspec.structs.replace(which, published_since=since, published_until=until)
    if query:
        refuse_unclear(query, is_filtered=which != Filter())
    return which


def dead_letters_to_change(query: Query, body: bytes) -> Selection | None:
    """Returns the dead letters to change; None: none. `all=true` selects all, `count` limits the number."""
    if body:
        if query.filters:
            raise Refused(422, "ids in the body and filters in the query cannot be combined", hint="send one of them")
        ids = tuple(decode_json(body, DeadIds).dlq_ids)
        return Selection(dead_ids=ids) if ids else None
    selection = dead_letter_selection(query)
    refuse_unclear(query, is_filtered=selection != Selection())
    return selection


def refuse_unclear(query: Query, *, is_filtered: bool) -> None:
    """Raises Refused (422) if a query that changes something selects nothing, or selects in two ways."""
    all_given = query.one("all")
    if all_given is not None and all_given != "true":
        raise Refused(422, f"all cannot be {all_given[:64]!r}", hint="give a filter, or all=true")
    if is_filtered and all_given is not None:
        raise Refused(422, "all=true and a filter contradict each other", hint="send one of them")
    if not is_filtered and all_given is None and query.one("count") is None:
        raise Refused(422, "nothing is selected", hint="give ids, a filter, all=true, or count=100")


# ------------------------------------------------------------
# `/v2/dlq`: dead letters.

_MOST_LISTED: Final = 100
_MOST_AT_ONCE: Final = 1000


class DeadLetterEndpoints:
    """The endpoints of dead letters."""

    def __init__(self, context: RequestContext) -> None:
        self._outbox = context.outbox

    def list_all(self, request: Request) -> Response:
        """Returns one page of matching dead letters, newest first."""
        query = Query(request)
        selection = dead_letter_selection(query)
        if selection is None:
            return json(DeadPage(messages=[]))
        page = dead_letters.find(self._outbox, selection, cursor=query.one("cursor"), limit=query.count(_MOST_LISTED))
        return json(DeadPage(messages=[dead_letter(each) for each in page.items], cursor=page.cursor))

    def get(self, request: Request) -> Response:
        """Returns one dead letter."""
        id = segment(request, "id")
        if (found := dead_letters.get(self._outbox, id)) is None:
            raise _no_dead_letter(id)
        return json(dead_letter(found))

    def remove(self, request: Request) -> Response:
        """Deletes one dead letter; does nothing if it was replayed. 404: it was deleted or never existed."""
        refuse_query_and_body(request)
        id = segment(request, "id")
        changed = dead_letters.purge(self._outbox, Selection(dead_ids=(id,)), signed(request, "delete"))
        if not changed.message_ids and not dead_letters.was_replayed(self._outbox, id):
            raise _no_dead_letter(id)
        return empty_response()

    def retry(self, request: Request) -> Response:
        """Replays one dead letter."""
        refuse_query_and_body(request)
        id = segment(request, "id")
        changed = dead_letters.replay(self._outbox, Selection(dead_ids=(id,)), signed(request, "retry"))
        if not changed.message_ids:
            raise _no_dead_letter(id)
        return json({"messageId": str(changed.message_ids[0])}, 201)

    async def remove_many(self, request: Request) -> Response:
        """Deletes one page of matching dead letters; a cursor means that there are more."""
        changed = await self._change_many(request, "delete")
        more = {} if changed.cursor is None else {"cursor": changed.cursor}
        return json({"deleted": len(changed.message_ids)} | more)

    async def retry_many(self, request: Request) -> Response:
        """Replays one page of matching dead letters; a cursor means that there are more."""
        changed = await self._change_many(request, "retry")
        responses = [{"messageId": str(id)} for id in changed.message_ids]
        return json({"cursor": changed.cursor or "", "responses": responses}, 201)

    async def _change_many(self, request: Request, what: str) -> dead_letters.ChangedMessages:
        body, query = await read_optional_body(request), Query(request, OF_DEAD)
        selection = dead_letters_to_change(query, body)
        if selection is None:
            return dead_letters.ChangedMessages((), None)
        limit = len(selection.dead_ids) or query.count(_MOST_AT_ONCE)
        act = dead_letters.purge if what == "delete" else dead_letters.replay
        who, cursor = signed(request, what), query.one("cursor")
        return await asyncio.to_thread(act, self._outbox, selection, who, cursor=cursor, limit=limit)


def _no_dead_letter(id: str) -> NotThere:
    return NotThere(
        f"there is no dead letter {id[:64]!r}", hint="it was replayed or deleted; GET /v2/dlq lists the others"
    )


# ------------------------------------------------------------
# Events of messages: `/v2/events`, which the clients use, and `/v2/logs`, which QStash documents.

_MOST_EVENTS: Final = 1000


class EventEndpoints:
    """The endpoint of events."""

    def __init__(self, context: RequestContext) -> None:
        self._outbox = context.outbox

    def list_all(self, request: Request) -> Response:
        """Returns one page of matching events, newest first."""
        query = Query(request)
        which = request_filter(query)
        if which is None:
            return json(EventPage(events=[], logs=[]))
        event_filter = EventFilter(
            which=which,
            states=query.many("state"),
            since=query.moment("fromDate"),
            until=after(query.moment("toDate")),
        )
        page = request_events.find(
            self._outbox, event_filter, cursor=query.one("cursor"), limit=query.count(_MOST_EVENTS)
        )
        rows = [event(each) for each in page.items]
        return json(EventPage(events=rows, logs=rows, cursor=page.cursor))


class MessageEndpoints:
    """The endpoints of messages."""

    def __init__(self, context: RequestContext) -> None:
        self._outbox = context.outbox

    def get(self, request: Request) -> Response:
        """Returns one message, also a delivered one while history retains it. 404 for a cancelled one."""
        text = segment(request, "id")
        id = message_id(text)
        found = None if id is None else requests.get(self._outbox, id)
        if found is None or found.is_cancelled:
            raise _not_found(text)
        return json(message(found))

    def cancel(self, request: Request) -> Response:
        """Cancels one message: a running one is requested to stop. An ended one does not change."""
        refuse_query_and_body(request)
        text = segment(request, "id")
        id = message_id(text)
        if id is None:
            raise _not_found(text)
        return json({"cancelled": requests.cancel(self._outbox, id, signed(request, "cancel"))})

    async def cancel_many(self, request: Request) -> Response:
        """Cancels matching messages, at most `count`; a cursor means that there are more."""
        body, query = await read_optional_body(request), Query(request, OF_MESSAGES)
        which = messages_to_cancel(query, body)
        if which is None:
            return json({"cancelled": 0})
        limit, cursor = query.number("count", least=1, most=MOST_COUNT), query.one("cursor")
        result = await asyncio.to_thread(
            requests.cancel_many, self._outbox, which, signed(request, "cancel"), cursor=cursor, limit=limit
        )
        return json({"cancelled": result.number} | ({} if result.cursor is None else {"cursor": result.cursor}))


def _not_found(id: str) -> NoSuchMessage:
    return NoSuchMessage(
        f"message {id[:64]!r} not found", hint="it was never published, was cancelled, or its retention has passed"
    )
