"""Breadth-first search over every reachable state: the first violation found is reached by a shortest trace."""

from __future__ import annotations

import gc
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.model.canonical import canonical
from tests.model.invariants import STATE_CHECKS, STEP_CHECKS, StateCheck, StepCheck
from tests.model.model import Model
from tests.model.protocol import successors
from tests.model.state import ABSENT, TERMINAL, Event, State

STRANDED = "liveness"


@dataclass(frozen=True)
class Violation:
    """A broken invariant, and the canonical states of a shortest way to it."""

    check: str
    text: str
    path: tuple[State, ...]


@dataclass
class Report:
    """What a search has seen: how many states and steps, the longest of the shortest ways, and which events."""

    states: int = 0
    steps: int = 0
    depth: int = 0
    seconds: float = 0.0  # of one core
    events: Counter[str] = field(default_factory=Counter)
    violation: Violation | None = None


class _Graph:
    """The states found so far, by number, with the way each was first reached and its undisturbed steps."""

    def __init__(self, initial: State) -> None:
        self.states: list[State] = [initial]
        self.number: dict[State, int] = {initial: 0}
        self.parent = array("l", [-1])
        self.depth = array("i", [0])
        self.first_step = array("l")  # where the undisturbed steps of a state begin in `steps`
        self.steps = array("l")

    def add(self, state: State, parent: int) -> tuple[int, bool]:
        """The number of a state, and whether it is new."""
        count = len(self.states)
        number = self.number.setdefault(state, count)
        if number != count:
            return number, False
        self.states.append(state)
        self.parent.append(parent)
        self.depth.append(self.depth[parent] + 1)
        return number, True

    def path(self, number: int) -> tuple[State, ...]:
        """From the initial state to this one."""
        states = []
        while number >= 0:
            states.append(self.states[number])
            number = self.parent[number]
        return tuple(reversed(states))


def search(
    model: Model,
    state_checks: Sequence[StateCheck] = STATE_CHECKS,
    step_checks: Sequence[StepCheck] = STEP_CHECKS,
    *,
    liveness: bool = True,
) -> Report:
    """Look at every reachable state and step; stop at the first that breaks a check."""
    began, report = time.process_time(), Report()
    graph = _Graph(canonical(model, model.initial()))
    collecting = gc.isenabled()
    gc.disable()  # millions of tuples, no cycles: collecting them is a third of the time
    try:
        report.violation = _explore(model, graph, state_checks, step_checks, report)
        if report.violation is None and liveness:
            report.violation = _stranded(graph)
    finally:
        if collecting:
            gc.enable()
    report.states, report.steps = len(graph.states), report.events.total()
    report.depth = max(graph.depth)
    report.seconds = time.process_time() - began
    return report


def look_for(breaks: str, model: Model) -> Report:
    """Search with one check only, so that the trace is the shortest to that violation."""
    return search(
        model,
        [check for check in STATE_CHECKS if check.__name__ == breaks],
        [check for check in STEP_CHECKS if check.__name__ == breaks],
        liveness=breaks == STRANDED,
    )


def _explore(
    model: Model,
    graph: _Graph,
    state_checks: Sequence[StateCheck],
    step_checks: Sequence[StepCheck],
    report: Report,
) -> Violation | None:
    number = 0
    while number < len(graph.states):
        before = graph.states[number]
        graph.first_step.append(len(graph.steps))
        for event, raw in successors(model, before):
            report.events[event.name] += 1
            for check in step_checks:
                text = check(model, before, event, raw)
                if text:
                    return Violation(check.__name__, text, (*graph.path(number), canonical(model, raw)))
            after, fresh = graph.add(canonical(model, raw), number)
            if before.budget is raw.budget:
                graph.steps.append(after)
            for look in state_checks if fresh else ():
                text = look(model, graph.states[after])
                if text:
                    return Violation(look.__name__, text, graph.path(after))
        number += 1
    return None


def _settled(state: State) -> bool:
    return all(row.status == ABSENT or row.status in TERMINAL for row in state.rows)


def _stranded(graph: _Graph) -> Violation | None:
    """I1 as liveness: from every state, with no further disturbance, every delivery can reach a terminal state.

    A step is undisturbed when it spends nothing of the budget. Swept backwards until nothing changes: a state is
    good when it is settled or one undisturbed step leads to a good one.
    """
    graph.first_step.append(len(graph.steps))
    good = bytearray(_settled(state) for state in graph.states)
    changed = True
    while changed:
        changed = False
        for number in range(len(good) - 1, -1, -1):
            if not good[number]:
                ahead = graph.steps[graph.first_step[number] : graph.first_step[number + 1]]
                if any(good[step] for step in ahead):
                    good[number] = changed = True
    bad = good.find(0)
    if bad < 0:
        return None
    rows = ", ".join(row.status for row in graph.states[bad].rows)
    return Violation(STRANDED, f"nothing can finish this any more: {rows}", graph.path(bad))


def trace(model: Model, violation: Violation) -> Iterator[tuple[Event, State, State]]:
    """The steps of a violation with true names: epochs that only rise, workers that keep their places."""
    state = model.initial()
    for target in violation.path[1:]:
        event, after = next((event, raw) for event, raw in successors(model, state) if canonical(model, raw) == target)
        yield event, state, after
        state = after
