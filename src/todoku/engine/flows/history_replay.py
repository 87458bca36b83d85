"""What a replay of a recorded history came to, as values and as a text for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from todoku.core.flow import EFFECTS, StepKind
from todoku.engine.flows.history import HistoryStep, RunHistory


class AskedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that the code asks for, and that is not stored. `begun`: it was begun before, and has not ended."""

    name: str
    kind: StepKind
    arguments: Any
    begun: bool


class ChangedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A stored step, and the other arguments with which the code calls its function now (R1)."""

    step: HistoryStep
    arguments: Any


class UnreadableResult(msgspec.Struct, frozen=True, kw_only=True):
    """A stored result that does not fit the type that the code expects."""

    name: str
    result: Any
    error: str


class RunEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended: with a result, as a dead letter, or, of a replay, in an attempt that fails."""

    status: Literal["succeeded", "aborted", "failed"]
    result: Any = None
    reason: str | None = None
    error: str | None = None


class HistoryReplay(msgspec.Struct, frozen=True, kw_only=True):
    """What the code of a workflow did with a recorded history.

    `next`: the steps it asks for that are not stored; there it stopped. `unused`: stored steps that it has not asked
    for. `changed`: the step that stops the run, STEP_CHANGED. `unreadable`: results that do not fit their types any
    more. `versions`: what `ctx.version` returned, by its names. `end`: how the code ended, if it did. `failure`: what
    went wrong in it.
    """

    history: RunHistory
    next: tuple[AskedStep, ...]
    unused: tuple[HistoryStep, ...]
    changed: ChangedStep | None
    unreadable: tuple[UnreadableResult, ...]
    versions: Mapping[str, bool]
    end: RunEnd | None
    failure: str | None

    @property
    def same_end(self) -> bool | None:
        """Whether the code comes to the recorded end: the same result, or the same reason. None: one has not ended."""
        if self.end is None or self.history.status not in ("succeeded", "aborted"):
            return None
        recorded = self.history
        return (recorded.status, recorded.reason, recorded.result) == (
            self.end.status, self.end.reason, self.end.result,
        )  # fmt: skip

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the run would not go on, or not as recorded: a text each, with what to do about it."""
        return tuple(self._problems())

    @property
    def ok(self) -> bool:
        """Whether the run goes on with this code."""
        return not self.problems

    def check(self) -> None:
        """Raises AssertionError, with the run, the steps and what to do, unless the run goes on with this code."""
        if problems := self.problems:
            lines = "\n  ".join(problems)
            raise AssertionError(f"the run {self.history} does not go on with this code:\n  {lines}")

    def _problems(self) -> Iterator[str]:
        if self.changed is not None:
            step = self.changed.step
            yield (
                f"step {step.number}, {step.name}, is stored for {_text(step.arguments)} and is now called with "
                f"{_text(self.changed.arguments)}: the run would stop with STEP_CHANGED. If this is meant for new runs "
                f'only, ask ctx.version("…") which way to take; otherwise `todoku flow rewind {self.history.id} '
                '--accept` lets the run call it again, and @box.workflow(on_change="run") lets every run'
            )
        for each in self.unreadable:
            yield (
                f"the stored result {_text(each.result)} of {each.name} cannot be read: {each.error}. Let its type "
                "read the old result, too"
            )
        if self.failure is not None and not self.unreadable and not self.same_end:
            yield f"the code fails: {self.failure}"
        if self.same_end is False and self.history.status == "succeeded" and self.failure is None:
            assert self.end is not None  # noqa: S101 - same_end has looked
            yield f"it ended with {_text(self.history.result)}, and now comes to {_end_text(self.end)}"
        if self.changed is None and not self.unreadable and self.failure is None:
            yield from self._left_over()

    def _left_over(self) -> Iterator[str]:
        left = [step for step in self.unused if step.kind in EFFECTS]
        if not left:
            return
        names = ", ".join(f"{step.number} {step.name}" for step in left)
        if not self.next:
            removed = ", ".join(sorted({repr(step.name) for step in left}))
            yield (
                f"the code ends without asking for the stored steps {names}. If it is not to call them any more, say "
                f"so: removed=[{removed}]"
            )
            return
        asked = ", ".join(f"{step.name} {_text(step.arguments)}" for step in self.next)
        yield (
            f"the code asks for {asked}, and has not asked for the stored steps {names}. If a step was added before "
            f'them, say what it returns: new={{"{self.next[0].name}": …}}. If they are not called any more: '
            "removed=[…]. If one has another name now, it would run again: keep the old name, or ask "
            'ctx.version("…")'
        )


def _text(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


_SHOWN = 500
"""Characters of arguments and results that a text shows."""


def _end_text(end: RunEnd) -> str:
    return _text(end.result) if end.status == "succeeded" else f"{end.status}, {end.reason}: {end.error}"
