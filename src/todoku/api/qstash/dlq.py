"""`/v2/dlq`: dead letters."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from todoku.api.qstash.answers import DeadPage, dead_letter, done, json
from todoku.api.qstash.filters import OF_DEAD, body_of, dead_letter_selection, dead_letters_to_change
from todoku.api.qstash.parsing import Query, refuse_query_and_body, segment, signed
from todoku.api.request_context import RequestContext
from todoku.core.errors import NotThere
from todoku.engine.http import dead_letters
from todoku.engine.http.dead_letters import Selection

_MOST: Final = 100
_MOST_AT_ONCE: Final = 1000


class DeadLetterEndpoints:
    """The endpoints of dead letters."""

    def __init__(self, context: RequestContext) -> None:
        self._outbox = context.outbox

    def listed(self, request: Request) -> Response:
        """One page of those that are meant, the newest first."""
        query = Query(request)
        selection = dead_letter_selection(query)
        if selection is None:
            return json(DeadPage(messages=[]))
        page = dead_letters.find(self._outbox, selection, cursor=query.one("cursor"), limit=query.count(_MOST))
        return json(DeadPage(messages=[dead_letter(each) for each in page.items], cursor=page.cursor))

    def get(self, request: Request) -> Response:
        """One of them."""
        id = segment(request, "id")
        if (found := dead_letters.get(self._outbox, id)) is None:
            raise _gone(id)
        return json(dead_letter(found))

    def remove(self, request: Request) -> Response:
        """Delete one; one that was sent again needs no deleting. 404: it was deleted, or never there."""
        refuse_query_and_body(request)
        id = segment(request, "id")
        acts = dead_letters.purge(self._outbox, Selection(dead_ids=(id,)), signed(request, "delete"))
        if not acts.message_ids and not dead_letters.was_replayed(self._outbox, id):
            raise _gone(id)
        return done()

    def retry(self, request: Request) -> Response:
        """Send one again."""
        refuse_query_and_body(request)
        id = segment(request, "id")
        acts = dead_letters.replay(self._outbox, Selection(dead_ids=(id,)), signed(request, "retry"))
        if not acts.message_ids:
            raise _gone(id)
        return json({"messageId": str(acts.message_ids[0])}, 201)

    async def remove_many(self, request: Request) -> Response:
        """Delete those that are meant, so many at once; a cursor says that there are more."""
        acts = await self._acts(request, "delete")
        more = {} if acts.cursor is None else {"cursor": acts.cursor}
        return json({"deleted": len(acts.message_ids)} | more)

    async def retry_many(self, request: Request) -> Response:
        """Send those that are meant again, so many at once; a cursor says that there are more."""
        acts = await self._acts(request, "retry")
        responses = [{"messageId": str(id)} for id in acts.message_ids]
        return json({"cursor": acts.cursor or "", "responses": responses}, 201)

    async def _acts(self, request: Request, what: str) -> dead_letters.ChangedMessages:
        body, query = await body_of(request), Query(request, OF_DEAD)
        selection = dead_letters_to_change(query, body)
        if selection is None:
            return dead_letters.ChangedMessages((), None)
        limit = len(selection.dead_ids) or query.count(_MOST_AT_ONCE)
        act = dead_letters.purge if what == "delete" else dead_letters.replay
        who, cursor = signed(request, what), query.one("cursor")
        return await asyncio.to_thread(act, self._outbox, selection, who, cursor=cursor, limit=limit)


def _gone(id: str) -> NotThere:
    return NotThere(f"there is no dead letter {id[:64]!r}", hint="it was sent again, or deleted: GET /v2/dlq")
