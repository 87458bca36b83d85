"""A delivery as text to copy: commands, requests, Python, and a pytest case that calls its handler again."""

from __future__ import annotations

import pprint
import re
from typing import Any, Final
from uuid import UUID

import msgspec

from todoku.core.redaction import STARS
from todoku.store.deliveries import Delivery

_SIGNED: Final = '-H "Authorization: Bearer $TODOKU_TOKEN"'
_JSON: Final = '-H "Content-Type: application/json"'


class HandlerCall(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a handler as JSON values, masked. `note`: why they are not the stored ones."""

    args: list[Any]
    kwargs: dict[str, Any]
    note: str = ""


class Snippets(msgspec.Struct, frozen=True, kw_only=True):
    """Texts to copy. None contains a secret: a token is read from the environment, masked values are `***`.

    `pytest` is null for a destination that is no job of this App.
    """

    cli: str
    curl: str
    python: str
    pytest: str | None


def make_snippets(delivery: Delivery, call: HandlerCall | None, *, url: str) -> Snippets:
    """Returns the texts for a delivery. `call`: of its handler, if the App here declares it; `url`: of this server."""
    return Snippets(
        cli=_cli(delivery),
        curl=_curl(delivery, url.rstrip("/")),
        python=_python(delivery),
        pytest=None if call is None else _pytest(delivery, call),
    )


def _cli(delivery: Delivery) -> str:
    lines = [f"todoku show {delivery.id}", f"todoku explain {delivery.id}"]
    match delivery.status:
        case "aborted":
            lines += [
                f'todoku replay {delivery.id} --why ""',
                f'todoku edit {delivery.id} --payload @payload.json --why ""',
            ]
        case "succeeded":
            lines.append(f'todoku replay {delivery.id} --again --why ""')
        case _:
            lines.append(f'todoku cancel {delivery.id} --why ""')
    return "\n".join(lines)


def _curl(delivery: Delivery, url: str) -> str:
    lines = [f"curl {_SIGNED} {url}/api/v1/deliveries/{delivery.id}"]
    if delivery.message_id is not None:
        lines.append(f"curl {_SIGNED} {url}/api/v1/messages/{delivery.message_id}")
    match delivery.status:
        case "aborted":
            act, body = "replay", '{"why": ""}'
        case "succeeded":
            act, body = "replay", '{"why": "", "again": true}'
        case _:
            act, body = "cancel", '{"why": ""}'
    lines.append(f"curl {_SIGNED} {_JSON} -d '{body}' {url}/api/v1/deliveries/{delivery.id}/{act}")
    return "\n".join(lines)


def _python(delivery: Delivery) -> str:
    id, number, name = _id(delivery.message_id), delivery.id, delivery.destination
    lines = [f"handle = box.handle({id}, {name!r})", "print(handle.delivery())"]
    match delivery.status:
        case "aborted":
            lines.append(f'box.deliveries.replay({number}, by="", why="")')
        case "succeeded":
            lines.append(f'box.deliveries.replay({number}, again=True, by="", why="")')
        case _:
            lines.append(f'box.deliveries.cancel({number}, by="", why="")')
    return "\n".join(lines)


def _id(message_id: UUID | None) -> str:
    return repr(str(message_id or ""))


def _pytest(delivery: Delivery, call: HandlerCall) -> str:
    """A test in a project whose `todoku_app` is this App: the fixture has its jobs, in an empty database."""
    name = re.sub(r"\W+", "_", delivery.destination, flags=re.ASCII).strip("_") or "job"
    lines = ["import todoku.testing", "", "", f"def test_{name}_delivery_{delivery.id}(todoku_box):"]
    lines += [f"    # {line}" for line in _notes(call)]
    if call.args:
        lines += _assignment("args", call.args)
    if call.kwargs:
        lines += _assignment("arguments", call.kwargs)
    given = ", ".join([*(["*args"] if call.args else []), *(["**arguments"] if call.kwargs else [])])
    lines += [
        "    with todoku.testing.inline(todoku_box):",
        f"        todoku_box.jobs[{delivery.destination!r}].enqueue({given})",
    ]
    return "\n".join(lines) + "\n"


def _notes(call: HandlerCall) -> list[str]:
    notes = [call.note] if call.note else []
    if STARS in repr((call.args, call.kwargs)):
        notes.append(f"{STARS} is masked: put a value of your own there.")
    return notes


def _assignment(name: str, value: object) -> list[str]:
    first, *rest = pprint.pformat(value, sort_dicts=False, width=100).split("\n")
    return [f"    {name} = {first}", *(" " * (7 + len(name)) + line for line in rest)]
