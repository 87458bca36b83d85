"""Handlers in processes of their own: killed at their timeout, and their death is nobody else's."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from tests.support.apart import box
from tests.support.crew import Crew
from tests.support.world import World
from todoku.core.message import Leg
from todoku.engine.publish import MessageOptions, draft


def enqueue(world: World, name: str, **arguments: object) -> None:
    job = box.jobs[name]
    route = job.route
    made = draft(_new_id(), name, arguments, MessageOptions(), [route], max_payload_bytes=1 << 20)
    assert isinstance(made.legs[0], Leg)
    world.store.run(world.steps([made]))


def _new_id():  # type: ignore[no-untyped-def]
    from todoku.app import new_id

    return new_id()


def crew_of(world: World) -> Crew:
    crew = Crew(world)
    crew.registry = box.registry
    return crew


def test_a_handler_runs_in_another_process_and_its_result_comes_back(world: World) -> None:
    for number in range(4):
        enqueue(world, "square", number=number)
    assert crew_of(world).drain(concurrency=2) == 4
    results = [json.loads(world.store.deliveries.result(row.id) or "null") for row in world.history()]
    assert sorted(result["square"] for result in results) == [0, 1, 4, 9]
    assert os.getpid() not in {result["pid"] for result in results}
    assert len({result["pid"] for result in results}) <= 2, "a process serves many attempts"


def test_at_its_timeout_the_process_is_killed(world: World, tmp_path: Path) -> None:
    """DESIGN §4 Execute: in processes, killed at the timeout."""
    enqueue(world, "forever", mark=str(tmp_path / "mark"))
    crew_of(world).drain()
    (row,) = world.deliveries()
    assert (row.status, row.reason) == ("failed", "TIMEOUT")
    assert re.fullmatch(r"forever did not end within \S+ s", row.error or "")
    assert not (tmp_path / "mark").exists()


def test_a_process_that_dies_is_a_failed_attempt_and_the_next_one_has_a_new_process(world: World) -> None:
    enqueue(world, "die")
    enqueue(world, "square", number=3)
    crew_of(world).drain(concurrency=1)
    (row,) = world.deliveries()
    assert (row.status, row.reason) == ("failed", "HANDLER_DIED")
    assert len(world.history()) == 1


def test_an_exception_of_a_persons_own_comes_back_by_its_name(world: World) -> None:
    enqueue(world, "fail")
    crew_of(world).drain()
    (row,) = world.deliveries()
    assert (row.status, row.reason, row.error) == ("failed", "INTERNAL_ERROR", "Peculiar: 3")
