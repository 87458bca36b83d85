"""I10 with real processes: workers of the engine are killed (kill -9) while publishers commit out of order."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import todoku
from tests.crash.laning import fate, lane_app
from tests.crash.run import Run
from tests.support.ordering import Commits, Outcome, Sent, order_problems
from tests.support.pack import Member, until
from tests.support.receiver import Began, Ended, Note
from tests.support.world import World

pytestmark = [pytest.mark.crash, pytest.mark.slow]

KILLS = int(os.environ.get("TODOKU_TEST_LANE_KILLS", "6"))
PUBLISHERS, WORKERS, KEYS = 4, 3, 5
FATES = {"done", "retried", "snoozed", "skipped"}


class Publishers:
    """Threads with a connection each, whose transactions commit late, or not at all."""

    def __init__(self, world: World) -> None:
        self.commits = Commits()
        self._world = world
        self._enough = threading.Event()
        self._pool = ThreadPoolExecutor(PUBLISHERS)
        self._publishing = [self._pool.submit(self._publish, seed) for seed in range(PUBLISHERS)]

    def stop(self) -> None:
        """Raises what any of them raised."""
        self._enough.set()
        for one in self._publishing:
            one.result()
        self._pool.shutdown()

    def _publish(self, seed: int) -> None:
        chance = random.Random(seed)
        box = lane_app(self._world.url)
        connection = self._world.connect()
        number = 0
        while not self._enough.is_set():
            keys = chance.sample(range(KEYS), chance.randint(1, 2))
            number += 1
            self._transact(box, connection, [(str(key), f"{key}.{seed}.{number}") for key in keys], chance)
            self._enough.wait(chance.uniform(0, 0.03))
        connection.close()
        box.close()

    def _transact(self, box: todoku.App, connection: Any, rows: list[tuple[str, str]], chance: random.Random) -> None:
        if self._world.backend == "sqlite":
            connection.execute("begin immediate")
        box.enqueue_many([box.jobs["laned"].using(key=key).call(name) for key, name in rows], tx=connection)
        time.sleep(chance.uniform(0, 0.01))  # a caller's own work, while others want the same keys
        if chance.random() < 0.2:
            connection.rollback()
        else:
            self.commits.add(rows)
            connection.commit()


def sent(notes: list[Note]) -> list[Sent]:
    """What arrived, in the order in which it began, and what came of it."""
    ended = {(note.pid, note.call): note.outcome for note in notes if isinstance(note, Ended)}
    told: dict[str | None, Outcome] = {"done": "done", "Abort": "skipped", None: "died"}
    began = sorted((note for note in notes if isinstance(note, Began)), key=lambda note: note.at)
    return [Sent(note.destination, note.message, told.get(ended.get((note.pid, note.call)), "again")) for note in began]


def test_lanes_keep_order_when_workers_are_killed_and_publishers_commit_late(
    make_run: Callable[..., Run], world: World
) -> None:
    """I10: retries, snoozes and skipped dead letters on top; nothing overtakes, nothing is missing.

    What a killed worker had sent and not settled is sent again (I13), also if it had gone on to the next one.
    """
    run = make_run()
    pack = [start(run) for _ in range(WORKERS)]
    publishers = Publishers(world)
    try:
        for _ in range(KILLS):
            place = run.chance.randrange(WORKERS)
            run.until_begun(pack[place], run.chance.randrange(1, 10))
            run.pack.kill(pack[place])
            run.bury(pack[place])
            pack[place] = start(run)
        until(lambda: {fate(name) for name in publishers.commits.names()} == FATES, "some of each fate to be committed")
    finally:
        publishers.stop()
    run.until_finished()
    run.pack.drain(*run.pack.living)
    notes = run.notes.read()
    assert order_problems(publishers.commits.by_key, sent(notes), in_the_hands_of_the_dead(run, notes)) == []
    names = publishers.commits.names()
    assert {fate(name) for name in names} == FATES, "all of it happened"
    assert len(world.history()) == sum(fate(name) != "skipped" for name in names), "each succeeded once"
    assert run.pack.kills == KILLS


def in_the_hands_of_the_dead(run: Run, notes: list[Note]) -> set[str]:
    """The messages of which an attempt began in a process that was killed."""
    killed = {fault.pid for fault in run.pack.faults if fault.kind == "kill"}
    return {note.message for note in notes if isinstance(note, Began) and note.pid in killed}


def start(run: Run) -> Member:
    return run.pack.start("tests.crash.laning:worker")
