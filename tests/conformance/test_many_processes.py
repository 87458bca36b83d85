"""Real processes on one database: nobody shares a row, and a killed one takes nothing with it (I1, I3)."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from uuid import UUID

import pytest

from tests.support.world import Backend, World
from todoku.core.message import Claimed
from todoku.engine.claim import ClaimCursor

PROCESSES = 8
PATIENCE = 60.0
SPAWN = multiprocessing.get_context("spawn")


@contextmanager
def opened(backend: Backend, url: str) -> Iterator[World]:
    """The database as a process of its own sees it."""
    world = World(backend, url)
    try:
        yield world
    finally:
        world.close()


def joined(processes: list[SpawnProcess]) -> None:
    """All of them ended well."""
    for process in processes:
        process.join(PATIENCE)
    assert [process.exitcode for process in processes] == [0] * len(processes)


def ids_of(world: World) -> set[int]:
    return {id for (id,) in world.sql("select id from todoku_delivery")}


# ------------------------------------------------------------------------------------------- nobody shares a row


def claim_until_empty(backend: Backend, url: str, together: Barrier, note: Path) -> None:
    """One process: claims and settles until nothing waits, and writes down what it got."""
    with opened(backend, url) as world:
        claims = ClaimCursor(world.store, world.worker(lease=PATIENCE), ["warehouse"], monotonic=time.monotonic)
        together.wait(PATIENCE)
        taken: list[int] = []
        while found := claims.claim(250):
            taken += [claim.id for claim in found]
            assert world.settle(found).lost == ()
        note.write_text(json.dumps(taken))


@pytest.mark.slow
def test_eight_processes_claiming_twenty_thousand_rows_never_share_one(
    world: World, backend: Backend, url: str, tmp_path: Path
) -> None:
    """I3, I1: each row is one process's, each is settled once, and none is left."""
    for _ in range(4):
        world.publish(5_000)
    published = ids_of(world)
    together = SPAWN.Barrier(PROCESSES)
    notes = [tmp_path / f"{number}.json" for number in range(PROCESSES)]
    processes = [
        SPAWN.Process(target=claim_until_empty, args=(backend, url, together, note), daemon=True) for note in notes
    ]
    for process in processes:
        process.start()
    joined(processes)

    taken = [json.loads(note.read_text()) for note in notes]
    everything = [id for ids in taken for id in ids]
    assert len(published) == 20_000
    assert len(everything) == len(set(everything)) == len(published)
    assert set(everything) == published
    assert sum(bool(ids) for ids in taken) > 1, "they were at it together"
    assert sorted(done.id for done in world.history()) == sorted(published)
    assert {(done.attempts, done.epoch) for done in world.history()} == {(1, 1)}
    assert ids_of(world) == set()


# --------------------------------------------------------------------------------------------- one is killed


class Laborer:
    """A process that renews its lease, reclaims what others left, and takes a new id when its lease ended."""

    def __init__(self, world: World, lease: float) -> None:
        self._world = world
        self._lease = lease
        self._begin()

    def _begin(self) -> None:
        self.worker: UUID = self._world.worker(lease=self._lease)
        self._claims = ClaimCursor(self._world.store, self.worker, ["warehouse"], monotonic=time.monotonic)

    def claim(self) -> list[Claimed]:
        if not self._world.store.leases.renew(self.worker, lease=self._lease):
            self._begin()
        return self._claims.claim(50) or self._claims.claim_suspect()

    def run(self) -> None:
        """Until nothing waits and nothing is in flight, whoever had it."""
        while True:
            if found := self.claim():
                self._world.settle(found)
            elif self._world.store.statistics.counts().rows:
                self._world.store.leases.reclaim(max_lost=100)  # a busy machine may end the lease of somebody alive
            else:
                return


def work_until_done(backend: Backend, url: str, holding: Event) -> None:
    """One process that survives: it begins when the one to be killed holds its rows."""
    with opened(backend, url) as world:
        assert holding.wait(PATIENCE)
        Laborer(world, lease=1.0).run()


def hold_rows(backend: Backend, url: str, holding: Event, note: Path) -> None:
    """One process that claims, and gets no further: it is killed."""
    with opened(backend, url) as world:
        laborer = Laborer(world, lease=1.0)
        while not (found := laborer.claim()):  # its lease may have ended before it came to that
            pass
        note.write_text(json.dumps([claim.id for claim in found]))
        holding.set()
        time.sleep(PATIENCE)


@pytest.mark.slow
def test_everything_still_succeeds_when_one_of_eight_processes_is_killed_at_work(
    world: World, backend: Backend, url: str, tmp_path: Path
) -> None:
    """I1, H6: kill -9; its lease runs out, the others free what it held, and run it, one by one."""
    world.publish(2_000)
    published = ids_of(world)
    holding, note = SPAWN.Event(), tmp_path / "held.json"
    victim = SPAWN.Process(target=hold_rows, args=(backend, url, holding, note), daemon=True)
    others = [
        SPAWN.Process(target=work_until_done, args=(backend, url, holding), daemon=True) for _ in range(PROCESSES - 1)
    ]
    for process in (victim, *others):
        process.start()
    assert holding.wait(PATIENCE)
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    victim.join(PATIENCE)
    assert victim.exitcode == -signal.SIGKILL
    joined(others)

    held = set(json.loads(note.read_text()))
    history = {done.id: done for done in world.history()}
    assert len(held) == 50
    assert len(world.history()) == len(history) == 2_000
    assert set(history) == published
    assert {history[id].epoch for id in held} != {1}, "they had another owner before"
    assert {id for (id,) in world.sql("select delivery_id from todoku_attempt where reason = 'WORKER_LOST'")} >= held
    assert ids_of(world) == set()
    assert world.store.statistics.counts().of("aborted") == 0
