"""Workflow runs as people and clients look at them."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from todoku.core.errors import CannotOpen, InvalidMessage
from todoku.core.http_request import HttpRequest
from todoku.core.redaction import redact_body
from todoku.core.workflow_webhook import CREATE, hide_webhook
from todoku.engine.encryption.run_texts import RunTexts
from todoku.engine.http.run_writer import RESULT
from todoku.engine.outbox import Outbox
from todoku.store.deliveries import Delivery
from todoku.store.http_runs import HttpRunStep, RunFilter, RunRow


class StepView(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a run with the JSON that the SDK has appended (None: it is encrypted and cannot be opened here)."""

    row: HttpRunStep
    body: dict[str, Any] | str | None

    @property
    def concurrent(self) -> int:
        """How many steps the SDK ran at once."""
        found = self.body.get("concurrent") if isinstance(self.body, dict) and self.row.position > 0 else None
        return found if isinstance(found, int) else 1


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """A run, its steps, its result, and those of its calls that have not succeeded. Redacted parts are hidden."""

    run: RunRow
    steps: tuple[StepView, ...]
    calls: tuple[Delivery, ...]
    result: str | None
    retries: int


class RunPage(msgspec.Struct, frozen=True):
    """Runs, the newest first, and the cursor of the next page (None: this is the last)."""

    runs: tuple[RunView, ...]
    cursor: str | None


def find(outbox: Outbox, which: RunFilter, *, cursor: str | None = None, limit: int = 10) -> RunPage:
    """Returns one page of runs."""
    store = outbox.store.http_runs
    rows = store.find(which, before=None if cursor is None else _position(cursor), limit=limit + 1)
    views = tuple(view(outbox, row) for row in rows[:limit])
    more = len(rows) > limit
    return RunPage(views, _cursor(rows[limit - 1]) if more else None)


def view(outbox: Outbox, run: RunRow) -> RunView:
    """Returns a run as it may be shown."""
    texts, steps = RunTexts(outbox.sealer), outbox.store.http_runs.steps(run.id)
    try:
        config = texts.open_request(run.id, run.request)
    except CannotOpen:
        config = HttpRequest(url=run.url, redact=("body",))
    return RunView(
        run=run,
        steps=tuple(StepView(row=row, body=_body(texts, run, config, row)) for row in steps),
        calls=_calls(outbox, run, steps),
        result=None if run.result is None else _text(texts, run, config, RESULT, run.result),
        retries=config.retries,
    )


def _calls(outbox: Outbox, run: RunRow, steps: Sequence[HttpRunStep]) -> tuple[Delivery, ...]:
    if not run.is_open:
        return ()
    rows = outbox.store.deliveries.of_requests([row.message_id for row in steps if row.call_type == "step"])
    return tuple(row for row in rows if row.status != "succeeded")


def _body(texts: RunTexts, run: RunRow, config: HttpRequest, row: HttpRunStep) -> dict[str, Any] | str | None:
    shown = _text(texts, run, config, row.key, row.body)
    try:
        found = msgspec.json.decode(shown or "null")
    except msgspec.DecodeError:
        return shown
    if not isinstance(found, dict):
        return shown
    return hide_webhook(found) if row.type == CREATE else found


def _text(texts: RunTexts, run: RunRow, config: HttpRequest, key: str, text: str) -> str | None:
    try:
        opened = base64.b64decode(texts.open_body(run.id, key, text))
    except CannotOpen:
        return None
    return redact_body(config, opened).decode(errors="replace")


def _cursor(row: RunRow) -> str:
    return f"{round(row.created_at.timestamp() * 1_000_000)}-{row.id}"


def _position(cursor: str) -> tuple[datetime, str]:
    at, dash, id = cursor.partition("-")
    if not (dash and at.isascii() and at.isdecimal() and len(at) < 18):
        raise InvalidMessage(f"cursor cannot be {cursor[:64]!r}", hint="pass the cursor of the previous page")
    return datetime.fromtimestamp(int(at) / 1_000_000, UTC), id
