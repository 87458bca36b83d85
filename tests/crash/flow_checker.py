"""What must hold of runs of random shape whose workers were killed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from uuid import UUID

from tests.crash.flow_shapes import CALLED, UNDONE, places, shape_of, value
from tests.crash.flowing import UNDO
from tests.support.receiver import Acknowledged, Began, Note
from tests.support.world import World
from todoku.core.status import Status


def flow_problems(world: World, notes: list[Note], runs: Mapping[int, UUID]) -> list[str]:
    """Everything that is not as it must be, in words."""
    effects = Counter(world.sql("select run, place from flow_effect"))
    began = Counter((note.message, note.destination) for note in notes if isinstance(note, Began))
    found = [*_repeated(notes)]
    for seed, id in runs.items():
        found += _ended(world, seed, id)
        shape = shape_of(seed)
        for place, op in places(shape.ops):
            if op.kind in CALLED and not began[str(seed), place]:
                found.append(f"run {seed}: {op.kind} at {place} was never called")
            times = effects.pop((seed, place), 0)
            if times != (op.kind == "booked"):
                found.append(f"run {seed}: the effect of {op.kind} at {place} happened {times} times (I6)")
        found += _undone(world, seed, id, notes)
    return found + [f"an effect that no run has: {effect}" for effect in effects]


def _repeated(notes: list[Note]) -> Iterator[str]:
    """Steps that were called after the run had gone on with their result."""
    stored: set[tuple[str, str]] = set()
    for note in notes:
        if isinstance(note, Acknowledged):
            stored.add((note.message, note.destinations[0]))
        elif isinstance(note, Began) and (note.message, note.destination) in stored:
            yield f"run {note.message}: {note.destination} was called again after its result was stored"


def _ended(world: World, seed: int, id: UUID) -> Iterator[str]:
    shape, standing = shape_of(seed), world.store.deliveries.standing(id, ("flow", "plain"))
    assert standing is not None
    if shape.gives_up:
        if (standing.status, standing.reason) != (Status.ABORTED, "GIVEN_UP"):
            yield f"run {seed} is {standing.status} {standing.reason} {standing.error} and should have given up"
        return
    expected = [value(op, place) for place, op in places(shape.ops)]
    if standing.status != Status.SUCCEEDED:
        yield f"run {seed} is {standing.status} {standing.reason} {standing.error}"
    elif json.loads(standing.result or "null") != expected:
        yield f"run {seed} came to {standing.result} instead of {expected}"


def _undone(world: World, seed: int, id: UUID, notes: list[Note]) -> Iterator[str]:
    """The steps of a run that gave up, each undone at least once, the last one first (R4, R5)."""
    shape = shape_of(seed)
    called = [
        note.destination.removeprefix(UNDO)
        for note in notes
        if isinstance(note, Began) and note.message == str(seed) and note.destination.startswith(UNDO)
    ]
    run = world.store.runs.standing(id)
    assert run is not None
    rows = [row for row in world.store.runs.steps(run.message_seq) if row.undo is not None]
    if left := [row.name for row in rows if row.state != "undone"]:
        yield f"run {seed} gave up, and its steps {left} were not undone"
    expected = {place for place, op in places(shape.ops) if shape.gives_up and op.kind in UNDONE}
    order = [_place(row.undo) for row in rows]
    if list(dict.fromkeys(called)) != order[::-1] or set(called) != expected:
        yield f"run {seed} has steps {order}, which were undone as {called}"


def _place(undo: str | None) -> str:
    return str(json.loads(undo or "")["arguments"][1])
