"""Runs of workflows: their steps as values, the keys of steps, and what is decided about them.

A step is found again by the function and the arguments it was called with, not by its place in the code (R1): loops and
concurrent branches work, and a step may be added between two others while a run waits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

from todoku.core.errors import InvalidAct
from todoku.core.identity import canonical
from todoku.core.msgspec_warmup import warm_up

StepKind = Literal["step", "sleep", "wait", "children", "publish", "value", "undo"]
StepState = Literal["open", "done", "failed", "fatal", "undone", "rewound"]

EFFECTS: Final[frozenset[StepKind]] = frozenset({"step", "children", "publish"})
"""Kinds of steps that may have an effect, which is not to be repeated by mistake (R1)."""

WaitsFor = Literal["sleep", "signal", "children", "retry"]

WAITS_FOR: Final[dict[StepKind, WaitsFor]] = {
    "sleep": "sleep", "wait": "signal", "children": "children", "step": "retry",
}  # fmt: skip
"""What a run waits for at an open step of this kind. One of kind `step` waits only between two attempts of its own."""

RUN: Final = "todoku-run"
"""The header of messages that are runs. Its value says when their steps are undone: `auto`, or `always`."""

CHILD: Final = "todoku-child"
"""The header of messages that a run waits for: `gather` or `race`, and the run. Their results are kept."""

RACING: Final = f'"{CHILD}":"race '
"""What the stored headers of a child contain whose run goes on with the first end."""

MOST_STEPS: Final = 10_000
"""Steps that a run may have (R14): each attempt reads all of them."""

RESULT_BYTES: Final = 64 << 10
"""Bytes of JSON that a step may return, or be called with."""

TIMED_OUT: Final = "timeout"
"""The error of a wait whose time was over before a signal came."""

UNDO_TOPIC: Final = "todoku.undo"
"""The topic of the message that undoes the steps of a run."""

CHANGED: Final = "~changed"
"""The key of the row in which a run says which stored results would have been left over (R1), for `rewind --accept`."""

RESTARTED: Final = "restart:="
"""The key of the step that publishes the run that follows this one (R14). It does not depend on its arguments."""

NO_UNDO: Final = frozenset({
    "BAD_PAYLOAD", "BAD_MASTER_KEY", "BY_HAND", "IDEMPOTENCY_CONFLICT", "INVALID_STEP", "SCHEMA_MISMATCH", "SHREDDED",
    "SNOOZED_TOO_OFTEN", "STEP_CHANGED", "STEP_FAILED", "TOO_MANY_STEPS", "UNKNOWN_DESTINATION", "UNKNOWN_MASTER_KEY",
    "WORKER_LOST",
})  # fmt: skip
"""Reasons of dead letters that a person may still mend and replay: their steps are undone only on request (R5)."""


class StepRow(msgspec.Struct, frozen=True, gc=False):
    """A step of a run, as it is stored. Texts of encrypted runs are sealed."""

    key: str
    number: int
    name: str
    kind: StepKind
    state: StepState
    arguments: str | None = None
    result: str | None = None
    error: str | None = None
    undo: str | None = None
    attempts: int = 0
    replay: int = 0
    awaits: str | None = None
    wait: float | None = None
    """Seconds until it is over: a sleep, a wait, or the pause before the next attempt."""
    started: float = 0.0
    ended: float | None = None
    took: float = 0.0

    @property
    def is_stored(self) -> bool:
        """Whether it has ended and is not run again: its result, or its error, is what it came to."""
        return self.state in ("done", "failed", "undone")


class KeyedRun(msgspec.Struct, frozen=True):
    """The run of a workflow that was started with this idempotency key: `fulfil.run(idempotency_key="fulfil-7")`.

    `names`: those of the workflow, the former ones behind the present one.
    """

    idempotency_key: str
    names: tuple[str, ...]


class Undo(msgspec.Struct, frozen=True):
    """How a step is undone: a function, by its module and name, called with `arguments` and then with its result."""

    function: str
    arguments: tuple[msgspec.Raw, ...] = ()


class ChildEnd(msgspec.Struct, frozen=True, omit_defaults=True):
    """How one child of a run ended: its result as JSON text, or why it became a dead letter."""

    result: str | None = None
    reason: str | None = None
    error: str | None = None


class ChildSuccess(msgspec.Struct, frozen=True, omit_defaults=True):
    """That a child has succeeded, with its result as its delivery has stored it: an encrypted one is sealed."""

    destination: str
    result: str | None = None


class ChildBatch(msgspec.Struct, frozen=True, omit_defaults=True):
    """The children of one step: their batch, and the messages with their jobs, in the order of the calls."""

    batch: str
    messages: tuple[str, ...]
    jobs: tuple[str, ...]
    succeeded: tuple[ChildSuccess | None, ...] = ()
    """What is known of each child whose history may be gone, while the run still waits for others (R11)."""


warm_up(Undo, ChildEnd, ChildBatch)


def digest_arguments(text: str, secret: bytes = b"") -> str:
    """Returns the digest of encoded arguments; of an encrypted run a keyed one, which cannot be guessed (R13).

    The names of the arguments are in the order of the function; those of dicts in them may be in any.
    """
    if text.count("{") > 1 and isinstance(value := json.loads(text), dict):
        text = json.dumps({name: canonical(item) for name, item in value.items()})
    return hashlib.blake2b(text.encode(), digest_size=12, key=secret[:64]).hexdigest()


def sort_names(text: str) -> str:
    """Returns an encoded dict with its names sorted: filled in another order, it is the same value. Else the text."""
    return canonical(json.loads(text)) if text.startswith("{") and text.count(":") > 1 else text


def step_key(name: str, digest: str, occurrence: int) -> str:
    """Returns the key of a step: its function, its arguments, and how many equal ones came before it in this run."""
    return f"{name}:{digest}" if occurrence == 0 else f"{name}:{digest}#{occurrence}"


def find_changed(asked: str, stored: Iterable[StepRow], used: Iterable[str]) -> list[StepRow]:
    """Returns the stored results of the function `asked` that this attempt has not used (R1).

    A run that asks for a step that is not stored, while such a result is left over, would repeat an effect with other
    arguments.
    """
    known = set(used)
    return [
        row for row in stored if row.kind in EFFECTS and row.name == asked and row.is_stored and row.key not in known
    ]


def is_restarted(rows: Iterable[StepRow]) -> bool:
    """Whether another run goes on with what this one did: as the query `undoable` (R14)."""
    return any(row.key == RESTARTED and row.kind == "publish" and row.state == "done" for row in rows)


def is_own_row(row: StepRow) -> bool:
    """Whether a row is no step, but what todoku keeps about a run: that it is undone, or what has changed."""
    return row.kind == "undo" or row.key == CHANGED


def steps_from(rows: Sequence[StepRow], to: str) -> list[StepRow]:
    """Returns the step `to`, by its number, key or name, and every step that was begun after it.

    InvalidAct: there is no such step, or several have this name.
    """
    steps = [row for row in rows if row.state != "rewound" and not is_own_row(row)]
    found = [row for row in steps if to in (str(row.number), row.key)] or [row for row in steps if row.name == to]
    if len(found) != 1:
        known = ", ".join(f"{row.number} {row.name}" for row in steps[:_LISTED]) + (" …" if steps[_LISTED:] else "")
        what = f"{len(found)} steps are called {to!r}" if found else f"the run has no step {to!r}"
        raise InvalidAct(what, hint=f"give one by its number: {known}" if steps else "it has no steps yet: replay it")
    return [row for row in steps if row.number >= found[0].number]


def changed_steps(rows: Sequence[StepRow]) -> list[StepRow]:
    """Returns the stored results that a run stopped for rather than leave them over (R1), and the row that says so.

    InvalidAct: it did not stop for any.
    """
    kept = next((row for row in rows if row.key == CHANGED), None)
    if kept is None:
        raise InvalidAct(
            "the run did not stop because a step has changed", hint="name the step to go back to: --to STEP"
        )
    keys = msgspec.json.decode(kept.result or "[]", type=set[str])
    return [kept, *(row for row in rows if row.key in keys and row.is_stored)]


_LISTED: Final = 50
"""Steps that an error lists, at most."""


def awaited_race(batch: str) -> str:
    """Returns what a run awaits that goes on with the first end in a batch, and not with the last."""
    return f"any {batch}"


def undone_by_itself(reason: str | None, *, exhausted: bool, always: bool) -> bool:
    """Whether the steps of a run that became a dead letter are undone without a person's request (R5)."""
    return always or not (exhausted or reason in NO_UNDO)
