"""A worker is stopped for longer than its lease and goes on as if nothing had happened: a zombie (faults 4 and 5).

It changes nothing any more; what it truly did is kept in the ledger (I7); what ran twice is explained (I13).
"""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.crash.app import KINDS
from tests.crash.run import Run
from tests.support.pack import Member, until
from tests.support.world import SOMEBODY, Backend

pytestmark = [pytest.mark.crash, pytest.mark.slow]

LEASE = 2.0
WORK = 2.0
"""How long an attempt takes that is to be stopped."""

WELL = {"TODOKU_LEASE_SEC": "60"}
"""Whoever is not to lose its lease: a busy machine may keep it from its heartbeat for longer than the zombie's."""


def begun(make_run: Callable[..., Run], kind: str) -> tuple[Run, Member]:
    """A message of this kind, and the worker that is at it and stopped."""
    run = make_run(lease=LEASE)
    run.publish(KINDS.index(kind), 1)
    own = kind == "booked"  # it has a transaction of its own, on SQLite the only one, and a quarter of the lease for it
    zombie = run.worker(TODOKU_TEST_WORK=str(0.1 * LEASE if own else WORK))
    run.until_begun(zombie)
    if own:
        run.pack.stop(zombie)
    else:
        run.stop(zombie)
    return run, zombie


def owners(run: Run) -> list[tuple[str, int]]:
    """Who settled, and by which epoch."""
    return [(str(worker), epoch) for worker, epoch in run.world.sql("select worker_id, epoch from todoku_history")]


@pytest.mark.parametrize("kind", ["plain", "keyed", "threaded"])
def test_a_zombie_at_work_changes_nothing_after_somebody_else_has_done_it(
    make_run: Callable[..., Run], kind: str
) -> None:
    run, zombie = begun(make_run, kind)
    other = run.worker(**WELL)
    run.until_finished()
    settled = owners(run)
    run.pack.resume(zombie)
    run.until_returned(zombie)
    run.pack.drain(zombie, other)
    verdict = run.verdict()
    assert verdict.problems == ()
    assert owners(run) == settled
    assert [worker for worker, _ in settled] == run.notes.workers_of(other.pid)
    assert (verdict.arrivals, verdict.duplicates) == (2, 1)


def test_a_zombie_that_had_its_own_transaction_takes_no_effect(make_run: Callable[..., Run], backend: Backend) -> None:
    """I6. On SQLite it stopped with the only write lock in its hands: nobody could do its work meanwhile."""
    run, zombie = begun(make_run, "booked")
    stopped = time.monotonic()
    if backend == "postgres":
        run.worker(**WELL)
        run.until_finished()
    until(lambda: time.monotonic() > stopped + 2 * LEASE, "the lease to be over")
    run.pack.resume(zombie)
    run.until_returned(zombie)
    verdict = run.finish()
    assert verdict.problems == ()
    assert run.world.sql("select count(*) from crash_effect") == [(1,)]
    assert verdict.arrivals <= 2


def test_I7_the_late_success_of_a_zombie_is_recorded_in_the_ledger_only(make_run: Callable[..., Run]) -> None:
    """Its row was taken from it and waits; nobody may send it again, because the ledger knows that it was sent.

    In a thread, which goes on whatever happens: an async handler is cancelled when the lease is found to be lost.
    """
    run, zombie = begun(make_run, "threaded")
    store = run.world.store
    until(lambda: store.leases.reclaim(max_lost=1000).freed, "the lease to end")
    store.queues.pause("default", SOMEBODY, paused=True)
    run.pack.resume(zombie)
    effect = "select state from todoku_ledger where scope = 'effect:threaded'"
    until(lambda: run.world.sql(effect) == [("succeeded",)], "its success to be recorded")
    rows = run.world.sql("select status, epoch, lost, worker_id from todoku_delivery")
    assert rows == [("pending", 2, 1, None)], "the row is as it was taken from it"
    store.queues.pause("default", SOMEBODY, paused=False)
    verdict = run.finish()
    assert verdict.problems == ()
    assert verdict.arrivals == 1, "it was not sent again"


@pytest.mark.parametrize("operation", ["claim", "claim_lanes"])
def test_a_zombie_that_wakes_before_it_sends_sends_nothing(make_run: Callable[..., Run], operation: str) -> None:
    """I12: what it claimed and had not started is somebody else's by now."""
    run = make_run(lease=LEASE)
    kinds = ["plain", "keyed", "threaded"] if operation == "claim" else ["lined"]
    for kind in kinds:
        run.publish(KINDS.index(kind), 1)
    zombie = run.stopped_at(f"{operation}.after_commit")
    before = run.begun(zombie.pid)
    other = run.worker(**WELL)
    run.until_finished()
    run.pack.resume(zombie)
    until(lambda: len(run.notes.workers_of(zombie.pid)) > 1, "it to take a new id")
    run.pack.drain(zombie, other)
    verdict = run.verdict()
    assert verdict.problems == ()
    assert run.begun(zombie.pid) == before
    assert verdict.duplicates == 0


@pytest.mark.parametrize("side", ["before_commit", "after_commit"])
@pytest.mark.parametrize("operation", ["settle", "transact", "renew"])
def test_a_worker_stopped_around_a_commit_neither_loses_nor_doubles(
    make_run: Callable[..., Run], operation: str, side: str
) -> None:
    """In a transaction it holds locks: PostgreSQL ends the session after a while, SQLite waits for it to wake up."""
    run = make_run(lease=LEASE, TODOKU_STATEMENT_TIMEOUT_SEC="2")
    run.publish(0, 2 * len(KINDS))
    zombie = run.worker(TODOKU_TEST_ARM=f"{operation}.{side}=stop@1", TODOKU_TEST_WORK="0.05")
    run.until_stopped(zombie)
    stopped = time.monotonic()
    other = run.worker(**WELL)
    until(lambda: time.monotonic() > stopped + 1.5 * LEASE, "the lease to be over")
    run.pack.resume(zombie)
    run.until_finished()
    run.pack.drain(zombie, other)
    verdict = run.verdict()
    assert verdict.problems == ()


@pytest.mark.postgres
@pytest.mark.parametrize("backend", ["postgres"])
def test_a_worker_stopped_in_its_renewal_keeps_nobody_from_reclaiming_what_others_left(
    make_run: Callable[..., Run],
) -> None:
    """It holds the lock of its own lease; the leases of others that died end in time all the same."""
    run = make_run(lease=LEASE)
    run.publish(0, 2 * len(KINDS))
    zombie = run.worker(
        TODOKU_TEST_ARM="renew.before_commit=stop@1", TODOKU_TEST_WORK="30",
        TODOKU_STATEMENT_TIMEOUT_SEC="600",  # PostgreSQL does not end its session while this test waits
    )  # fmt: skip
    run.pack.until_stopped(zombie)
    run.publish(1000, len(KINDS))
    victim = run.worker(TODOKU_TEST_WORK="30")
    run.until_begun(victim)
    run.pack.kill(victim)
    *_, dead = run.notes.workers_of(victim.pid)
    other = run.worker(**WELL)
    held = f"select count(*) from todoku_delivery where worker_id = '{dead}'"
    until(lambda: run.world.sql(held) == [(0,)], "what the dead one held to be freed")
    run.pack.kill(zombie)
    run.until_finished()
    run.pack.drain(other)
    assert run.verdict().problems == ()
