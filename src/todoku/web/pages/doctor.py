"""The doctor: what is wrong with the database and the settings, and what to do."""

from __future__ import annotations

from typing import Final

from todoku.api.admin.diagnostics import run_doctor
from todoku.web.page import page
from todoku.web.view import PageAnswer, View


@page("GET", "/doctor", access="read")
def doctor(view: View) -> PageAnswer:
    """Examines the database and shows what was found."""
    return view.answer("doctor.html", run_doctor.run(view.context))


PAGES: Final = (doctor,)
