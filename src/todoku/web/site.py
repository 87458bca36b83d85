"""The dashboard as a whole: the table of its pages, its navigation, and its routes."""

from __future__ import annotations

from typing import Final

from todoku.api.auth import GuardedRoute
from todoku.api.request_context import RequestContext
from todoku.engine.diagnostics.summary import without_password
from todoku.web.assets import Assets
from todoku.web.page import WebPage, page_route
from todoku.web.pages import (
    account,
    acts,
    audit,
    captures,
    dead_letters,
    doctor,
    edit,
    endpoints,
    ledger,
    messages,
    new_message,
    overview,
    projections,
    queues,
    runs,
    schedules,
    search,
    settings,
    sources,
    tail,
    users,
    verification,
    workers,
)
from todoku.web.rendering import NavigationItem, Rendering
from todoku.web.stream import Streams
from todoku.web.tail_stream import TailStreams
from todoku.web.viewer import Entrance

PAGES: Final[tuple[WebPage, ...]] = (
    *overview.PAGES,
    *messages.PAGES,
    *edit.PAGES,
    *new_message.PAGES,
    *search.PAGES,
    *dead_letters.PAGES,
    *acts.PAGES,
    *queues.PAGES,
    *schedules.PAGES,
    *workers.PAGES,
    *endpoints.PAGES,
    *sources.PAGES,
    *captures.PAGES,
    *runs.PAGES,
    *projections.PAGES,
    *tail.PAGES,
    *ledger.PAGES,
    *audit.PAGES,
    *settings.PAGES,
    *doctor.PAGES,
    *verification.PAGES,
    *users.PAGES,
    *account.PAGES,
)
"""Every page and act, from all modules of `web/pages`."""

_NAVIGATION: Final = (
    NavigationItem("/", "Overview", "o"),
    NavigationItem("/deliveries", "Deliveries", "d"),
    NavigationItem("/dead-letters", "Dead letters", "l"),
    NavigationItem("/queues", "Queues", "q"),
    NavigationItem("/schedules", "Schedules", "s"),
    NavigationItem("/workers", "Workers", "w"),
    NavigationItem("/endpoints", "Endpoints", "e"),
    NavigationItem("/sources", "Sources", "i"),
    NavigationItem("/captures", "Captures", "b"),
    NavigationItem("/projections", "Projections", "p"),
    NavigationItem("/tail", "Live tail", "t"),
    NavigationItem("/new", "New message", "n"),
    NavigationItem("/ledger", "Ledger", "k"),
    NavigationItem("/audit", "Audit", "a"),
    NavigationItem("/settings", "Settings", "c"),
    NavigationItem("/doctor", "Doctor", "h"),
    NavigationItem("/verify", "Verify", "v"),
    NavigationItem("/users", "Users", "u"),
)


def navigation(pages: tuple[WebPage, ...] = PAGES) -> tuple[NavigationItem, ...]:
    """Returns the links of the navigation, to pages that exist."""
    access = {page.path: page.access for page in pages if page.method == "GET"}
    found = (item for item in _NAVIGATION if item.path in access)
    return tuple(NavigationItem(item.path, item.name, item.key, access[item.path]) for item in found)


def web_routes(context: RequestContext, entrance: Entrance) -> list[GuardedRoute]:
    """Returns the routes of the dashboard, for one event loop."""
    assets = Assets()
    rendering = Rendering(assets, navigation(), without_password(context.settings.database))
    streams = Streams(entrance)
    pages = [page_route(page, context, entrance, rendering) for page in PAGES]
    tails = TailStreams(context.store, streams, entrance)
    return [assets.route(), streams.route(), tails.route(), *pages, *entrance.routes(context, rendering)]
