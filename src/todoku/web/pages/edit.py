"""Edit and run: the payload in an editor, then the difference, then who and why."""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from todoku.api.admin.deliveries import get_delivery
from todoku.api.admin.message_acts import EditBody, edit_delivery
from todoku.api.admin.messages import MessageStory, get_message
from todoku.api.admin.parameters import ByMessage, ByNumber
from todoku.api.problem import Refused
from todoku.core.control_characters import escape_controls
from todoku.core.errors import InvalidAct, InvalidMessage, NoSuchMessage
from todoku.engine.edit import EDITABLE, EditResult, pretty_payload
from todoku.store.deliveries import Delivery
from todoku.web.page import page
from todoku.web.view import PageAnswer, Redirect, View


class EditView(msgspec.Struct, frozen=True, kw_only=True):
    """The editor: the texts in its fields, and the result of a preview. `headers` null: it is no HTTP request."""

    delivery: Delivery
    payload: str
    told: str | None
    key: str
    headers: str | None
    result: EditResult | None = None
    purge: bool = False


@page("GET", "/deliveries/{id:int}/edit", access="operate")
def show_editor(view: View) -> PageAnswer:
    """Shows the editor of a delivery."""
    return view.answer("edit.html", _editor(view)[0])


@page("POST", "/deliveries/{id:int}/edit", access="operate")
def edit(view: View) -> PageAnswer | Redirect:
    """Shows the difference, or runs the edited message."""
    editor, story = _editor(view)
    form = view.form
    given = msgspec.structs.replace(
        editor,
        payload=_inert(form.get("payload", "").replace("\r\n", "\n")),
        key=form.get("key", ""),
        headers=None if editor.headers is None else form.get("headers", "").replace("\r\n", "\n"),
        purge=form.get("purge") == "1",
    )
    where, runs, change = ByNumber(id=editor.delivery.id), form.get("step") == "run", EditBody()
    try:
        change = _changes(editor, given, story)
        result: EditResult = edit_delivery.run(
            view.context, where, msgspec.structs.replace(change, dry_run=True), view.viewer.name
        )
    except (InvalidAct, InvalidMessage, Refused) as error:
        result = EditResult(delivery_id=where.id, diff="", hidden=(), problems={"": str(error)})
    if result.problems or not runs:
        status = 422 if result.problems else 200
        return view.answer("edit.html", msgspec.structs.replace(given, result=result), status=status)
    signed = view.signed()
    body = msgspec.structs.replace(change, why=signed.why, purge=given.purge)
    done: EditResult = edit_delivery.run(view.context, where, body, signed.by)
    return view.redirect(f"/messages/{done.message_id}", "It runs, edited, as this new message.")


def _editor(view: View) -> tuple[EditView, MessageStory]:
    delivery: Delivery = get_delivery.run(view.context, ByNumber(id=view.number("id"))).delivery
    if delivery.message_id is None:
        raise NoSuchMessage(f"the message of delivery {delivery.id} was pruned", hint="its retention has passed")
    if delivery.status not in EDITABLE:
        raise InvalidAct(f"delivery {delivery.id} is {delivery.status}", hint="cancel it first")
    story: MessageStory = get_message.run(view.context, ByMessage(id=delivery.message_id))
    text, told = story.payload_text or "", story.payload_told
    if any(escape_controls(line) != line for line in text.split("\n")):
        text, told = "", "control characters"
    headers = None
    if story.request is not None and story.request.source is None:
        headers = "\n".join(f"{name}: {value}" for name, value in story.request.headers.items())
    return EditView(delivery=delivery, payload=text, told=told, key=story.key or "", headers=headers), story


def _changes(before: EditView, given: EditView, story: MessageStory) -> EditBody:
    """The fields of the form that differ from what the editor showed. InvalidMessage: one cannot be read."""
    payload: Any = UNSET
    if given.payload.strip() and given.payload != before.payload.replace("\r\n", "\n"):
        payload = _payload(given.payload, story)
    key: str | UnsetType | None = UNSET
    if before.headers is None and given.key != before.key:
        key = given.key or None
    headers: dict[str, str] | UnsetType = UNSET
    if given.headers is not None and given.headers != before.headers:
        headers = dict(_header(line) for line in given.headers.split("\n") if line.strip())
    return EditBody(payload=payload, key=key, headers=headers)


def _payload(text: str, story: MessageStory) -> Any:
    """The payload of the editor: JSON, unless the message is text."""
    try:
        return json.loads(text)
    except ValueError as error:
        if story.payload_text is not None and not _is_json(story.payload_text):
            return text
        raise InvalidMessage(f"this is not JSON: {error}") from None


def _inert(text: str) -> str:
    """The text for the editor: JSON without raw control characters, so that what is shown is what was sent."""
    try:
        return pretty_payload(json.loads(text), frozenset())
    except ValueError:
        return text


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon:
        raise InvalidMessage(f"{line[:80]!r} is no header", hint="Name: value, one on each line")
    return name.strip(), value.strip()


PAGES: Final = (show_editor, edit)
