"""Dead letters of workflow runs over HTTP: whoever restarts or resumes one takes it, in the same commit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

import todoku
from tests.conformance.test_http_runs import Runs
from tests.support.world import SOMEBODY, World, aborted
from todoku.core.errors import DatabaseUnavailable
from todoku.engine.http import dead_letters
from todoku.engine.http.dead_letters import Selection
from todoku.engine.http.run_dead_letters import UNCHANGED, OptionChanges, ResumedRun, RunDeadLetters, RunSelection
from todoku.store.failpoint import armed, lose
from todoku.store.http_runs import RunFilter

ROOT = Path(todoku.__file__).parents[1]
RETRIES = OptionChanges(retries=1)


class Letters:
    """Dead letters of runs on a test's database."""

    def __init__(self, world: World) -> None:
        self.world, self.runs = world, Runs(world)
        self.outbox = self.runs.http.outbox
        self.dead = RunDeadLetters(self.outbox)

    def fail(self, run: str = "wfr_1") -> str:
        """Starts a run, of which the first call fails. Returns the id of its dead letter."""
        self.runs.start(run)
        return self.die()

    def die(self) -> str:
        """Lets the call that is due fail. Returns the id of its dead letter."""
        (claim,) = self.runs.claim()
        self.world.settle([claim], aborted())
        (letter,) = [each for each in self.ids() if each.startswith(f"{claim.id}-")]
        return letter

    def ids(self) -> list[str]:
        return [each.id for each in self.dead.find(RunSelection()).items]

    def restart(self, *ids: str) -> tuple[ResumedRun, ...]:
        return self.dead.restart(chosen(*ids), SOMEBODY).runs

    def resume(self, *ids: str, changes: OptionChanges = UNCHANGED) -> tuple[ResumedRun, ...]:
        return self.dead.resume(chosen(*ids), SOMEBODY, changes=changes).runs

    def states(self) -> list[str]:
        """The states of all runs, the oldest first."""
        return [row.state for row in reversed(self.world.store.http_runs.find(RunFilter()))]


def chosen(*ids: str) -> RunSelection:
    return RunSelection(chosen=Selection(dead_ids=ids))


@pytest.fixture
def letters(world: World) -> Letters:
    return Letters(world)


@pytest.fixture
def pair(letters: Letters) -> Iterator[tuple[Letters, Letters]]:
    """Two programs on one database."""
    other = Letters(World(letters.world.backend, letters.world.url))
    yield letters, other
    other.world.close()


# ---------------------------------------------------------------------------------------------- one commit


def test_a_restart_takes_the_dead_letter_ends_its_run_and_begins_another(letters: Letters) -> None:
    dead = letters.fail()
    (new,) = letters.restart(dead)
    assert letters.states() == ["canceled", "started"]
    assert letters.ids() == []
    (call,) = [id for id in letters.runs.waiting() if id is not None]
    assert letters.runs.body(call, new.id) == [{"body": "begin"}]
    assert letters.restart(dead) == ()
    acts = letters.world.sql("select action from todoku_audit")
    assert [action for (action,) in acts] == ["purge", "purge"], "of its message and of its delivery"


@pytest.mark.parametrize("act", ["restart", "resume"])
def test_what_takes_the_place_of_a_dead_letter_and_its_removal_are_stored_both_or_neither(
    letters: Letters, act: str
) -> None:
    dead = letters.fail()

    def do() -> tuple[ResumedRun, ...]:
        return letters.restart(dead) if act == "restart" else letters.resume(dead, changes=RETRIES)

    with armed("http_run.before_commit", lose), pytest.raises(DatabaseUnavailable):
        do()
    assert (letters.ids(), letters.states(), letters.runs.waiting()) == ([dead], ["failed"], [])
    with armed("http_run.after_commit", lose), pytest.raises(DatabaseUnavailable):
        do()
    assert (letters.ids(), len(letters.runs.waiting())) == ([], 1)
    assert do() == ()
    assert len(letters.runs.waiting()) == 1


PROGRAM = """
import os, sys
import todoku
from todoku.engine.http.dead_letters import Selection
from todoku.engine.http.run_dead_letters import OptionChanges, RunDeadLetters, RunSelection
from todoku.store.audit import Signed
from todoku.testing.armed import arm_from

url, act, id = sys.argv[1:]
box = todoku.App(url)
letters = RunDeadLetters(box.outbox)
arm_from(os.environ)
changes = OptionChanges(retries=1) if act == "resume" else OptionChanges()
getattr(letters, act)(RunSelection(chosen=Selection(dead_ids=(id,))), Signed("a program", "a test"), changes=changes)
"""


@pytest.mark.crash
@pytest.mark.parametrize("act", ["restart", "resume"])
@pytest.mark.parametrize("side", ["before", "after"])
def test_a_program_killed_around_the_commit_neither_loses_nor_doubles_the_run(
    letters: Letters, url: str, act: str, side: str
) -> None:
    """I1, I3: the dead letter is there and nothing has begun, or it is gone and one call waits. Repeating is safe."""
    dead = letters.fail()
    killed = subprocess.run(
        [sys.executable, "-c", PROGRAM, url, act, dead],
        env={**os.environ, "TODOKU_FAILPOINTS": f"http_run.{side}_commit=kill", "PYTHONPATH": str(ROOT)},
        timeout=120, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert letters.ids() == ([dead] if side == "before" else [])
    again = letters.restart(dead) if act == "restart" else letters.resume(dead, changes=RETRIES)
    assert len(again) == (1 if side == "before" else 0)
    assert letters.ids() == []
    assert len(letters.runs.waiting()) == 1
    assert letters.states() == (["canceled", "started"] if act == "restart" else ["started"])
    assert letters.world.store.broken(history_ttl=1e6, ledger_ttl=1e6) == {}


# ------------------------------------------------------------------------------------------- several at once


@pytest.mark.parametrize("changes", [UNCHANGED, RETRIES])
@pytest.mark.parametrize("acts", [("restart", "restart"), ("restart", "resume"), ("resume", "resume")])
def test_of_two_that_want_the_same_dead_letter_one_gets_it(
    pair: tuple[Letters, Letters], acts: tuple[str, str], changes: OptionChanges
) -> None:
    """The other is answered as if the dead letter had been gone before."""
    for number in range(8):
        dead, ready = pair[0].fail(f"wfr_{number}"), Barrier(2)

        def do(which: int) -> int:
            found = pair[which].dead
            found.find(chosen(dead))  # noqa: B023 - runs at once
            ready.wait()  # noqa: B023
            act = found.restart if acts[which] == "restart" else found.resume
            return len(act(chosen(dead), SOMEBODY, changes=changes).runs)  # noqa: B023

        with ThreadPoolExecutor(2) as pool:
            assert sorted(pool.map(do, range(2))) == [0, 1]
        assert len(pair[0].runs.waiting()) == 1
        pair[0].world.settle(pair[0].runs.claim())


def test_a_restart_that_read_the_dead_letter_before_another_took_it_begins_nothing(
    pair: tuple[Letters, Letters], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moment between reading and taking, at its worst: all that the other does happens there."""
    mine, other = pair
    dead = mine.fail()
    page = mine.dead.find(chosen(dead))
    assert len(other.restart(dead)) == 1
    monkeypatch.setattr(RunDeadLetters, "find", lambda *_, **__: page)
    assert mine.restart(dead) == ()
    assert len(mine.runs.waiting()) == 1


@pytest.mark.parametrize("act", ["restart", "resume", "replay", "purge"])
def test_a_dead_letter_that_was_replayed_and_died_again_is_another_one(
    letters: Letters, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An act on the first, which was read before it was replayed, does nothing to the second."""
    first = letters.fail()
    page = letters.dead.find(chosen(first))
    assert len(letters.resume(first)) == 1
    second = letters.die()
    rows = [each.request.delivery for each in page.items]
    monkeypatch.setattr(RunDeadLetters, "find", lambda *_, **__: page)
    monkeypatch.setattr(dead_letters, "_by_ids", lambda *_: tuple(rows))
    if act == "purge":
        assert letters.dead.remove(chosen(first), SOMEBODY)[0] == 0
    else:
        changes = RETRIES if act == "resume" else UNCHANGED
        do = letters.dead.restart if act == "restart" else letters.dead.resume
        assert do(chosen(first), SOMEBODY, changes=changes).runs == ()
    monkeypatch.undo()
    assert (letters.ids(), letters.runs.waiting()) == ([second], [])


def test_several_dead_letters_of_a_run_restart_it_once(letters: Letters) -> None:
    letters.runs.start()
    letters.runs.step(1, "a")
    letters.world.settle(letters.runs.claim(), aborted())
    ids = letters.ids()
    assert len(ids) == 2
    assert len(letters.restart(*ids)) == 1
    assert (letters.ids(), letters.states()) == ([], ["canceled", "started"])


def test_a_resume_with_other_options_of_a_run_that_has_ended_leaves_the_dead_letter(letters: Letters) -> None:
    dead = letters.fail()
    letters.runs.acts.finish("wfr_1", b"1")
    assert letters.resume(dead, changes=RETRIES) == ()
    assert letters.ids() == [dead]
