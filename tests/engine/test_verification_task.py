"""One verification at a time, with its progress; the result is kept."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tests.support.crew import until
from tests.support.world import World
from todoku.core.errors import DatabaseBusy, InvalidAct
from todoku.engine.diagnostics.verification import CHECKS, Verdict
from todoku.engine.diagnostics.verification_task import VerificationTask


def test_a_second_verification_is_refused_until_the_first_has_ended(world: World) -> None:
    go = threading.Event()

    def check(*_: object, progress: Callable[[int], None], **__: object) -> tuple[Verdict, ...]:
        progress(3)
        go.wait(60)
        return tuple(Verdict(one, ()) for one in CHECKS)

    task = VerificationTask(check=check)
    assert task.report.state == "never"
    task.start(world.store, world.settings(), by="ada")
    until(lambda: task.report.checked == 3, what="progress")
    with pytest.raises(InvalidAct, match="runs already"):
        task.start(world.store, world.settings(), by="bob")
    assert (task.report.state, task.report.by) == ("running", "ada")
    go.set()
    ended = task.wait(60)
    assert (ended.state, ended.checked, ended.by) == ("held", len(CHECKS), "ada")
    assert task.start(world.store, world.settings(), by="bob").by == "bob"
    assert task.wait(60).state == "held"


@pytest.mark.parametrize("error", [DatabaseBusy("locked", hint="wait"), RuntimeError("a bug")])
def test_a_verification_that_cannot_finish_says_so(world: World, error: Exception) -> None:
    def check(*_: object, **__: object) -> tuple[Verdict, ...]:
        raise error

    task = VerificationTask(check=check)
    task.start(world.store, world.settings(), by="ada")
    ended = task.wait(60)
    assert (ended.state, ended.verdicts) == ("failed", ())
    assert ended.error
    assert ended.ended_at is not None


def test_the_real_one_finds_that_everything_holds(world: World) -> None:
    world.publish(3)
    task = VerificationTask()
    task.start(world.store, world.settings(), by="ada")
    ended = task.wait(120)
    assert (ended.state, len(ended.verdicts)) == ("held", len(CHECKS))
