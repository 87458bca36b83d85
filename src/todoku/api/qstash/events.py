"""Events of messages: `/v2/events`, which the clients use, and `/v2/logs`, which QStash documents."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from todoku.api.qstash.answers import EventPage, event, json
from todoku.api.qstash.filters import request_filter
from todoku.api.qstash.parsing import Query
from todoku.api.request_context import RequestContext
from todoku.engine.http import request_events
from todoku.engine.http.request_events import EventFilter

_MOST: Final = 1000


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
            until=query.moment("toDate"),
        )
        page = request_events.find(self._outbox, event_filter, cursor=query.one("cursor"), limit=query.count(_MOST))
        rows = [event(each) for each in page.items]
        return json(EventPage(events=rows, logs=rows, cursor=page.cursor))
