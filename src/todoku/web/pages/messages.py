"""One message with its deliveries, one of them first: why it waits or failed, its timeline, its attempts, its acts."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote
from uuid import UUID

import msgspec

from todoku.api.admin.deliveries import (
    DeliveryStory,
    RepeatOne,
    cancel_delivery,
    delete_dead_letter,
    get_delivery,
    replay_delivery,
)
from todoku.api.admin.message_acts import open_masked_message
from todoku.api.admin.messages import MessageStory, get_message, get_snippets, get_timeline
from todoku.api.admin.parameters import ByMessage, ByNumber, Reasoned
from todoku.api.problem import Refused
from todoku.core.errors import NoSuchMessage
from todoku.core.search import Term
from todoku.engine.diagnostics.snippets import Snippets
from todoku.engine.diagnostics.timeline import Timeline, TimelineSpan
from todoku.engine.flows.operations import ShownRun
from todoku.web.charts import Stretch, waterfall
from todoku.web.page import page
from todoku.web.pages.runs import run_of, step_bars
from todoku.web.view import PageAnswer, Redirect, View

_COLOURS: Final = {
    "attempt": "failed", "succeeded": "succeeded", "running": "sending", "dead": "dead", "published": "accent",
    "act": "accent", "effect": "accent",
}  # fmt: skip
"""The colour of each kind of span; waits have one of their own."""


class MessageView(msgspec.Struct, frozen=True, kw_only=True):
    """A message, the delivery that is looked at, and its timeline."""

    message: MessageStory
    chosen: DeliveryStory | None
    timeline: Timeline
    snippets: Snippets | None
    run: ShownRun | None = None


@page("GET", "/messages/{id}", access="read")
def message(view: View) -> PageAnswer:
    """Shows a message; of its deliveries the one that needs a look most."""
    return _answer(view, _message_id(view), None)


@page("GET", "/deliveries/{id:int}", access="read")
def delivery(view: View) -> PageAnswer:
    """Shows the message of a delivery, that delivery first."""
    number = view.number("id")
    story = get_delivery.run(view.context, ByNumber(id=number))
    if story.delivery.message_id is None:
        raise NoSuchMessage(f"the message of delivery {number} was pruned", hint="its retention has passed")
    return _answer(view, story.delivery.message_id, story)


def _message_id(view: View) -> UUID:
    try:
        return UUID(view.path["id"])
    except ValueError:
        raise Refused(404, f"there is no message {view.path['id'][:64]!r}", hint="messages have ids") from None


def _answer(view: View, id: UUID, chosen: DeliveryStory | None, **more: Any) -> PageAnswer:
    context = view.context
    story: MessageStory = get_message.run(context, ByMessage(id=id))
    if chosen is None and (number := _most_needed(story)) is not None:
        chosen = get_delivery.run(context, ByNumber(id=number))
    snippets = None if chosen is None else get_snippets.run(context, ByNumber(id=chosen.delivery.id))
    timeline: Timeline = get_timeline.run(context, ByMessage(id=id))
    run = run_of(context, story)
    value = MessageView(message=story, chosen=chosen, timeline=timeline, snippets=snippets, run=run)
    shown: dict[str, Any] = {"bars": _bars(timeline), "steps": step_bars(run), "find": _find}
    return view.answer("message.html", value, **shown, **{"opened": None, **more})


def _find(name: str, value: str, field: str = "") -> str:
    """The path of a search for deliveries with this value."""
    return f"/deliveries?q={quote(str(Term(name, value, field)))}"


_URGENT: Final = ("aborted", "failed", "sending", "pending", "succeeded")


def _most_needed(story: MessageStory) -> int | None:
    rows = sorted(story.deliveries, key=lambda row: (_URGENT.index(row.status), row.id))
    return rows[0].id if rows else None


def _bars(timeline: Timeline) -> list[Any]:
    spans = timeline.spans
    ends = [max(span.start, span.end or timeline.now) for span in spans]
    stretches = [
        Stretch(_colour(span), span.start.timestamp(), end.timestamp()) for span, end in zip(spans, ends, strict=True)
    ]
    return waterfall(stretches)


def _colour(span: TimelineSpan) -> str:
    return _COLOURS.get(span.kind, "wait")


@page("POST", "/messages/{id}/open", access="admin")
def open_message(view: View) -> PageAnswer:
    """Shows a message without masks, audited with the viewer's reason."""
    id, signed = _message_id(view), view.signed()
    opened = open_masked_message.run(view.context, ByMessage(id=id), Reasoned(why=signed.why), signed.by)
    return _answer(view, id, None, opened=opened)


@page("POST", "/deliveries/{id:int}/replay", access="operate")
def replay(view: View) -> Redirect:
    """Replays a dead letter; with `again`, runs a success again as a new message."""
    number, signed, again = view.number("id"), view.signed(), view.form.get("again") == "1"
    body = RepeatOne(why=signed.why, again=again)
    done = replay_delivery.run(view.context, ByNumber(id=number), body, signed.by)
    for new in done.messages:
        return view.redirect(f"/messages/{new}", "It runs again as this new message.")
    if not done.replayed:
        return view.back(f"/deliveries/{number}", "Nothing was changed: another worker or operator was faster.")
    return view.back(f"/deliveries/{number}", "Delivery {number} runs again.", number=number)


@page("POST", "/deliveries/{id:int}/cancel", access="operate")
def cancel(view: View) -> Redirect:
    """Cancels a delivery."""
    number, signed = view.number("id"), view.signed()
    done = cancel_delivery.run(view.context, ByNumber(id=number), Reasoned(why=signed.why), signed.by)
    if not done.changed:
        return view.back(f"/deliveries/{number}", "Nothing was changed: another worker or operator was faster.")
    return view.back(f"/deliveries/{number}", "Delivery {number} is cancelled.", number=number)


@page("POST", "/deliveries/{id:int}/delete", access="operate")
def delete(view: View) -> Redirect:
    """Deletes a dead letter; its message is shown, which the audit still explains."""
    number, signed = view.number("id"), view.signed()
    story = get_delivery.run(view.context, ByNumber(id=number))
    delete_dead_letter.run(view.context, ByNumber(id=number), Reasoned(why=signed.why), signed.by)
    return view.redirect(f"/messages/{story.delivery.message_id}", "Delivery {number} was deleted.", number=number)


PAGES: Final = (message, delivery, open_message, replay, cancel, delete)
