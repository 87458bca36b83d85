"""The live tail: what happens, as it happens."""

from __future__ import annotations

from typing import Final

import msgspec

from todoku.core.errors import InvalidAct
from todoku.engine.event_tail import LONGEST, EventTail, event_filter
from todoku.store.attempts import Event
from todoku.web.page import page
from todoku.web.view import PageAnswer, View

_SHOWN: Final = 50


class RecentEvents(msgspec.Struct, frozen=True):
    """The newest events, newest first, as of `at` (unix seconds of the database); or why there are none."""

    items: tuple[Event, ...]
    at: float = 0.0
    error: str = ""


@page("GET", "/tail", access="read")
def tail(view: View) -> PageAnswer:
    """Shows the newest events; the page's script goes on from there."""
    try:
        matches = event_filter(view.query.get("q", ""))
    except InvalidAct as error:
        return view.answer("tail.html", RecentEvents((), error=str(error)), status=422)
    at = view.context.store.ping()
    events = EventTail(view.context.store, since=LONGEST).poll().events
    newest = [event for event in events if matches(event)][: -_SHOWN - 1 : -1]
    return view.answer("tail.html", RecentEvents(tuple(newest), at))


PAGES: Final = (tail,)
