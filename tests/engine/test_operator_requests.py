"""Draining a worker from afar, and the stacks of the handlers it runs now (decision 38)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.test_processes import enqueue
from tests.support.apart import box as apart
from tests.support.crew import Crew, until
from tests.support.world import SOMEBODY, World
from todoku.core.errors import InvalidAct, NotThere
from todoku.engine import workers
from todoku.engine.context import Context
from todoku.engine.worker import operator_requests
from todoku.engine.worker.handler_stacks import HandlerStacks
from todoku.engine.worker.worker import Worker


def ask(world: World, worker: Worker) -> HandlerStacks:
    # A handler that blocks the loop may begin before the worker says that it runs; then it has its lease, too.
    until(lambda: worker.health().state != "starting" or worker.health().held, what="the worker to have its lease")
    found = workers.ask_stacks(world.store, worker.health().worker_id, SOMEBODY, wait=60)
    assert found.stacks is not None
    return found.stacks


def only_stack(world: World, worker: Worker, contains: str) -> str:
    """The stack of the one running handler, once it stands where it is to stand."""
    found: list[str] = []

    def stands_there() -> bool:
        found[:] = [one.stack or "" for one in ask(world, worker).handlers]
        return len(found) == 1 and contains in found[0]

    until(stands_there, what=f"a handler that stands at {contains}")
    return found[0]


# ------------------------------------------------------------------------------------------------ draining


def test_a_worker_that_is_drained_from_afar_gives_back_what_has_not_started_and_claims_nothing(
    world: World, crew: Crew
) -> None:
    """I11: what runs ends as it would have; the lease and the worker stay."""
    started, go = threading.Event(), threading.Event()
    ran: list[int] = []

    async def slow(ctx: Context) -> None:
        ran.append(ctx.delivery_id)
        started.set()
        await asyncio.to_thread(go.wait, 60)

    crew.handles("warehouse", slow)
    world.publish(10)
    with crew.running(concurrency=2) as worker:
        assert started.wait(30)
        id = worker.health().worker_id
        workers.drain(world.store, id, SOMEBODY)
        until(lambda: worker.health().state == "draining", what="draining")
        until(lambda: worker.health().held == len(ran), what="the rest to be given back")
        assert [one.status for one in workers.list_workers(world.store)] == ["draining"]
        go.set()
        until(lambda: worker.health().held == 0, what="what ran to be settled")
        (one,) = workers.list_workers(world.store)
        assert (one.status, one.lease.id, one.is_alive) == ("drained", id, True)
        rows = world.deliveries()
        assert {(row.status, row.attempts) for row in rows} == {("pending", 0)}
        assert len(rows) == 10 - len(ran)
        world.publish(3)
        seen = len(ran)
        assert ask(world, worker).handlers == ()  # so the heartbeat has read the requests again
        worker.poke()
        assert ask(world, worker).handlers == ()
        assert len(ran) == seen, "it claims nothing"
        workers.resume(world.store, id, SOMEBODY)
        until(lambda: len(world.history()) == 13, what="everything to arrive")
        assert worker.health().state == "running"
        assert worker.health().worker_id == id
    assert len(ran) == 13


def test_a_drained_worker_that_loses_its_lease_stays_drained(world: World, crew: Crew) -> None:
    crew.handles("warehouse")
    with crew.running(lease_sec=2.0) as worker:
        until(lambda: worker.health().state == "running", what="running")
        id = worker.health().worker_id
        workers.drain(world.store, id, SOMEBODY)
        until(lambda: worker.health().state == "draining", what="draining")
        world.store.leases.end(id, lost=True)
        until(lambda: worker.health().worker_id != id, what="another incarnation")
        world.publish(1)
        (row,) = world.store.leases.workers()
        assert (row.id, row.drain_requested) == (worker.health().worker_id, True)
        assert worker.health().state == "draining"
        assert [delivery.status for delivery in world.deliveries()] == ["pending"]
        workers.resume(world.store, row.id, SOMEBODY)
        until(lambda: len(world.history()) == 1, what="it to arrive")


def test_a_worker_that_runs_until_idle_ends_when_it_is_drained(world: World, crew: Crew) -> None:
    async def drains(ctx: Context) -> None:
        await asyncio.to_thread(workers.drain, world.store, ctx.claim.worker, SOMEBODY)
        await asyncio.sleep(1.5)

    crew.handles("warehouse", drains)
    world.publish(20)
    assert crew.drain(concurrency=1, batch=1) < 20
    assert {row.status for row in world.deliveries()} == {"pending"}


def test_a_worker_is_found_by_its_id_or_its_name(world: World) -> None:
    one, twin, _ = world.worker(name="host:1"), world.worker(name="host:2"), world.worker(name="host:2")
    assert workers.find_worker(world.store, "host:1") == one
    assert workers.find_worker(world.store, str(twin)) == twin
    with pytest.raises(InvalidAct, match="2 workers"):
        workers.find_worker(world.store, "host:2")
    with pytest.raises(NotThere):
        workers.find_worker(world.store, "host:3")
    world.advance(3600)
    with pytest.raises(NotThere):
        workers.find_worker(world.store, "host:1")
    for act in (workers.drain, workers.resume, workers.ask_stacks):
        with pytest.raises(NotThere):
            act(world.store, one, SOMEBODY)


def test_a_worker_that_does_not_answer_costs_the_wait_and_no_more(world: World) -> None:
    """Its process is gone, and its lease has not ended yet."""
    worker = world.worker()
    slept: list[float] = []
    found = workers.ask_stacks(world.store, worker, SOMEBODY, wait=3, monotonic=lambda: sum(slept), sleep=slept.append)
    assert (found.request, found.stacks) == (1, None)
    assert sum(slept) >= 3


# -------------------------------------------------------------------------------------------------- stacks


def in_a_thread(go: threading.Event) -> Callable[[Context], None]:
    def handler(ctx: Context) -> None:
        secret = "never shown"  # noqa: F841 - a local variable
        go.wait(120)

    return handler


def test_the_stack_of_a_handler_in_a_thread(world: World, crew: Crew) -> None:
    go = threading.Event()
    crew.handles("warehouse", in_a_thread(go), run="thread")
    world.publish(1)
    with crew.running() as worker:
        text = only_stack(world, worker, "go.wait(120)")
        found = ask(world, worker).handlers[0]
        go.set()
    assert text.startswith("Stack of the handler (most recent call last):\n")
    assert "never shown" not in text.replace('secret = "never shown"', "")
    assert "thread_pool.py" not in text, "what called the handler is left out"
    assert (found.destination, found.topic, found.attempt, found.runs_in) == ("warehouse", "order.created", 1, "thread")
    assert found.seconds > 0


def test_the_stack_of_a_coroutine_is_what_it_awaits(world: World, crew: Crew) -> None:
    go = threading.Event()

    async def inner() -> None:
        while not go.is_set():  # noqa: ASYNC110 - it stands here
            await asyncio.sleep(0.05)

    async def handler(ctx: Context) -> None:
        await inner()

    crew.handles("warehouse", handler)
    world.publish(1)
    with crew.running() as worker:
        text = only_stack(world, worker, "await asyncio.sleep(0.05)")
        go.set()
    lines = [line.strip() for line in text.splitlines()]
    assert lines.index("await inner()") < lines.index("await asyncio.sleep(0.05)")
    assert "slot_pool.py" not in text


def test_a_handler_that_blocks_the_event_loop_is_seen_all_the_same(world: World, crew: Crew) -> None:
    go = threading.Event()

    async def blocks(ctx: Context) -> None:
        while not go.is_set():
            time.sleep(0.05)  # noqa: ASYNC251 - it blocks on purpose

    crew.handles("warehouse", blocks)
    world.publish(1)
    with crew.running() as worker:
        text = only_stack(world, worker, "time.sleep(0.05)")
        go.set()
    assert "in blocks" in text


def test_the_stack_of_a_handler_in_a_process_and_the_handler_goes_on(world: World, tmp_path: Path) -> None:
    crew = Crew(world)
    crew.registry = apart.registry
    mark, go = tmp_path / "mark", tmp_path / "go"
    enqueue(world, "linger", mark=str(mark), go=str(go))
    with crew.running(concurrency=1) as worker:
        asked = 0
        while not mark.exists():  # while the process starts, the request must not end it
            ask(world, worker)
            asked += 1
        text = only_stack(world, worker, "in linger")
        go.touch()
        until(lambda: len(world.history()) == 1, what="it to succeed")
    assert asked
    assert "time.sleep(0.05)" in text
    assert "process_pool.py" not in text
    assert world.history()[0].attempts == 1, "it was not disturbed"


def test_without_tracebacks_it_is_said_what_runs_and_not_where(world: World, crew: Crew) -> None:
    go = threading.Event()
    crew.handles("warehouse", in_a_thread(go), run="thread")
    world.publish(1)
    with crew.running(tracebacks="off") as worker:
        until(lambda: worker.health().running == 1, what="it to run")
        found = ask(world, worker)
        go.set()
    assert not found.kept
    assert [(one.destination, one.stack) for one in found.handlers] == [("warehouse", None)]


def test_an_idle_worker_has_no_handlers_and_its_answer_is_cleared(
    world: World, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_requests, "KEPT_SEC", 0.5)
    crew.handles("warehouse")
    with crew.running() as worker:
        until(lambda: worker.health().state == "running", what="running")
        assert ask(world, worker).handlers == ()
        until(lambda: world.sql("select stacks from todoku_worker") == [(None,)], what="the answer to be cleared")
        assert ask(world, worker).handlers == (), "it answers again"


def test_of_many_handlers_those_that_have_run_longest_are_kept(world: World, crew: Crew) -> None:
    go = threading.Event()

    async def waits(ctx: Context) -> None:
        while not go.is_set():  # noqa: ASYNC110 - it stands here
            await asyncio.sleep(0.05)

    crew.handles("warehouse", waits)
    world.publish(60)
    with crew.running(concurrency=60) as worker:
        until(lambda: worker.health().running == 60, what="all to run")
        found = ask(world, worker)
        go.set()
    assert (len(found.handlers), found.more) == (50, 10)
    seconds = [one.seconds for one in found.handlers]
    assert seconds == sorted(seconds, reverse=True)


def test_nothing_is_written_while_nothing_is_asked(world: World, crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    for name in ("answer_stacks", "clear_stacks", "stacks", "held_by"):
        monkeypatch.setattr(type(world.store.leases), name, lambda *_, name=name, **__: called.append(name))
    crew.handles("warehouse")
    with crew.running() as worker:
        until(lambda: worker.health().state == "running", what="running")
        world.publish(2)
        until(lambda: len(world.history()) == 2, what="both to arrive")
    assert called == []
