"""Captures: their states, how far behind they are, their snapshots; publishing their rows anew."""

from __future__ import annotations

from typing import Final

from todoku.api.admin.captures import SnapshotBody, list_captures, snapshot_capture
from todoku.api.admin.parameters import ByName
from todoku.web.form import parse_form
from todoku.web.page import page
from todoku.web.view import PageAnswer, Redirect, View


@page("GET", "/captures", access="read")
def captures(view: View) -> PageAnswer:
    """Shows all captures."""
    return view.answer("captures.html", list_captures.run(view.context))


@page("POST", "/captures/snapshot", access="operate")
def snapshot(view: View) -> Redirect:
    """Publishes the rows of all tables of a capture anew, or of the one that the form names."""
    name, signed = parse_form(view, ByName, "name"), view.signed()
    table = view.form.get("table", "")
    body = SnapshotBody(why=signed.why, tables=[table] if table else None)
    done = snapshot_capture.run(view.context, name, body, signed.by)
    return view.back("/captures", "A worker will read {tables}", tables=", ".join(done.tables) or "–")


PAGES: Final = (captures, snapshot)
