"""The live tail: what happens, as it happens."""

from __future__ import annotations

from typing import Final

import msgspec

from todoku.core.errors import InvalidAct
from todoku.engine.event_tail import EventTail, event_filter
from todoku.store.attempts import Event
from todoku.web.page import page
from todoku.web.view import Answer, View

_SHOWN: Final = 50
_LAST: Final = 600.0
"""Seconds of the past that the page begins with."""


class RecentEvents(msgspec.Struct, frozen=True):
    """The newest events, newest first; or why there are none."""

    items: tuple[Event, ...]
    error: str = ""


@page("GET", "/tail", access="read")
def tail(view: View) -> Answer:
    """Shows the newest events; the page's script goes on from there."""
    try:
        matches = event_filter(view.query.get("q", ""))
    except InvalidAct as error:
        return view.answer("tail.html", RecentEvents((), str(error)), status=422)
    events = EventTail(view.context.store, since=_LAST).poll().events
    newest = [event for event in events if matches(event)][: -_SHOWN - 1 : -1]
    return view.answer("tail.html", RecentEvents(tuple(newest)))


PAGES: Final = (tail,)
