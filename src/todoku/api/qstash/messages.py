"""`/v2/messages`: what waits, runs, has ended; and cancelling."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from todoku.api.qstash.answers import json, message
from todoku.api.qstash.filters import OF_MESSAGES, body_of, message_id, messages_to_cancel
from todoku.api.qstash.parsing import MOST_COUNTED, Query, refuse_query_and_body, segment, signed
from todoku.api.request_context import RequestContext
from todoku.core.errors import NoSuchMessage
from todoku.engine.http import requests


class Messages:
    """The endpoints of messages."""

    def __init__(self, context: RequestContext) -> None:
        self._outbox = context.outbox

    def get(self, request: Request) -> Response:
        """One message, also after it was delivered, as long as history keeps it. One that was cancelled is gone."""
        given = segment(request, "id")
        id = message_id(given)
        found = None if id is None else requests.get(self._outbox, id)
        if found is None or found.is_cancelled:
            raise _unknown(given)
        return json(message(found))

    def cancel(self, request: Request) -> Response:
        """Cancel one: what waits is over, what runs is asked to stop. One that has ended stays as it is."""
        refuse_query_and_body(request)
        given = segment(request, "id")
        id = message_id(given)
        if id is None:
            raise _unknown(given)
        return json({"cancelled": requests.cancel(self._outbox, id, signed(request, "cancel"))})

    async def cancel_many(self, request: Request) -> Response:
        """Cancel some, or all that are waiting; at most `count`, and then a cursor says that there are more."""
        body, query = await body_of(request), Query(request, OF_MESSAGES)
        which = messages_to_cancel(query, body)
        if which is None:
            return json({"cancelled": 0})
        limit, cursor = query.number("count", least=1, most=MOST_COUNTED), query.one("cursor")
        done = await asyncio.to_thread(
            requests.cancel_many, self._outbox, which, signed(request, "cancel"), cursor=cursor, limit=limit
        )
        return json({"cancelled": done.number} | ({} if done.cursor is None else {"cursor": done.cursor}))


def _unknown(id: str) -> NoSuchMessage:
    return NoSuchMessage(f"message {id[:64]!r} not found", hint="never published, cancelled, or long over")
