"""Ingest sources: what each sends to this process."""

from __future__ import annotations

from typing import Final

from todoku.api.admin.diagnostics import list_sources
from todoku.web.page import page
from todoku.web.view import PageAnswer, View


@page("GET", "/sources", access="read")
def sources(view: View) -> PageAnswer:
    """Shows all ingest sources."""
    return view.answer("sources.html", list_sources.run(view.context))


PAGES: Final = (sources,)
