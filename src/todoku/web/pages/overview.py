"""The first page: how it goes."""

from __future__ import annotations

from typing import Final

from todoku.api.admin.statistics import get_statistics
from todoku.web.page import page
from todoku.web.view import Answer, View


@page("GET", "/", access="read")
def overview(view: View) -> Answer:
    """Shows numbers of everything."""
    return view.answer("overview.html", get_statistics.run(view.context))


PAGES: Final = (overview,)
