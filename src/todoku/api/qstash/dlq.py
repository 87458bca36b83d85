"""`/v2/dlq`: dead letters."""

from __future__ import annotations

import asyncio
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from todoku.api.qstash.answers import DeadPage, dead_letter, empty_response, json
from todoku.api.qstash.filters import OF_DEAD, dead_letter_selection, dead_letters_to_change, read_optional_body
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

    def list_all(self, request: Request) -> Response:
        """Returns one page of matching dead letters, newest first."""
        query = Query(request)
        selection = dead_letter_selection(query)
        if selection is None:
            return json(DeadPage(messages=[]))
        page = dead_letters.find(self._outbox, selection, cursor=query.one("cursor"), limit=query.count(_MOST))
        return json(DeadPage(messages=[dead_letter(each) for each in page.items], cursor=page.cursor))

    def get(self, request: Request) -> Response:
        """Returns one dead letter."""
        id = segment(request, "id")
        if (found := dead_letters.get(self._outbox, id)) is None:
            raise _not_found(id)
        return json(dead_letter(found))

    def remove(self, request: Request) -> Response:
        """Deletes one dead letter; does nothing if it was replayed. 404: it was deleted or never existed."""
        refuse_query_and_body(request)
        id = segment(request, "id")
        changed = dead_letters.purge(self._outbox, Selection(dead_ids=(id,)), signed(request, "delete"))
        if not changed.message_ids and not dead_letters.was_replayed(self._outbox, id):
            raise _not_found(id)
        return empty_response()

    def retry(self, request: Request) -> Response:
        """Replays one dead letter."""
        refuse_query_and_body(request)
        id = segment(request, "id")
        changed = dead_letters.replay(self._outbox, Selection(dead_ids=(id,)), signed(request, "retry"))
        if not changed.message_ids:
            raise _not_found(id)
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


def _not_found(id: str) -> NotThere:
    return NotThere(
        f"there is no dead letter {id[:64]!r}", hint="it was replayed or deleted; GET /v2/dlq lists the others"
    )
