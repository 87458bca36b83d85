"""Selects requests by the filters of a query or by ids in a JSON body.

Requests that change something must select explicitly: a lost body, a misspelled name or an empty value never select
everything.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import msgspec
from starlette.requests import Request

from todoku.api.body import decode_json, read_body
from todoku.api.problem import Refused
from todoku.api.qstash.parsing import LARGEST, Query
from todoku.engine.http.dead_letters import Selection
from todoku.store.deliveries import Filter

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
    """Returns the exclusive end for an inclusive `toDate`."""
    return None if moment is None else moment + timedelta(microseconds=1)


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
        _refuse_unclear(query, is_filtered=which != Filter())
    return which


def dead_letters_to_change(query: Query, body: bytes) -> Selection | None:
    """Returns the dead letters to change; None: none. `all=true` selects all, `count` limits the number."""
    if body:
        if query.filters:
            raise Refused(422, "ids in the body and filters in the query cannot be combined", hint="send one of them")
        ids = tuple(decode_json(body, DeadIds).dlq_ids)
        return Selection(dead_ids=ids) if ids else None
    selection = dead_letter_selection(query)
    _refuse_unclear(query, is_filtered=selection != Selection())
    return selection


def _refuse_unclear(query: Query, *, is_filtered: bool) -> None:
    """Raises Refused (422) if a query that changes something selects nothing, or selects in two ways."""
    all_given = query.one("all")
    if all_given is not None and all_given != "true":
        raise Refused(422, f"all cannot be {all_given[:64]!r}", hint="give a filter, or all=true")
    if is_filtered and all_given is not None:
        raise Refused(422, "all=true and a filter contradict each other", hint="send one of them")
    if not is_filtered and all_given is None and query.one("count") is None:
        raise Refused(422, "nothing is selected", hint="give ids, a filter, all=true, or count=100")
