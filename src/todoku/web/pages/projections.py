"""Projections: their states, how far behind they are, their indexes; the flag that readers ask."""

from __future__ import annotations

from typing import Final

from todoku.api.admin.parameters import ByName
from todoku.api.admin.projections import ReadersBody, list_projections, set_readers
from todoku.web.form import parse_form
from todoku.web.page import page
from todoku.web.view import PageAnswer, Redirect, View


@page("GET", "/projections", access="read")
def projections(view: View) -> PageAnswer:
    """Shows all projections."""
    return view.answer("projections.html", list_projections.run(view.context))


@page("POST", "/projections/readers", access="operate")
def readers(view: View) -> Redirect:
    """Sets the flag that the readers of a projection ask."""
    name, body = parse_form(view, ByName, "name"), parse_form(view, ReadersBody, "on", "why")
    done = set_readers.run(view.context, name, body, view.viewer.name)
    return view.back("/projections", "{name} is read" if done.on else "{name} is not read", name=done.name)


PAGES: Final = (projections, readers)
