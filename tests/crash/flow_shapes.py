"""Workflows of random shape: what a run of a seed does, and what must come of it, told by the seed alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

Kind = Literal[
    "outer", "threaded", "booked", "flaky", "doomed", "shaky", "sleep", "early", "late", "double", "children", "loop",
    "branches", "apart",
]  # fmt: skip
CALLED: frozenset[Kind] = frozenset({"outer", "threaded", "booked", "flaky", "doomed", "shaky", "apart"})
UNDONE: frozenset[Kind] = frozenset({"outer", "threaded", "booked"})
WAITS: frozenset[Kind] = frozenset({"early", "late", "double"})
_LEAVES: tuple[Kind, ...] = (
    "outer", "outer", "threaded", "booked", "booked", "flaky", "doomed", "shaky", "sleep", "sleep", "early", "late",
    "double", "children",
)  # fmt: skip


_APART = 0.02
"""How many leaves run in a process: a new one takes longer to start than most runs take."""


class Op(msgspec.Struct, frozen=True):
    """One thing that a run does. `number`: turns of a loop, children, or milliseconds of a sleep."""

    kind: Kind
    number: int = 0
    below: tuple[tuple[Op, ...], ...] = ()


class Shape(msgspec.Struct, frozen=True):
    """What a run does. `gives_up`: it aborts in the end, so that its steps are undone. `plain`: it is not async."""

    ops: tuple[Op, ...]
    gives_up: bool
    plain: bool


def shape_of(seed: int) -> Shape:
    """The shape of the run of this seed, in whichever process."""
    chance = random.Random(seed)
    return Shape(_ops(chance, 2), chance.random() < 0.25, chance.random() < 0.33)


def _ops(chance: random.Random, depth: int) -> tuple[Op, ...]:
    return tuple(_op(chance, depth) for _ in range(chance.randint(1, 4 if depth == 2 else 2)))


def _op(chance: random.Random, depth: int) -> Op:
    if depth and chance.random() < 0.3:
        if chance.random() < 0.5:
            return Op("loop", chance.randint(2, 3), (_ops(chance, depth - 1),))
        return Op("branches", 0, tuple(_ops(chance, depth - 1) for _ in range(chance.randint(2, 3))))
    if chance.random() < _APART:
        return Op("apart")
    return Op(chance.choice(_LEAVES), chance.randint(1, 60 if chance.random() < 0.3 else 3))


def places(ops: tuple[Op, ...], path: str = "") -> Iterator[tuple[str, Op]]:
    """Every leaf that the run comes to, each under the name of its place."""
    for place, op in enumerate(ops):
        here = f"{path}.{place}"
        match op.kind:
            case "loop":
                for turn in range(op.number):
                    yield from places(op.below[0], f"{here}.{turn}")
            case "branches":
                for branch, below in enumerate(op.below):
                    yield from places(below, f"{here}.{branch}")
            case _:
                yield here, op


def value(op: Op, place: str) -> Any:
    """What a leaf comes to, whatever happens to the workers."""
    match op.kind:
        case "doomed":
            return "failed"
        case "sleep":
            return "slept"
        case "children":
            return [child_value(number) for number in range(op.number % 4)]
        case _:
            return place


def child_value(number: int) -> str | int:
    """The third child of a run is given up."""
    return "given up" if number == 2 else number * number
