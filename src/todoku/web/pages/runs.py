"""Acts on a run of a workflow, from the page of its message: rewind it, undo it, send it a signal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

import msgspec

from todoku.api.admin.messages import MessageStory
from todoku.api.admin.parameters import ById
from todoku.api.admin.runs import RewindBody, SignalBody, UndoBody, get_run, rewind_run, signal_run, undo_run
from todoku.api.problem import Refused
from todoku.api.request_context import RequestContext
from todoku.core.flow import RUN, UNDO_TOPIC
from todoku.engine.flows.operations import ShownRun, ShownStep
from todoku.web.charts import Stretch, waterfall
from todoku.web.page import page
from todoku.web.view import Redirect, View

_COLOURS: Final = {
    "done": "succeeded",
    "failed": "dead",
    "running": "sending",
    "retrying": "failed",
    "undone": "accent",
}
"""The colour of a step by its state; one that waits, or was taken back, has that of waits."""


def run_of(context: RequestContext, story: MessageStory) -> ShownRun | None:
    """Returns the run that a message is, with its steps; None: it is none."""
    if not story.deliveries or (RUN not in story.headers and story.topic != UNDO_TOPIC):
        return None
    found: ShownRun = get_run.run(context, ById(id=story.id))
    return found


def step_bars(run: ShownRun | None) -> list[Any]:
    """Returns the bar of each step."""
    steps: Sequence[ShownStep] = () if run is None else run.steps
    return waterfall([_stretch(step) for step in steps])


def _stretch(step: ShownStep) -> Stretch:
    start = step.started.timestamp()
    waits = step.kind in ("sleep", "wait", "children") or step.state == "rewound"
    return Stretch("wait" if waits else _COLOURS.get(step.state, "wait"), start, start + step.seconds)


@page("POST", "/runs/{id}/rewind", access="operate")
def rewind(view: View) -> Redirect:
    """Runs a dead letter again from a step on, or with what has changed."""
    where, signed, to = _where(view), view.signed(), view.form.get("to", "").strip()
    body = RewindBody(why=signed.why, to=to or None, accept=not to)
    done = rewind_run.run(view.context, where, body, signed.by)
    return view.back(f"/messages/{where.id}", "Steps that run again: {steps}", steps=", ".join(done.steps) or "–")


@page("POST", "/runs/{id}/undo", access="operate")
def undo(view: View) -> Redirect:
    """Undoes the steps of a dead letter."""
    where, signed = _where(view), view.signed()
    done = undo_run.run(view.context, where, UndoBody(why=signed.why), signed.by)
    return view.back(f"/messages/{where.id}", "Steps that are undone: {steps}", steps=", ".join(done.steps))


@page("POST", "/runs/{id}/signal", access="operate")
def signal(view: View) -> Redirect:
    """Sends a signal, whose value is JSON."""
    where, signed, name = _where(view), view.signed(), view.form.get("name", "").strip()
    try:
        payload = msgspec.json.decode(view.form.get("payload", "").strip() or "null")
        body = msgspec.convert({"why": signed.why, "name": name, "payload": payload}, SignalBody)
    except msgspec.MsgspecError as error:
        raise Refused(422, f"the form is not acceptable: {error}", hint="the value is JSON") from None
    signal_run.run(view.context, where, body, signed.by)
    return view.back(f"/messages/{where.id}", "The signal {name} was sent.", name=name)


def _where(view: View) -> ById:
    try:
        return ById(id=UUID(view.path["id"]))
    except ValueError:
        raise Refused(404, f"there is no run {view.path['id'][:64]!r}", hint="runs have ids") from None


PAGES: Final = (rewind, undo, signal)
