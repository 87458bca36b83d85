"""Steps in processes: killed when their time is over, recorded by the run (R10), and their death is nobody else's."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import todoku
from tests.flows.apart import Page, asynchronous, die, fail, is_running, render, sleep_for_ever
from tests.flows.running import working
from tests.flows.test_runs import settled, steps
from tests.support.pack import until
from todoku.testing import crash, lose_lease


def test_a_step_runs_in_another_process_and_the_run_records_its_result(box: todoku.App) -> None:
    """R10: arguments and result travel by the codecs of the step."""

    @box.workflow
    async def flow(ctx: todoku.Flow) -> list[int]:
        first = await ctx.step(render, Page(1, 0), run="process")
        second = await ctx.step(render, first, run="process")
        assert isinstance(second, Page)
        return [second.number, first.pid, second.pid]

    @box.workflow
    def plain(ctx: todoku.BlockingFlow) -> int:
        return ctx.step(render, Page(1, 0), run="process").pid

    run, other = flow.start(), plain.start()
    box.drain()
    number, *pids = run.result(timeout=0)
    assert number == 3
    assert os.getpid() not in {*pids, other.result(timeout=0)}


@pytest.mark.parametrize("run", ["thread", "process"])
def test_at_its_timeout_an_attempt_of_a_step_fails(box: todoku.App, tmp_path: Path, run: Any) -> None:
    """A process is killed; a thread cannot be, and is not waited for."""

    @box.workflow
    async def flow(ctx: todoku.Flow) -> str:
        try:
            await ctx.step(
                block if run == "thread" else sleep_for_ever, str(tmp_path), run=run, timeout=2, max_attempts=1
            )
        except todoku.StepFailed as error:
            return str(error)
        return "no error"

    started = flow.start()
    box.drain()
    name = "block" if run == "thread" else "sleep_for_ever"
    assert started.result(timeout=0) == f"{name} failed 1 times: TimeoutError: {name} did not end within 2 s"
    if run == "process":
        assert not is_running(int((tmp_path / "pid").read_text()))
        assert not (tmp_path / "woke").exists()


def block(marks: str) -> None:
    time.sleep(5)


@pytest.mark.parametrize("own", [True, False])
def test_a_process_that_is_killed_is_a_failed_attempt_and_no_lost_worker(
    box: todoku.App, tmp_path: Path, own: bool
) -> None:
    """Of the step if it has attempts of its own, else of the run."""
    options: Any = {"max_attempts": 3, "backoff": todoku.table(0)} if own else {}

    @box.workflow(max_attempts=3, backoff=todoku.table(0))
    async def flow(ctx: todoku.Flow) -> str:
        return await ctx.step(die, str(tmp_path), 2, run="process", **options)

    run = flow.start()
    box.drain()
    assert run.result(timeout=0) == "survived"
    assert len(list(tmp_path.iterdir())) == 3


def test_what_killed_a_process_is_said(box: todoku.App, tmp_path: Path) -> None:
    @box.workflow(max_attempts=1)
    def of_the_run(ctx: todoku.BlockingFlow) -> None:
        ctx.step(die, str(tmp_path), 99, run="process")

    @box.workflow
    def of_the_step(ctx: todoku.BlockingFlow) -> None:
        ctx.step(die, str(tmp_path), 99, run="process", max_attempts=1)

    run, other = of_the_run.start(), of_the_step.start()
    assert settled(box, run) == ("aborted", "HANDLER_DIED")
    assert str(run.error()) == "die: its process was killed by signal 9, Killed"
    assert "die failed 1 times: HANDLER_DIED: die: its process was killed by signal 9" in str(other.error())


def test_what_a_function_raises_in_a_process_is_raised_in_the_run(box: todoku.App) -> None:
    """Exceptions that cannot be sent keep their names and texts; an outcome stays one."""
    seen: list[str] = []

    @box.workflow(max_attempts=1)
    def flow(ctx: todoku.BlockingFlow) -> None:
        for how in ("value", "peculiar", "exit", "abort"):
            try:
                ctx.step(fail, how, run="process")
            except ValueError as error:
                seen.append(f"ValueError {error}")
            except todoku.Abort:
                raise
            except Exception as error:
                seen.append(f"{type(error).__name__} {error}")

    run = flow.start()
    assert settled(box, run) == ("aborted", "NO_PAPER")
    assert seen[:2] == ["ValueError a wrong value", "Peculiar 1 and 2"]
    assert "exited with code 3" in seen[2]


def test_a_run_that_is_cancelled_kills_the_process_of_its_step(box: todoku.App, tmp_path: Path) -> None:
    """R5, R8: it does not wait for the end of the step."""

    @box.workflow
    async def flow(ctx: todoku.Flow) -> None:
        await ctx.step(sleep_for_ever, str(tmp_path), run="process", max_attempts=5)

    run = flow.start()
    with working(box):
        pid = until(lambda: _pid(tmp_path), "the process to begin")
        assert run.cancel(by="ops", why="a test")
        until(lambda: run.status() == "aborted", "the run to end")
        until(lambda: not is_running(pid), "the process to be killed")
    assert (run.delivery().reason, steps(box, run)) == ("CANCELLED", {})


def test_a_branch_that_is_left_behind_loses_its_process(box: todoku.App, tmp_path: Path) -> None:
    """R2: the next attempt calls the step again, and may store it, so the process of the last one must not go on."""

    async def fail_beside_it() -> None:
        while not _pid(tmp_path):  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.01)
        raise ConnectionError("another branch")

    @box.workflow(max_attempts=1)
    async def flow(ctx: todoku.Flow) -> None:
        await asyncio.gather(ctx.step(sleep_for_ever, str(tmp_path), run="process"), ctx.step(fail_beside_it))

    run = flow.start()
    with working(box):
        pid = until(lambda: _pid(tmp_path), "the process to begin")
        until(lambda: run.status() == "aborted", "the run to end")
        until(lambda: not is_running(pid), "the process to be killed")
    assert not (tmp_path / "woke").exists()


@pytest.mark.settings(lease_sec="3")
def test_a_run_whose_lease_is_lost_kills_the_process_of_its_step(box: todoku.App, tmp_path: Path) -> None:
    """I3, R3"""

    @box.workflow
    async def flow(ctx: todoku.Flow) -> str:
        if ctx.claim.lost:
            return "another attempt"
        await ctx.step(sleep_for_ever, str(tmp_path), run="process")
        return "the first one"

    run = flow.start()
    with working(box):
        pid = until(lambda: _pid(tmp_path), "the process to begin")
        lose_lease(box)
        assert run.result(timeout=60) == "another attempt"
        until(lambda: not is_running(pid), "the process to be killed")


@pytest.mark.parametrize("at", ["step.before_commit", "step.after_commit"])
def test_a_worker_is_killed_when_its_process_has_the_result(box: todoku.App, tmp_path: Path, at: str) -> None:
    """R10: the worker records it, so it is called again only if it was not stored; the process ends with its worker."""

    @box.workflow
    async def flow(ctx: todoku.Flow) -> int:
        return (await ctx.step(render, Page(1, 0), str(tmp_path), run="process")).number

    run = flow.start()
    crash(box, at=at)
    lose_lease(box)
    box.drain()
    assert run.result(timeout=0) == 2
    rendered = [int(line) for line in (tmp_path / "rendered").read_text().split()]
    assert len(rendered) == (2 if at == "step.before_commit" else 1)
    until(lambda: not is_running(rendered[0]), "the process of the dead worker to end")


@pytest.mark.settings(concurrency="2")
def test_as_many_processes_work_at_once_as_the_worker_has_slots(box: todoku.App) -> None:
    """A process serves one step after the other."""

    @box.workflow
    async def flow(ctx: todoku.Flow) -> list[int]:
        pages = await asyncio.gather(*(ctx.step(render, Page(n, 0), run="process") for n in range(6)))
        return [page.pid for page in pages]

    run = flow.start()
    box.drain()
    assert len(set(run.result(timeout=0))) <= 2


# ------------------------------------------------------------------------------- while all processes work for others


@contextmanager
def occupied(box: todoku.App, tmp_path: Path) -> Iterator[tuple[todoku.Handle[None], list[int]]]:
    """A worker with two slots whose processes both work for one run, until that is cancelled or the block ends."""
    places = [tmp_path / "one", tmp_path / "two"]
    for place in places:
        place.mkdir()

    @box.workflow
    async def occupying(ctx: todoku.Flow) -> None:
        await asyncio.gather(*(ctx.step(sleep_for_ever, str(place), run="process") for place in places))

    run = occupying.start()
    with working(box):
        try:
            yield run, [until(lambda at=place: _pid(at), "both processes to begin") for place in places]
        finally:
            run.cancel(by="ops", why="a test")


@pytest.mark.settings(concurrency="2")
def test_a_run_that_is_cancelled_while_its_step_waits_for_a_process_ends_at_once(
    box: todoku.App, tmp_path: Path
) -> None:
    """R8: it does not wait for the steps of others; and its own is not called when their processes are free."""

    @box.workflow
    async def flow(ctx: todoku.Flow) -> None:
        await ctx.step(sleep_for_ever, str(tmp_path), run="process")

    @box.workflow
    async def behind(ctx: todoku.Flow) -> int:
        return (await ctx.step(render, Page(1, 0), run="process")).number

    with occupied(box, tmp_path) as (other, pids):
        run = flow.start()
        until(lambda: run.status() == "sending", "the run to begin")
        assert run.cancel(by="ops", why="a test")
        until(lambda: run.status() == "aborted", "the run to end")
        assert all(map(is_running, pids)), "the other run goes on"
        next_in_line = behind.start()
        assert other.cancel(by="ops", why="a test")
        assert next_in_line.result(timeout=60) == 2
    assert (run.delivery().reason, steps(box, run)) == ("CANCELLED", {})
    assert _pid(tmp_path) is None


@pytest.mark.settings(concurrency="2")
def test_a_branch_that_is_left_behind_while_its_step_waits_for_a_process_ends_with_its_attempt(
    box: todoku.App, tmp_path: Path
) -> None:
    """R2, R9: it does not wait for a process any more, for the next attempt calls its step again."""
    ended = threading.Event()

    def fail_beside_it() -> None:
        raise ConnectionError("another branch")

    @box.workflow(max_attempts=1)
    async def flow(ctx: todoku.Flow) -> None:
        async def branch() -> None:
            try:
                await ctx.step(sleep_for_ever, str(tmp_path), run="process")
            finally:
                ended.set()

        await asyncio.gather(branch(), ctx.step(fail_beside_it))

    with occupied(box, tmp_path) as (_, pids):
        run = flow.start()
        until(lambda: run.status() == "aborted", "the run to end")
        assert ended.wait(30), "the branch ends"
        assert all(map(is_running, pids)), "the other run goes on"
    assert _pid(tmp_path) is None


def test_what_cannot_run_in_a_process_is_refused(box: todoku.App) -> None:
    def local() -> None: ...

    def booked(tx: Any) -> None: ...

    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (asynchronous, {"run": "process"}, "is async"),
        (asynchronous, {"run": "thread"}, "is async"),
        (booked, {"run": "process", "transactional": True}, "transactional"),
        (local, {"run": "process"}, "top of a module"),
        (lambda: None, {"run": "process"}, "top of a module"),
        (local, {"run": "loop"}, "auto, thread, process"),
    ]

    @box.workflow
    async def flow(ctx: todoku.Flow, place: int) -> None:
        function, options, _ = wrong[place]
        await ctx.step(function, **options)

    runs = [flow.start(place) for place in range(len(wrong))]
    for run, (_, _, why) in zip(runs, wrong, strict=True):
        assert settled(box, run) == ("aborted", "INVALID_STEP")
        assert why in str(run.error())


def _pid(marks: Path) -> int | None:
    file = marks / "pid"
    return int(file.read_text() or 0) if file.exists() else None
