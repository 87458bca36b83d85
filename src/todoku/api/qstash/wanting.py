"""Which requests are meant: the filters of a query, or ids in a JSON body.

What changes something must say what it means. A lost body, a slip in a name or an empty value never mean everything.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

import msgspec
from starlette.requests import Request

from todoku.api.body import decoded, read_body
from todoku.api.problem import Refused
from todoku.api.qstash.reading import LARGEST, Query
from todoku.core.wanted import Wanted

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


def wanted(query: Query) -> Wanted | None:
    """What a query means; None: nothing can be meant, because no id is one."""
    given = query.many("messageId", "messageIds")
    ids = message_ids(given)
    if given and not ids:
        return None
    return Wanted(
        message_ids=ids,
        dead_ids=query.many("dlqId", "dlqIds"),
        urls=query.many("url"),
        hosts=query.many("host"),
        paths=query.many("path"),
        labels=query.many("label"),
        queues=query.many("queueName"),
        groups=query.many("topicName", "urlGroup"),
        schedules=query.many("scheduleId"),
        caller_ips=query.many("callerIp", "callerIP"),
        flow_keys=query.many("flowControlKey"),
        statuses=query.numbers("responseStatus"),
        states=query.many("state"),
        since=query.moment("fromDate"),
        until=query.moment("toDate"),
    )


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
    """The JSON body of a request that may have one. One that says it is JSON and is empty was lost: refused."""
    body = await read_body(request, limit=LARGEST)
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if not body and kind == "application/json":
        raise Refused(400, "the body was lost on its way", hint="send it, or leave out the Content-Type to mean all")
    return body


def meant_messages(query: Query, body: bytes) -> Wanted | None:
    """Messages that are to be cancelled; None: none of them. Nothing said at all means all, as the clients have it."""
    if not body:
        return _all_or_some(query)
    if query:
        raise Refused(422, "ids are in the body, and filters in the query", hint="send one of them")
    ids = message_ids(tuple(decoded(body, MessageIds).message_ids))
    return Wanted(message_ids=ids) if ids else None


def meant_dead(query: Query, body: bytes) -> Wanted | None:
    """Dead letters that are meant; None: none of them. All of them: `count` or `all`, and nothing else, say so."""
    if body:
        if query.filters:
            raise Refused(422, "ids are in the body, and filters in the query", hint="send one of them")
        ids = tuple(decoded(body, DeadIds).dlq_ids)
        return Wanted(dead_ids=ids) if ids else None
    if not query:
        raise Refused(422, "nothing says which dead letters", hint="dlqIds, a filter, or count=100 for all of them")
    return _all_or_some(query)


def _all_or_some(query: Query) -> Wanted | None:
    if query.many("all") and not query.flag("all"):
        raise Refused(422, "all=false says nothing", hint="say which are meant, or all=true")
    return wanted(query)
