"""`/v2/messages`: get and cancel messages."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from todoku.api.qstash.answers import json, message
from todoku.api.qstash.filters import OF_MESSAGES, message_id, messages_to_cancel, read_optional_body
from todoku.api.qstash.parsing import MOST_COUNT, Query, refuse_query_and_body, segment, signed
from todoku.api.request_context import RequestContext
from todoku.core.errors import NoSuchMessage
from todoku.engine.http import requests


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
