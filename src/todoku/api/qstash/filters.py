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
from todoku.api.qstash.parsing import LARGEST, Query
from todoku.core.wanted import EVERYTHING, Wanted

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


def meant_messages(query: Query, body: bytes) -> Wanted | None:
    """Messages that are to be cancelled; None: none of them.

    All of them: `all=true`, or nothing at all, which is what the official clients send for it. `count` says how many.
    """
    if not body:
        return _all_or_some(query) if query else EVERYTHING
    if query:
        raise Refused(422, "ids are in the body, and filters in the query", hint="send one of them")
    ids = message_ids(tuple(decoded(body, MessageIds).message_ids))
    return Wanted(message_ids=ids) if ids else None


def meant_dead(query: Query, body: bytes) -> Wanted | None:
    """Dead letters that are meant; None: none of them. All of them: `all=true`; `count` says how many."""
    if body:
        if query.filters:
            raise Refused(422, "ids are in the body, and filters in the query", hint="send one of them")
        ids = tuple(decoded(body, DeadIds).dlq_ids)
        return Wanted(dead_ids=ids) if ids else None
    return _all_or_some(query)


def _all_or_some(query: Query) -> Wanted | None:
    """What a query means. Refused: 422, if it does not say which, or says it in two ways."""
    said = query.one("all")
    if said is not None and said != "true":
        raise Refused(422, f"all cannot be {said[:64]!r}", hint="say which are meant, or all=true")
    meant = wanted(query)
    if meant != EVERYTHING:
        if said is not None:
            raise Refused(422, "all=true and a filter contradict each other", hint="send one of them")
        return meant
    if said is None and query.one("count") is None:
        raise Refused(422, "nothing says which are meant", hint="ids, a filter, all=true, or count=100")
    return EVERYTHING
