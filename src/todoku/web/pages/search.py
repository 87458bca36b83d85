"""The page of deliveries: a search, its rows with why each waits, and what may follow in the box."""

from __future__ import annotations

from typing import Final
from urllib.parse import urlencode

import msgspec

from todoku.api.admin.operation import convert_parameters
from todoku.api.admin.search import SearchQuery, SuggestionQuery, search, suggest
from todoku.api.problem import Refused
from todoku.core.errors import InvalidAct, InvalidMessage
from todoku.core.search import STATUSES, Search, parse
from todoku.web.page import page
from todoku.web.view import PageAnswer, View

_COUNTS_AGE: Final = 10.0
_LIVE_UP_TO: Final = 1000
"""Rows looked at: a search that looks at more is not repeated by itself."""


class SearchRefusal(msgspec.Struct, frozen=True):
    """A search that cannot be answered, and why."""

    error: str


class StatusTab(msgspec.Struct, frozen=True):
    """A link to the same search with another status. `number`: how many deliveries have it, whatever else they are."""

    name: str
    path: str
    current: bool
    number: int | None


@page("GET", "/deliveries", access="read")
def find_deliveries(view: View) -> PageAnswer:
    """Shows what a search finds, newest first."""
    asked = {name: text for name in ("q", "cursor", "limit") if (text := view.query.get(name))}
    try:
        query = convert_parameters(asked.items(), SearchQuery, "query")
        found = search.run(view.context, query, view.viewer.scopes)
    except (InvalidAct, InvalidMessage, Refused) as error:
        return view.answer(
            "search.html", SearchRefusal(str(error)), status=422, tabs=_tabs(view, Search()), older=None, live=False
        )  # fmt: skip
    older = None if found.next is None else _path(found.query, cursor=found.next)
    live = query.cursor is None and found.looked_at <= _LIVE_UP_TO
    return view.answer("search.html", found, tabs=_tabs(view, parse(found.query)), older=older, live=live)


@page("GET", "/suggestions", access="read")
def show_suggestions(view: View) -> PageAnswer:
    """Lists what may follow in a search; the search box reads it as JSON."""
    query = SuggestionQuery(q=view.query.get("q", "")[-1000:])
    return view.answer("suggestions.html", suggest.run(view.context, query))


def _tabs(view: View, current: Search) -> tuple[StatusTab, ...]:
    counts = view.context.store.statistics.counts(max_age=_COUNTS_AGE)
    chosen = current.values("status")
    everything = StatusTab("all", _path(str(current.replaced("status"))), not chosen, None)
    return (
        everything,
        *(
            StatusTab(name, _path(str(current.replaced("status", name))), chosen == (name,), counts.of(name))
            for name in STATUSES
        ),
    )


def _path(query: str, **more: str) -> str:
    values = {**({"q": query} if query else {}), **more}
    return "/deliveries" + (f"?{urlencode(values)}" if values else "")


PAGES: Final = (find_deliveries, show_suggestions)
