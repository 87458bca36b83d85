"""Workers of workflows are killed: every effect in the database once, nothing after its result, nothing stuck.

`make flow-kills RUNS=1000 KILLS=300` is the same test at length.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

import todoku
from tests.crash.flow_checker import flow_problems
from tests.crash.flow_shapes import WAITS, places, shape_of
from tests.crash.flowing import EFFECTS, flow_app, start
from tests.crash.run import Run
from tests.support.pack import Member, until
from tests.support.receiver import Acknowledged
from tests.support.world import World

pytestmark = [pytest.mark.crash, pytest.mark.slow]

RUNS = int(os.environ.get("TODOKU_TEST_FLOWS", "100"))
KILLS = int(os.environ.get("TODOKU_TEST_FLOW_KILLS", "15"))
SEED = int(os.environ.get("TODOKU_TEST_SEED", "47"))
WORKERS = 2
COLUMNS = "id, destination, status, epoch, attempts, reason, error"
ARMS = ("step.before_commit", "step.after_commit", "transact.before_commit", "transact.after_commit",
        "settle.before_commit", "settle.after_commit", "heed.after_commit", "claim.after_commit")  # fmt: skip


class Flows:
    """The runs of a test: started in portions, with the signals that they wait for."""

    def __init__(self, run: Run, home: Path) -> None:
        self._run = run
        self._marks = home / "marks"
        self._marks.mkdir()
        self._marks.chmod(0o777)
        run.world.sql(EFFECTS)
        self.box: todoku.App = flow_app(run.world.url)
        self.ids: dict[int, UUID] = {}
        self._late: list[tuple[UUID, str]] = []

    def start(self, number: int) -> None:
        """Start so many runs. Signals that are late for the runs of the last portion are sent now."""
        late, self._late = self._late, []
        for _ in range(number):
            seed = SEED * 1_000_000 + len(self.ids)
            id = self.ids[seed] = start(self.box, seed)
            for place, op in places(shape_of(seed).ops):
                if op.kind == "late":
                    self._late.append((id, place))
                elif op.kind in WAITS:
                    self._send(id, place, place)
                    if op.kind == "double":
                        self._send(id, place, "a second one, which no wait takes")
        for id, place in late:
            self._send(id, place, place)

    def _send(self, id: UUID, place: str, payload: str) -> None:
        self.box.signal(id, place, payload, tx=None)

    def worker(self) -> Member:
        """A worker; every second one dies at a failpoint, if nobody kills it before."""
        chance, arm = self._run.chance, {}
        if chance.random() < 0.5:
            arm = {"TODOKU_TEST_ARM": f"{chance.choice(ARMS)}=kill@{chance.randint(1, 12)}"}
        return self._run.pack.start("tests.crash.flowing:worker", TODOKU_TEST_MARKS=str(self._marks), **arm)


def test_runs_of_every_shape_come_to_their_end_when_workers_are_killed(
    make_run: Callable[..., Run], world: World, tmp_path: Path
) -> None:
    """R2 to R5, R9 to R11, I6: what is done stays done, once; what gives up is undone in reverse."""
    began = time.monotonic()
    run = make_run()
    run.chance.seed(SEED)
    flows = Flows(run, tmp_path)
    pack = [flows.worker() for _ in range(WORKERS)]
    portion = -(-RUNS // (KILLS + 1))
    for _ in range(KILLS):
        flows.start(min(portion, RUNS - len(flows.ids)))
        victim = until(lambda: at_work(run, pack, run.chance.randint(1, 4)), "a worker at work")
        time.sleep(run.chance.uniform(0, 0.02))
        end(run, victim)
        pack[pack.index(victim)] = flows.worker()
    flows.start(RUNS - len(flows.ids))
    flows.start(0)
    until_finished(run, flows, pack)
    notes = run.notes.read()
    flows.box.close()
    if problems := [*flow_problems(world, notes, flows.ids), *run._broken()]:
        pytest.fail("\n".join([*problems, "what was given up:", *given_up(run)]))
    assert (len(flows.ids), run.pack.kills >= KILLS) == (RUNS, True)
    stored = sum(isinstance(note, Acknowledged) for note in notes)
    print(
        f"\n{world.backend}: seed {SEED}, {RUNS} runs, {run.pack.kills} kills, {run.begun()} calls of steps, "
        f"{stored} returns, {time.monotonic() - began:.0f} s"
    )


def at_work(run: Run, pack: list[Member], number: int) -> Member | None:
    """A worker in which so many steps have begun, or one that has died at a failpoint."""
    living = set(run.pack.living)
    for worker in pack:
        if worker not in living or run.begun(worker.pid) >= number:
            return worker
    return None


def end(run: Run, victim: Member) -> None:
    """Kill it, unless it has died at its failpoint; its supervisor ends its lease."""
    run.pack.kill_if_alive(victim)
    run.bury(victim)


def until_finished(run: Run, flows: Flows, pack: list[Member]) -> None:
    """Come back when every run has ended, and all workers have left; those that die meanwhile are replaced.

    On a slow machine a worker may not get empty for a suspect within ten seconds, and then tries again a minute later.
    """
    deadline = time.monotonic() + 180 + RUNS / 10
    while run.unfinished() != 0:  # None: the database did not say
        for worker in pack:
            if worker not in run.pack.living:
                end(run, worker)
                pack[pack.index(worker)] = flows.worker()
        if time.monotonic() > deadline:
            pytest.fail("\n".join(["these runs do not end:", *stuck(run, flows)]))
        time.sleep(0.05)
    for worker in run.pack.living:
        end(run, worker)


def stuck(run: Run, flows: Flows) -> list[str]:
    """The runs that do not end: their shapes and their steps."""
    told = []
    for seed, id in flows.ids.items():
        standing = run.world.store.runs.standing(id)
        if standing is not None and standing.status not in (None, "aborted"):
            steps = [
                (row.key, row.kind, row.state, row.wait) for row in run.world.store.runs.steps(standing.message_seq)
            ]
            told.append(f"{standing} {shape_of(seed)} {steps}")
    waiting = run.world.sql(
        f"select {COLUMNS}, lost, next_run_at, claimed_at, updated_at from todoku_delivery where status <> 'aborted'"
    )
    return [*told, *map(str, waiting), *map(str, run.world.sql("select * from todoku_worker"))]


def given_up(run: Run) -> list[str]:
    """What has become a dead letter otherwise than planned, such as the undo of a run."""
    planned = "('GIVEN_UP', 'PLANNED')"
    return [str(row) for row in run.world.sql(f"select {COLUMNS} from todoku_delivery where reason not in {planned}")]
