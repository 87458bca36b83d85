"""Verification: which invariants hold in the database."""

from __future__ import annotations

from typing import Final

from todoku.api.admin.diagnostics import get_verification, start_verification
from todoku.web.page import page
from todoku.web.view import PageAnswer, Redirect, View


@page("GET", "/verify", access="read")
def verification(view: View) -> PageAnswer:
    """Shows the verification that runs, or the last one."""
    return view.answer("verify.html", get_verification.run(view.context))


@page("POST", "/verify", access="operate")
def start(view: View) -> Redirect:
    """Starts a verification in the background."""
    start_verification.run(view.context, view.viewer.name)
    return view.redirect("/verify", "The verification runs")


PAGES: Final = (verification, start)
