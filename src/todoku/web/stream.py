"""Server-sent events: one stream for each open page, which says when to fetch it again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Final

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from todoku.api.auth import GuardedRoute
from todoku.api.problem import NO_STORE, Refused
from todoku.web.viewer import Entrance

TICK: Final = 2.0
"""Seconds between two fetches of an open page."""

MOST_STREAMS: Final = 200
"""Streams at once: each is a connection that stays open."""

STREAM_HEADERS: Final = {**NO_STORE, "x-accel-buffering": "no"}


class Streams:
    """The open streams of one server, bounded in number. For one event loop only."""

    def __init__(self, entrance: Entrance) -> None:
        self._entrance, self._open = entrance, 0

    def route(self) -> GuardedRoute:
        """Returns the route of the ticks."""
        return GuardedRoute("/live", self._ticks, methods=["GET"], access="open")

    def respond(self, events: AsyncIterator[str]) -> Response:
        """Returns a response that sends these events until the browser leaves."""
        if self._open >= MOST_STREAMS:
            raise Refused(503, "too many pages are open", hint="close some: each keeps a connection")
        return StreamingResponse(self._counted(events), 200, STREAM_HEADERS, "text/event-stream")

    async def _counted(self, events: AsyncIterator[str]) -> AsyncIterator[str]:
        self._open += 1
        try:
            async for event in events:
                yield event
        finally:
            self._open -= 1

    async def _ticks(self, request: Request) -> Response:
        admitted = await self._entrance.admit(request, "read")
        if isinstance(admitted, Response):
            raise Refused(401, "sign in to see live numbers")
        return self.respond(_tick())


async def _tick() -> AsyncIterator[str]:
    """Yields a tick at the same moments for all pages, so that their fetches share one reading and one rendering."""
    yield "retry: 3000\n\n"
    ticked = time.monotonic() // TICK
    while True:
        ticked = max(ticked + 1, time.monotonic() // TICK)
        await asyncio.sleep(max(0.0, ticked * TICK - time.monotonic()))
        yield "event: tick\ndata:\n\n"
