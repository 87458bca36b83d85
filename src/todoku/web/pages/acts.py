"""Acts on many deliveries: a preview that counts them, the start with who and why, progress, and a stop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar
from urllib.parse import urlencode
from uuid import UUID

import msgspec

from todoku.api.admin.acts import StartAct, get_act, list_acts, start_act, stop_act
from todoku.api.admin.parameters import ById, Reasoned
from todoku.api.problem import Refused
from todoku.web.page import page
from todoku.web.view import PageAnswer, Redirect, View

T = TypeVar("T", bound=msgspec.Struct)

LABELS: Final = {"replay": "Run again", "again": "Run successes again", "cancel": "Cancel", "purge": "Delete"}
"""The acts, and their English names."""

STATES: Final = {
    "waiting": "waits for its turn",
    "running": "running",
    "finished": "finished",
    "stopped": "stopped",
    "failed": "broke off",
}
"""The states of an act, and their English names."""

_SELECTING: Final = (
    "q", "status", "topic", "destination", "queue", "reason", "fingerprint", "key", "label", "message_id",
    "since", "until",
)  # fmt: skip
_MOST_IDS: Final = 500


def selection_of(given: Mapping[str, str], kind: type[T], **more: object) -> T:
    """Returns the parameters in the fields of a query or form, as an operation takes them; empty ones are left out.

    Raises Refused (422) that names the wrong one.
    """
    known = {name: value for name, value in given.items() if name in kind.__struct_fields__}
    values = {name: value for name, value in known.items() if value or name == "fingerprint"}
    try:
        return msgspec.convert({**values, **more}, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Refused(422, f"this is not acceptable: {error}", hint="go back and change it") from None


@page("POST", "/acts/new", access="operate")
def choose(view: View) -> Redirect:
    """Leads from checkboxes and a button to the preview of the act, whose URL holds the selection."""
    ids = [id for id in view.choices.get("id", ()) if id.isascii() and id.isdecimal()][:_MOST_IDS]
    if not ids:
        return view.back("/dead-letters", "Nothing is selected.")
    chosen = {"act": view.form.get("act", "replay"), "ids": ",".join(ids), "back": view.form.get("back", "")}
    return view.redirect(f"/acts/new?{urlencode(chosen)}")


@page("GET", "/acts/new", access="operate")
def preview(view: View) -> PageAnswer:
    """Counts what an act would change, and asks why."""
    body = _start(view.query, why="preview", dry_run=True)
    counted = start_act.run(view.context, body, view.viewer.name, view.viewer.scopes)
    chosen = {name: view.query[name] for name in (*_SELECTING, "ids") if name in view.query}
    return view.answer(
        "act_preview.html", counted, act=body.act, labels=LABELS, chosen=chosen, back=view.query.get("back", ""),
        number=view.query.get("limit", ""), rate=view.query.get("rate", ""),
    )  # fmt: skip


@page("POST", "/acts", access="operate")
def start(view: View) -> Redirect:
    """Starts the act and leads to its progress."""
    signed = view.signed()
    started = start_act.run(view.context, _start(view.form, why=signed.why), signed.by, view.viewer.scopes)
    return view.redirect(f"/acts/{started.act.id}")


@page("GET", "/acts", access="read")
def acts(view: View) -> PageAnswer:
    """Lists the acts that this process runs or remembers."""
    return view.answer("acts.html", list_acts.run(view.context), labels=LABELS, states=STATES)


@page("GET", "/acts/{id}", access="read")
def act(view: View) -> PageAnswer:
    """Shows how far an act is."""
    found = get_act.run(view.context, ById(id=_id(view)))
    return view.answer("act.html", found, labels=LABELS, states=STATES)


@page("POST", "/acts/{id}/stop", access="operate")
def stop(view: View) -> Redirect:
    """Stops an act between two batches."""
    signed = view.signed()
    stopped = stop_act.run(view.context, ById(id=_id(view)), Reasoned(why=signed.why), signed.by)
    return view.redirect(f"/acts/{stopped.id}", "It stops after the deliveries that it is at.")


def _start(given: Mapping[str, str], **more: object) -> StartAct:
    """Returns the parameters of an act. A page always shows the filter, so that no filter means everything there."""
    ids = [int(id) for id in given.get("ids", "").split(",") if id.isascii() and id.isdecimal() and len(id) < 19]
    if ids:
        more["ids"] = ids
    chosen = {name: value for name, value in given.items() if name not in ("ids", "all", "why", "dry_run")}
    return selection_of(chosen, StartAct, all=not ids, **more)


def _id(view: View) -> UUID:
    try:
        return UUID(view.path["id"])
    except ValueError:
        raise Refused(404, f"there is no act {view.path['id']!r}", hint="the audit names those that were") from None


PAGES: Final = (choose, preview, start, acts, act, stop)
