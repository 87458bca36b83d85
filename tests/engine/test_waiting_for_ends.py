"""A caller that waits for a result is woken by notice, never depends on it, and costs a settle nothing otherwise.

In these tests a poll comes once a minute: what does not wake a caller is found by none.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import todoku
from tests.support.crew import Crew, until
from tests.support.world import World, aborted
from todoku.core.decision import Settlement
from todoku.core.message import Claimed
from todoku.core.status import Status
from todoku.engine.context import Context
from todoku.engine.jobs import handle as handles
from todoku.store.store import Store

A_MINUTE = 60.0
SUCCESS = Settlement(status=Status.SUCCEEDED, result="42")
SIGNED = {"by": "ada", "why": "a test"}

across = pytest.mark.parametrize("backend", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
"""Only PostgreSQL has notices between processes: on SQLite callers of other processes poll."""


@pytest.fixture
def seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers poll once a minute, and announce at once that they wait."""
    for name in ("_FIRST_WAIT", "_LONGEST_WAIT", "_LONGEST_WAIT_WITH_NOTICE"):
        monkeypatch.setattr(handles, name, A_MINUTE)
    monkeypatch.setattr(handles, "_ANNOUNCE_AFTER", 0.0)


@pytest.fixture
def box(world: World) -> Iterator[todoku.App]:
    box = todoku.App(world.url)
    if world.backend == "sqlite":
        box._database._clock = world._now  # type: ignore[attr-defined]
    yield box
    box.close()


def declare(box: todoku.App) -> todoku.Job[[], int]:
    @box.job(keep_result=True)
    def answer() -> int: ...  # type: ignore[empty-body]

    return answer


def claimed(world: World, store: Store) -> list[Claimed]:
    return world.claim(world.worker(), store=store)


def looked(box: todoku.App) -> threading.Event:
    """Set when a caller has looked, and found nothing."""
    event, standing = threading.Event(), box.store.deliveries.standing

    def looking(*args: Any) -> Any:
        found = standing(*args)
        event.set()
        return found

    box.store.deliveries.standing = looking  # type: ignore[method-assign]
    return event


class Caller(threading.Thread):
    """A thread that waits for a result."""

    def __init__(self, wait: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self.found: list[object] = []
        self._call = wait
        self.start()

    def run(self) -> None:
        try:
            self.found.append(self._call())
        except todoku.JobAborted as error:
            self.found.append(error.reason)

    def result(self) -> object:
        self.join(A_MINUTE / 2)
        assert self.found, "the caller was not woken"
        return self.found[0]


@pytest.mark.usefixtures("seldom")
def test_a_settle_in_this_process_wakes_the_caller(world: World, box: todoku.App) -> None:
    handle, event = declare(box).enqueue(), looked(box)
    caller = Caller(lambda: handle.result(timeout=A_MINUTE))
    assert event.wait(30)
    until(lambda: bool(box.store.waiters), what="a caller that waits")
    box.store.claims.settle([(claim, SUCCESS) for claim in claimed(world, box.store)])
    assert caller.result() == 42
    assert not box.store.waiters


@pytest.mark.usefixtures("seldom")
async def test_a_settle_in_this_process_wakes_the_task(world: World, box: todoku.App) -> None:
    handle, event = await declare(box).aenqueue(), looked(box)
    waiting = asyncio.create_task(handle.aresult(timeout=A_MINUTE))
    assert await asyncio.to_thread(event.wait, 30)
    claims = await asyncio.to_thread(claimed, world, box.store)
    await asyncio.to_thread(box.store.claims.settle, [(claim, SUCCESS) for claim in claims])
    assert await asyncio.wait_for(waiting, A_MINUTE / 2) == 42
    assert not box.store.waiters


@pytest.mark.usefixtures("seldom")
async def test_a_task_that_is_cancelled_waits_no_longer(box: todoku.App) -> None:
    handle, event = await declare(box).aenqueue(), looked(box)
    waiting = asyncio.create_task(handle.aresult())
    assert await asyncio.to_thread(event.wait, 30)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not box.store.waiters


@pytest.mark.usefixtures("seldom")
@pytest.mark.parametrize("end", ["worker", "cancel", "by hand"])
def test_every_end_wakes_the_caller_a_failure_too(world: World, box: todoku.App, end: str) -> None:
    handle, event = declare(box).enqueue(), looked(box)
    caller = Caller(lambda: handle.result(timeout=A_MINUTE))
    assert event.wait(30)
    if end == "worker":
        box.store.claims.settle([(claim, aborted("REFUSED")) for claim in claimed(world, box.store)])
    elif end == "cancel":
        assert box.handle(handle.id).cancel(**SIGNED)
    else:
        box.deliveries.settle(handle.id, succeeded=False, **SIGNED)
    assert caller.result() == {"worker": "REFUSED", "cancel": "CANCELLED", "by hand": "BY_HAND"}[end]


@across
@pytest.mark.usefixtures("seldom")
def test_a_settle_in_another_process_wakes_the_caller(world: World, box: todoku.App) -> None:
    """The world's store is the worker's: it listens for work, so it hears of callers, too."""
    heard = threading.Event()
    listener = world.store.listen(heard.set, lambda: None)
    handle = declare(box).enqueue()
    heard.clear()
    caller = Caller(lambda: handle.result(timeout=A_MINUTE))
    until(lambda: bool(world.store.waiters), what="a worker that knows of the caller")
    assert not heard.is_set()  # that is no new work
    world.store.claims.settle([(claim, SUCCESS) for claim in claimed(world, world.store)])
    assert caller.result() == 42
    listener.close()


@across
@pytest.mark.usefixtures("seldom")
def test_a_worker_that_runs_elsewhere_wakes_the_caller(world: World, box: todoku.App, crew: Crew) -> None:
    """A whole worker, on stores of its own. What it runs ends only when it knows of the caller."""
    go = threading.Event()

    def answer(_: Context) -> int:
        assert go.wait(60)
        return 42

    crew.handles("answer", answer, run="thread", queue="default", keep_result=True)
    handle = declare(box).enqueue()
    with crew.running() as worker:
        until(lambda: worker.health().state == "running", what="a worker that listens")
        caller = Caller(lambda: handle.result(timeout=A_MINUTE))
        until(lambda: bool(worker._store.waiters), what="a worker that knows of the caller")
        go.set()
        assert caller.result() == 42


@across
@pytest.mark.usefixtures("seldom")
def test_a_handler_with_a_transaction_wakes_a_caller_in_another_process(world: World, box: todoku.App) -> None:
    listener = world.store.listen(lambda: None, lambda: None)
    handle = declare(box).enqueue()
    caller = Caller(lambda: handle.result(timeout=A_MINUTE))
    until(lambda: bool(world.store.waiters), what="a worker that knows of the caller")
    (claim,) = claimed(world, world.store)
    world.store.claims.transact(claim, lambda _: todoku.Done(result="42"), limit=60)
    assert caller.result() == 42
    listener.close()


def test_no_notice_is_needed(world: World, box: todoku.App) -> None:
    """A worker that does not listen, as behind PgBouncer or with TODOKU_NOTIFY off: the caller polls."""
    handle, event = declare(box).enqueue(), looked(box)
    caller = Caller(lambda: handle.result(timeout=A_MINUTE))
    assert event.wait(30)
    world.store.claims.settle([(claim, SUCCESS) for claim in claimed(world, world.store)])
    assert caller.result() == 42


def test_a_caller_can_do_without_notices(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TODOKU_NOTIFY", "false")
    monkeypatch.setattr(handles, "_ANNOUNCE_AFTER", 0.0)
    box = todoku.App(world.url)
    handle = declare(box).enqueue()
    assert not box.store.waiters.announce(str(handle.id))
    with pytest.raises(TimeoutError):
        handle.result(timeout=0.05)
    box.close()


# --------------------------------------------------------------------------------- what it costs a settle


@pytest.fixture
def queries(world: World, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the queries that run from now on."""
    names: list[str] = []

    def around(kind: Any) -> None:
        rows = kind.rows

        def recorded(self: Any, query: str, /, **values: Any) -> Any:
            names.append(query)
            return rows(self, query, **values)

        monkeypatch.setattr(kind, "rows", recorded)

    world.store.database.read(lambda tx: around(type(tx)))
    return names


def settled_by(world: World, queries: list[str], **options: Any) -> list[str]:
    """The queries of one settle of one delivery, whose hooks are known."""
    world.publish(**options)
    world.store.database.write("settle", world.store._endings._known)
    claims = claimed(world, world.store)
    queries.clear()
    world.settle(claims)
    return list(queries)


def test_without_a_caller_a_settle_is_one_statement(world: World, queries: list[str]) -> None:
    assert settled_by(world, queries) == ["settle_done"]


def test_a_caller_that_waits_for_something_else_costs_a_settle_no_statement(world: World, queries: list[str]) -> None:
    world.store.waiters.expect("01900000-0000-7000-8000-000000000001")
    with world.store.waiters.waiting("01900000-0000-7000-8000-000000000002", lambda: None):
        assert settled_by(world, queries) == ["settle_done"]


@across
def test_a_notice_is_one_statement_of_the_same_transaction(world: World, queries: list[str]) -> None:
    (message,) = world.publish()
    world.store.waiters.expect(str(message.id))
    assert settled_by(world, queries) == ["settle_done", "notify"]


def test_an_announcement_is_forgotten_unless_it_is_repeated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("todoku.store.waiters.ANNOUNCED_FOR", -1.0)
    world.store.waiters.expect("01900000-0000-7000-8000-000000000001")
    assert world.store.waiters
    world.publish()
    world.settle(claimed(world, world.store))
    assert not world.store.waiters
