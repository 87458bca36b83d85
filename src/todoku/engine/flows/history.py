"""Recorded histories of runs: a file that changed code is tried on before it is deployed. One line a run, as JSON.

A history has the arguments and results of a run in the clear: code cannot go on from masked ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal
from uuid import UUID

import msgspec

from todoku.core.control_characters import encode_json
from todoku.core.errors import InvalidAct, NotThere
from todoku.core.flow import UNDO_TOPIC, StepKind, StepRow, StepState, is_own_row
from todoku.core.msgspec_warmup import warm_up
from todoku.core.sealed import kind_of
from todoku.engine.deliveries import Id
from todoku.engine.flows.operations import run_of
from todoku.engine.outbox import Outbox
from todoku.store.audit import Signed
from todoku.store.deliveries import Filter
from todoku.store.messages import Story

FORMAT: Final = 1
"""The version of the format. A program refuses a newer one."""


class HistoryStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step as it was stored. `result` is missing (UNSET) if it has none. `undo`: whether it has one.

    `replay`: after how many replays of the run it was written. Of children, `arguments` names their batch, messages and
    jobs, and `result` says how each ended.
    """

    number: int
    key: str
    name: str
    kind: StepKind
    state: StepState
    arguments: Any = None
    result: Any = msgspec.UNSET
    error: str | None = None
    undo: bool = False
    attempts: int = 0
    replay: int = 0
    awaits: str | None = None


class RunHistory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run as it was stored: its arguments, its steps in the order in which they were begun, and how it ended.

    `status`: that of its delivery. `result`: of a run that has succeeded. `secret`: of an encrypted run, what the keys
    of its steps are digests under, as hexadecimal digits.
    """

    format: Literal[1]
    id: UUID
    workflow: str
    status: Literal["pending", "sending", "failed", "succeeded", "aborted"]
    started: datetime
    reason: str | None = None
    error: str | None = None
    arguments: Any = None
    result: Any = None
    key: str | None = None
    headers: dict[str, str] = {}
    replays: int = 0
    secret: str | None = None
    steps: tuple[HistoryStep, ...] = ()

    def __str__(self) -> str:
        return f"{self.workflow} {self.id}"


warm_up(RunHistory)


# ------------------------------------------------------------------------------------------------- recording


def export(outbox: Outbox, runs: Iterable[Id], signed: Signed, *, decrypt: bool = False) -> list[RunHistory]:
    """Returns the histories of runs, in the clear. The audit records who read them, and why, first. Blocks.

    NotThere, InvalidAct: one is no run, or it is encrypted and `decrypt` was not said. CannotOpen: its key is not here.
    """
    stories = [_exportable(run_of(outbox.store, run), decrypt=decrypt) for run in runs]
    if stories:
        outbox.store.audit.record(signed, "export", [f"message:{story.message.id}" for story in stories])
    return [_recorded(outbox, story) for story in stories]


def record(outbox: Outbox, run: Id, *, decrypt: bool = False) -> RunHistory:
    """Returns the history of one run, as `export` does, without an audit entry. Blocks."""
    return _recorded(outbox, _exportable(run_of(outbox.store, run), decrypt=decrypt))


def find_runs(outbox: Outbox, workflow: str, limit: int) -> list[int]:
    """Returns the newest runs of a workflow, by their deliveries: those that have not succeeded first. NotThere."""
    deliveries = outbox.store.deliveries
    found = list(deliveries.find(Filter(destination=workflow), limit=limit).items)
    if len(found) < limit:
        which = Filter(destination=workflow, status="succeeded")
        found += deliveries.find(which, limit=limit - len(found)).items
    if not found:
        raise NotThere(f"there is no run of {workflow}", hint="`todoku stats` lists the destinations that have some")
    return [delivery.id for delivery in found]


def _exportable(story: Story, *, decrypt: bool) -> Story:
    message = story.message
    if message.topic == UNDO_TOPIC:
        raise InvalidAct(f"{message.id} undoes a run, and is not replayed", hint="export the run that it undoes")
    if kind_of(message.content_type) is not None and not decrypt:
        raise InvalidAct(
            f"the run {message.id} is encrypted",
            hint="--decrypt (decrypt=True) exports it in the clear, where its master key is configured",
        )
    return story


def _recorded(outbox: Outbox, story: Story) -> RunHistory:
    message, delivery, opener = story.message, story.deliveries[0], outbox.opener
    id, workflow = str(message.id), delivery.destination
    secret = opener.step_secret(message)
    result = outbox.store.deliveries.result(delivery.id) if delivery.status == "succeeded" else None
    rows = outbox.store.runs.steps(message.seq)
    return RunHistory(
        format=FORMAT, id=message.id, workflow=workflow, status=delivery.status, started=message.created_at,  # type: ignore[arg-type]
        reason=delivery.reason, error=delivery.error, arguments=_value(opener.text(message)),
        result=_value(result, lambda text: opener.result(text, id, workflow)), key=message.key,
        headers={} if message.headers is None else msgspec.json.decode(message.headers, type=dict[str, str]),
        replays=delivery.replay_count, secret=secret.hex() or None,
        steps=tuple(
            _step(row, lambda text: opener.step(text, id, workflow)) for row in rows if not is_own_row(row)
        ),
    )  # fmt: skip


def _step(row: StepRow, open: Callable[[str], str]) -> HistoryStep:
    return HistoryStep(
        number=row.number, key=row.key, name=row.name, kind=row.kind, state=row.state,
        arguments=_value(row.arguments, open), error=row.error,
        result=msgspec.UNSET if row.result is None else _value(row.result, open),
        undo=row.undo is not None, attempts=row.attempts, replay=row.replay, awaits=row.awaits,
    )  # fmt: skip


def _value(text: str | None, open: Callable[[str], str] = lambda text: text) -> Any:
    return None if text is None else msgspec.json.decode(open(text))


# ----------------------------------------------------------------------------------------------------- files


def to_line(history: RunHistory) -> str:
    """Returns a history as one line of JSON, without its end."""
    return encode_json(history).decode()


def read_file(path: str | Path) -> list[RunHistory]:
    """Returns the histories in a file. InvalidAct names the line that is none."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return [_parsed(line, f"line {number} of {path}") for number, line in enumerate(lines, 1) if line.strip()]


def write_file(path: str | Path, histories: Sequence[RunHistory]) -> None:
    """Writes histories to a file, in place of what it had."""
    Path(path).write_text("".join(f"{to_line(each)}\n" for each in histories), encoding="utf-8")


def _parsed(line: str, where: str) -> RunHistory:
    try:
        return msgspec.json.decode(line, type=RunHistory)
    except msgspec.DecodeError as error:
        raise InvalidAct(
            f"{where} is no history of a run: {error}",
            hint="`todoku flow export` of this version writes them; export the run again",
        ) from None
