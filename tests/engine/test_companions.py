"""What runs beside a worker: from its start to its drain, also one from afar."""

from __future__ import annotations

import threading
from collections.abc import Callable
from uuid import UUID

import pytest

from tests.support.crew import Crew, until
from tests.support.world import SOMEBODY, World
from todoku.engine import workers
from todoku.engine.registry import Registry
from todoku.engine.worker.companions import Companions


class Companion:
    """Notes what it is called with, and runs until it has to end."""

    def __init__(self) -> None:
        self.ids: list[UUID] = []
        self.started = threading.Event()
        self.running = 0
        self.most = 0
        self.worker: Callable[[], UUID] | None = None
        self.before_end: Callable[[], object] = lambda: None

    def __call__(self, worker: Callable[[], UUID], ending: threading.Event) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        self.worker = worker
        self.ids.append(worker())
        self.started.set()
        ending.wait(120)
        self.before_end()
        self.running -= 1


def test_each_companion_runs_in_a_thread_of_its_own_until_the_worker_has_drained(world: World, crew: Crew) -> None:
    """The lease is there when it starts, and until it has ended: it may still give back what it holds."""
    first, second = Companion(), Companion()
    leases: list[int] = []
    first.before_end = lambda: leases.append(len(world.sql("select id from todoku_worker")))
    crew.registry.companions += [first, second]
    with crew.running() as worker:
        for companion in (first, second):
            assert companion.started.wait(60)
            assert companion.ids == [worker.health().worker_id]
        assert {thread.name for thread in threading.enumerate()} >= {"todoku companion 0", "todoku companion 1"}
    assert (first.running, second.running, leases) == (0, 0, [1])


def test_a_companion_learns_of_a_new_lease(world: World, crew: Crew) -> None:
    """I3: the id changes when the lease is lost; the companion goes on."""
    companion = Companion()
    crew.registry.companions.append(companion)
    with crew.running(lease_sec=4, reclaim_interval_sec=0.2) as worker:
        assert companion.started.wait(60)
        first = worker.health().worker_id
        world.sql("delete from todoku_worker where id = ?", str(first))
        until(lambda: companion.worker is not None and companion.worker() != first, what="another id")
    assert len(companion.ids) == 1


def test_a_worker_that_ends_when_it_is_idle_has_no_companions(world: World, crew: Crew) -> None:
    companion = Companion()
    crew.registry.companions.append(companion)
    crew.handles("warehouse")
    world.publish()
    assert crew.drain() == 1
    assert not companion.started.is_set()


def test_an_exception_of_a_companion_ends_the_worker(crew: Crew) -> None:
    def fail(worker: Callable[[], UUID], ending: threading.Event) -> None:
        raise RuntimeError("the companion failed")

    other = Companion()
    crew.registry.companions += [other, fail]
    with pytest.raises(RuntimeError, match="the companion failed"), crew.running() as worker:
        until(lambda: worker.health().state == "stopped", what="the worker to end by itself")
    assert other.running == 0


def test_a_drain_from_afar_ends_companions_and_a_resume_starts_them_again(world: World, crew: Crew) -> None:
    """Another worker reads meanwhile. The same companion never runs twice at once."""
    companion = Companion()
    crew.registry.companions.append(companion)
    with crew.running(lease_sec=4) as worker:
        assert companion.started.wait(60)
        workers.drain(world.store, worker.health().worker_id, SOMEBODY)
        until(lambda: companion.running == 0, what="the companion to end")
        companion.started.clear()
        workers.resume(world.store, worker.health().worker_id, SOMEBODY)
        assert companion.started.wait(60)
    assert (len(companion.ids), companion.most) == (2, 1)


def test_one_that_has_not_ended_is_awaited_before_it_is_started_again() -> None:
    companion, go = Companion(), threading.Event()
    companion.before_end = lambda: go.wait(60)
    registry = Registry()
    registry.companions.append(companion)
    failures: list[Exception] = []
    companions = Companions(registry, lambda: UUID(int=1), failures.append)
    companions.start()
    assert companion.started.wait(60)
    companions.end()
    companion.started.clear()
    companions.start()
    companions.start()  # a second time changes nothing
    assert not companion.started.is_set()
    go.set()
    assert companion.started.wait(60)
    companions.close(60)
    companions.start()  # after the close neither
    assert (companion.running, companion.most, len(companion.ids), failures) == (0, 1, 2, [])
