"""Settings in force, with their origin."""

from __future__ import annotations

from typing import Final

from todoku.api.admin.diagnostics import list_settings
from todoku.web.page import page
from todoku.web.view import PageAnswer, View


@page("GET", "/settings", access="admin")
def settings(view: View) -> PageAnswer:
    """Shows the settings of the process that answers."""
    return view.answer("settings.html", list_settings.run(view.context))


PAGES: Final = (settings,)
