"""Limits and uniqueness under 8 worker processes: never over the limit, never idle while allowed work waits."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import pytest

from tests.support import limited
from tests.support.crew import until
from tests.support.limited import Span, events, overlap, spans
from tests.support.world import SOMEBODY, World
from todoku.core.limit import Limit

PROCESSES = 8
SPAWN = multiprocessing.get_context("spawn")
SECONDS = 0.1
TWO = Limit(concurrency=2)


@pytest.fixture
def notes(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the processes write down what they do; their database is the world's."""
    settings = {
        limited.URL: url, limited.NOTES: str(tmp_path), "TODOKU_CONCURRENCY": "4", "TODOKU_LEASE_SEC": "10",
        "TODOKU_RECLAIM_INTERVAL_SEC": "0.5",
    }  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    return tmp_path


@contextmanager
def eight(target: Any, *arguments: Any) -> Iterator[list[SpawnProcess]]:
    """Processes that begin together; who still runs at the end is ended."""
    together = SPAWN.Barrier(PROCESSES)
    processes = [SPAWN.Process(target=target, args=(together, *arguments), daemon=True) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.join(120)


def held(world: World, notes: Path) -> dict[str, list[Span]]:
    """From when to when each attempt had its place: one that was killed, until its lease was ended."""
    freed: dict[str, list[float]] = defaultdict(list)
    ended = "extract(epoch from a.ended_at)::float8" if world.backend == "postgres" else "a.ended_at / 1e6"
    for id, at in world.sql(
        f"select m.id, {ended} from todoku_attempt a join todoku_history h on h.delivery_id = a.delivery_id"
        " join todoku_message m on m.seq = h.message_seq where a.reason = 'WORKER_LOST'"
    ):
        freed[str(id)].append(at)
    found, cut_off = spans(notes)
    for delivery, what, began in cut_off:
        found[what].append((began, min(at for at in freed[delivery] if at > began)))
    return found


def call(world: World, job: str, number: int, **options: Any) -> None:
    """Store calls of one of the jobs, as its own process would."""
    world.publish(number, topic=job, to=(job,), payload=lambda _: {"seconds": SECONDS}, **options)


def one_that_holds(notes: Path, what: str) -> int:
    """A process that runs such an attempt now."""
    open_ones: set[int] = set()

    def look() -> set[int]:
        for event in events(notes):
            if event["what"] == what:
                (open_ones.add if event["event"] == "began" else open_ones.discard)(event["pid"])
        return open_ones

    until(look, seconds=120, what=f"an attempt of {what}")
    return min(open_ones)


@pytest.mark.slow
def test_eight_processes_reach_every_limit_exactly_and_one_that_is_killed_frees_its_places_with_its_lease(
    world: World, notes: Path
) -> None:
    """Two of each key and three of the queue at any time; other keys go on whatever a dead worker still holds."""
    world.store.limits.set("narrow", SOMEBODY, of="queue", concurrency=3, rate=None)
    with eight(limited.work):
        call(world, "keyed", 30, key="hot", queue="default", per_key=TWO)
        for key in range(5):
            call(world, "keyed", 6, key=f"cool {key}", queue="default", per_key=TWO)
        call(world, "narrow", 30)
        os.kill(one_that_holds(notes, "key hot"), signal.SIGKILL)
        until(lambda: len(world.history()) == 90, seconds=180, what="everything")
    found = held(world, notes)
    assert overlap(found["key hot"]) == 2
    assert overlap(found["queue narrow"]) == 3
    assert {overlap(some) for what, some in found.items() if "cool" in what} <= {1, 2}
    assert len({event["pid"] for event in events(notes)}) > 2, "they were at it together"
    assert world.deliveries() == []


@pytest.mark.slow
def test_eight_processes_that_enqueue_the_same_calls_store_each_once(world: World, notes: Path) -> None:
    """I5: by what is called, for a while; and by an idempotency key."""
    number = 20
    with eight(limited.enqueue_the_same, number) as processes:
        for process in processes:
            process.join(120)
        assert [process.exitcode for process in processes] == [0] * PROCESSES
    stored = world.sql("select topic, count(*) from todoku_message group by topic order by topic")
    assert stored == [("narrow", number), ("unique", number)]
    assert len(world.deliveries()) == 2 * number
