"""Requests to real worker processes: draining one of a daemon, where its handlers stand, and kill -9 in between."""

from __future__ import annotations

import os
import signal
from uuid import UUID

import pytest

from tests.daemon.running import Daemon, Shop, until
from tests.support.world import SOMEBODY
from todoku.engine import workers

pytestmark = pytest.mark.slow


def only(daemon: Daemon) -> tuple[int, UUID]:
    """The process id and the lease of the only worker process, once it works."""
    (worker,) = until(
        lambda: [one for one in daemon.workers() if one["state"] == "running" and one["worker_id"]], "a worker"
    )
    return worker["pid"], UUID(worker["worker_id"])


def test_a_drained_worker_process_stays_holds_nothing_and_is_not_replaced(shop: Shop) -> None:
    daemon = shop.run("--workers", "1")
    pid, id = only(daemon)
    shop.enqueue("slow")
    until(lambda: shop.noted("slow begins"), "it to begin")
    workers.drain(shop.box.store, id, SOMEBODY)
    until(lambda: daemon.workers()[0]["state"] == "draining", "it to drain")
    shop.enqueue("quick", 1)
    shop.let_go()
    until(lambda: shop.counts()["succeeded"] == 1, "what ran to end")
    until(lambda: [one.status for one in workers.list_workers(shop.box.store)] == ["drained"], "it to be drained")
    assert daemon.ask("/readyz")[1]["reasons"] == ["no_worker"]
    until(lambda: daemon.workers()[0]["held"] == 0, "its supervisor to know")
    (found,) = daemon.workers()
    assert (found["pid"], found["restarts"]) == (pid, 0), "its supervisor leaves it alone"
    assert shop.counts()["pending"] == 1
    workers.resume(shop.box.store, id, SOMEBODY)
    until(lambda: shop.noted("quick 1"), "it to claim again")
    assert only(daemon) == (pid, id)
    assert daemon.stop() == 0


def test_the_stacks_of_another_process_are_read_through_the_database(shop: Shop) -> None:
    daemon = shop.run("--workers", "1")
    _, id = only(daemon)
    shop.enqueue("slow")
    until(lambda: shop.noted("slow begins"), "it to begin")
    found = workers.ask_stacks(shop.box.store, id, SOMEBODY, wait=60)
    assert found.stacks is not None
    (handler,) = found.stacks.handlers
    assert handler.destination == "slow"
    assert "await asyncio.sleep(0.02)" in (handler.stack or "")
    shop.let_go()
    until(lambda: shop.counts()["succeeded"] == 1, "it to end")
    assert daemon.stop() == 0


def test_a_worker_killed_with_a_pending_request_loses_the_request_and_no_delivery(shop: Shop) -> None:
    """It is stopped first, so that it cannot obey; its successor is a new worker that nobody asked anything."""
    daemon = shop.run("--workers", "1", TODOKU_LEASE_SEC="3600")
    pid, id = only(daemon)
    shop.enqueue("slow")
    until(lambda: shop.noted("slow begins"), "it to begin")
    os.kill(pid, signal.SIGSTOP)
    workers.drain(shop.box.store, id, SOMEBODY)
    assert workers.ask_stacks(shop.box.store, id, SOMEBODY, wait=0.5).stacks is None
    os.kill(pid, signal.SIGKILL)
    until(lambda: len(shop.noted("slow begins")) == 2, "its successor to run it")
    (successor,) = workers.list_workers(shop.box.store)
    assert (successor.status == "drained", successor.lease.drain_requested) == (False, False)
    assert shop.box.store.leases.stacks(id) is None
    shop.let_go()
    until(lambda: shop.counts()["succeeded"] == 1, "it to succeed")
    assert daemon.stop() == 0
