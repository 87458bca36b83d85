"""The stream of the live tail: one poll of the database for all who look, each with a filter and a bounded queue."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from todoku.api.auth import GuardedRoute
from todoku.api.problem import Refused
from todoku.core.control_characters import encode_json
from todoku.core.errors import StoreError
from todoku.engine.event_tail import OVERLAP, EventTail, event_filter, poll_since
from todoku.store.attempts import Event
from todoku.store.store import Store
from todoku.web.stream import Streams
from todoku.web.viewer import Entrance

POLL: Final = 1.0
"""Seconds between two polls."""

_WAITING: Final = 30
"""Batches that wait for a slow browser; more are dropped, and counted."""


class TailBatch(msgspec.Struct, frozen=True):
    """What happened since the last batch, oldest first. `dropped`: events that were left out before these.

    `cut`: there were more events than one poll reads; how many more is not known.
    """

    items: tuple[Event, ...]
    dropped: int
    cut: bool


class _Listener:
    """One open page: its filter, and the batches that wait for it."""

    def __init__(self, matches: Callable[[Event], bool]) -> None:
        self.matches = matches
        self.batches: asyncio.Queue[TailBatch] = asyncio.Queue(_WAITING)
        self._dropped = 0

    def put(self, events: list[Event], *, cut: bool) -> None:
        """Queues those events that match, or counts them as dropped."""
        items = tuple(event for event in events if self.matches(event))
        if not items and not cut:
            return
        try:
            self.batches.put_nowait(TailBatch(items, self._dropped, cut))
            self._dropped = 0
        except asyncio.QueueFull:
            self._dropped += len(items)


class TailStreams:
    """The open tails of one server. For one event loop only."""

    def __init__(self, store: Store, streams: Streams, entrance: Entrance) -> None:
        self._store, self._streams, self._entrance = store, streams, entrance
        self._listeners: set[_Listener] = set()
        self._polling: asyncio.Task[None] | None = None

    def route(self) -> GuardedRoute:
        """Returns the route of the events."""
        return GuardedRoute("/tail/events", self._events, methods=["GET"], access="open")

    async def _events(self, request: Request) -> Response:
        admitted = await self._entrance.admit(request, "read")
        if isinstance(admitted, Response):
            raise Refused(401, "sign in to see what happens")
        listener = _Listener(event_filter(request.query_params.get("q", "")))
        since = _moment(request.headers.get("last-event-id") or request.query_params.get("since", ""))
        return self._streams.respond(self._listen(listener, since))

    async def _listen(self, listener: _Listener, since: float | None) -> AsyncIterator[str]:
        """The batches of one page, the first with what happened `since`. A page ignores events that it has."""
        self._listeners.add(listener)
        if self._polling is None or self._polling.done():
            self._polling = asyncio.create_task(self._poll())
        try:
            yield "retry: 3000\n\n"
            if since is not None:
                polled = await asyncio.to_thread(poll_since, self._store, since)
                listener.put(polled.events, cut=polled.cut)
            while True:
                with suppress(TimeoutError):
                    batch = await asyncio.wait_for(listener.batches.get(), 15)
                    newest = f"id: {batch.items[-1].at.timestamp()}\n" if batch.items else ""
                    yield f"{newest}event: events\ndata: {encode_json(batch).decode()}\n\n"
                    continue
                yield ": still here\n\n"
        finally:
            self._listeners.discard(listener)

    async def _poll(self) -> None:
        """Polls while a page is open. A database that does not answer is asked again."""
        tail: EventTail | None = None
        while self._listeners:
            with suppress(StoreError):
                if tail is None:
                    # A publish that commits now may be some seconds old: no page has it yet, and none shows it twice.
                    tail = await asyncio.to_thread(partial(EventTail, self._store, since=OVERLAP))
                polled = await asyncio.to_thread(tail.poll)
                for listener in self._listeners:
                    listener.put(polled.events, cut=polled.cut)
            await asyncio.sleep(POLL)


def _moment(text: str) -> float | None:
    """Unix seconds that a page sent; None: it sent none that can be read."""
    with suppress(ValueError):
        return value if math.isfinite(value := float(text[:32])) else None
    return None
