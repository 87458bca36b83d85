"""The search of a small model: every reachable state, nearest first, until one is wrong."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TypeVar

S = TypeVar("S", bound=Hashable)


@dataclass(frozen=True)
class Found:
    """How many states there are, and what is wrong in the nearest wrong one, with the shortest way there."""

    states: int
    wrong: str | None = None
    way: tuple[str, ...] = ()


def search(start: S, steps: Callable[[S], Iterable[tuple[str, S]]], wrong: Callable[[S], str | None]) -> Found:
    """Looks at every state that steps lead to. `wrong` names what is wrong in a state."""
    before: dict[S, tuple[S, str] | None] = {start: None}
    waiting = deque(before)
    while waiting:
        state = waiting.popleft()
        if (name := wrong(state)) is not None:
            return Found(len(before), name, _way(before, state))
        for step, after in steps(state):
            if after not in before:
                before[after] = (state, step)
                waiting.append(after)
    return Found(len(before))


def _way(before: dict[S, tuple[S, str] | None], state: S) -> tuple[str, ...]:
    way: list[str] = []
    while (came := before[state]) is not None:
        state = came[0]
        way.append(came[1])
    return tuple(reversed(way))
