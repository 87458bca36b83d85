"""Which requests are meant: the filters of a query, or ids in a JSON body.

What changes something must say what it means. A lost body, a slip in a name or an empty value never mean everything.
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
from todoku.store.filter import Filter

OF_MESSAGES: Final = (
    "messageId", "messageIds", "url", "host", "path", "topicName", "urlGroup", "queueName", "scheduleId",
    "label", "flowControlKey", "callerIp", "callerIP", "fromDate", "toDate", "count", "cursor", "all",
)  # fmt: skip
"""By what messages can be cancelled."""

OF_DEAD: Final = (*OF_MESSAGES, "dlqId", "dlqIds", "responseStatus")
"""By what dead letters can be sent again or deleted."""


class MessageIds(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Messages that are to be cancelled."""

    message_ids: list[str]


class DeadIds(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """Dead letters that are to be deleted, or sent again."""

    dlq_ids: list[str]


def request_filter(query: Query) -> Filter | None:
    """The requests that a query selects, without its dates; None: it selects none, because no id in it is one."""
    given = query.many("messageId", "messageIds")
    ids = message_ids(given)
    if given and not ids:
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
    """The dead letters that a query selects; None: none. Its dates are of the moment they died."""
    which = request_filter(query)
    if which is None:
        return None
    which = msgspec.structs.replace(which, since=query.moment("fromDate"), until=after(query.moment("toDate")))
    return Selection(dead_ids=query.many("dlqId", "dlqIds"), which=which)


def after(moment: datetime | None) -> datetime | None:
    """The first moment that is not in a span any more: `toDate` itself is in it."""
    return None if moment is None else moment + timedelta(microseconds=1)


def message_ids(given: tuple[str, ...]) -> tuple[UUID, ...]:
    """Those that are ids of messages: nothing has the name of any other."""
    return tuple(id for text in given if (id := message_id(text)) is not None)


def message_id(text: str) -> UUID | None:
    """The id of a message; None: it is none."""
    try:
        return UUID(text) if len(text) in (32, 36) else None
    except ValueError:
        return None


async def body_of(request: Request) -> bytes:
    """The JSON body of a request that may have one. One that was announced and is empty was lost: refused."""
    body = await read_body(request, limit=LARGEST)
    if body:
        return body
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind == "application/json":
        raise Refused(400, "the body was lost on its way", hint="send it, or leave out the Content-Type")
    if "content-type" in request.headers or "transfer-encoding" in request.headers:
        raise Refused(422, "a body is announced, and it is empty", hint="send it, or leave out what announces it")
    return body


def messages_to_cancel(query: Query, body: bytes) -> Filter | None:
    """The messages to cancel; None: none. The dates of the query are of their publishing.

    All of them: `all=true`, or nothing at all, which is what the official clients send for it. `count` says how many.
    """
    if not body:
        return _of_cancel(query)
    if query:
        raise Refused(422, "ids are in the body, and filters in the query", hint="send one of them")
    ids = message_ids(tuple(decode_json(body, MessageIds).message_ids))
    return Filter(message_ids=ids) if ids else None


def _of_cancel(query: Query) -> Filter | None:
    which = request_filter(query)
    if which is None:
        return None
    since, until = query.moment("fromDate"), after(query.moment("toDate"))
    which = msgspec.structs.replace(which, published_since=since, published_until=until)
    if query:
        _refuse_unclear(query, is_filtered=which != Filter())
    return which


def dead_letters_to_change(query: Query, body: bytes) -> Selection | None:
    """The dead letters to replay or delete; None: none. All of them: `all=true`; `count` says how many."""
    if body:
        if query.filters:
            raise Refused(422, "ids are in the body, and filters in the query", hint="send one of them")
        ids = tuple(decode_json(body, DeadIds).dlq_ids)
        return Selection(dead_ids=ids) if ids else None
    selection = dead_letter_selection(query)
    _refuse_unclear(query, is_filtered=selection != Selection())
    return selection


def _refuse_unclear(query: Query, *, is_filtered: bool) -> None:
    """Refused: 422, if a query that changes something does not say which, or says it in two ways."""
    said = query.one("all")
    if said is not None and said != "true":
        raise Refused(422, f"all cannot be {said[:64]!r}", hint="say which are meant, or all=true")
    if is_filtered and said is not None:
        raise Refused(422, "all=true and a filter contradict each other", hint="send one of them")
    if not is_filtered and said is None and query.one("count") is None:
        raise Refused(422, "nothing says which are meant", hint="ids, a filter, all=true, or count=100")
