"""Stopping: a signal drains, a second one ends everything, and nothing is left in `sending`."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.daemon.running import PATIENCE, Daemon, Shop, alive, until
from todoku.store.deliveries import Filter

pytestmark = pytest.mark.slow


def begin_slow(shop: Shop, number: int = 1) -> None:
    for n in range(number):
        shop.enqueue("slow", n)
    until(lambda: len(shop.noted("slow begins")) >= min(number, 3), "the slow handlers to begin")


def until_503(daemon: Daemon, number: int) -> None:
    """Send the signal, and come back when `/readyz` says no; how long that took is printed."""
    began = time.monotonic()
    daemon.signal(number)

    def draining() -> bool:
        status, body = daemon.ask("/readyz")
        return status == 503 and "draining" in body["reasons"]

    until(draining, "not ready")
    print(f"not_ready_after_sec: {time.monotonic() - began:.3f}")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_sigterm_drains(shop: Shop, number: int) -> None:
    """S2-21, S2-33, I11: not ready at once, what runs is awaited, what has not begun is given back.

    Half a second on a machine that does nothing else. Whatever it does: while handlers still run, for hours if need be.
    """
    daemon = shop.run("--workers", "1", TODOKU_DRAIN_GRACE_SEC="3600")
    begin_slow(shop, 20)
    until_503(daemon, number)
    assert daemon.process.poll() is None, "it waits for what runs"
    assert daemon.ask("/healthz")[0] == 200
    shop.let_go()
    assert daemon.exit_code() == 0
    counts = shop.counts()
    done = len(shop.noted("slow ends"))
    assert counts == {"pending": 20 - done, "sending": 0, "succeeded": done, "failed": 0, "aborted": 0}
    assert done == len(shop.noted("slow begins")) == 3, "three slots had begun, and nothing began after the signal"
    attempts = {delivery.attempts for delivery in shop.box.store.deliveries.find(Filter(status="pending")).items}
    assert attempts == {0}, "an attempt that never started is given back"


def test_the_grace_is_the_limit(shop: Shop) -> None:
    """S2-21: a handler that does not end is interrupted when the grace is over, and its message runs again."""
    daemon = shop.run("--workers", "1", TODOKU_DRAIN_GRACE_SEC="1")
    begin_slow(shop)
    daemon.signal(signal.SIGTERM)
    assert daemon.exit_code() == 0
    assert shop.noted("slow ends") == []
    counts = shop.counts()
    assert counts["sending"] == 0
    assert counts["pending"] + counts["failed"] == 1
    shop.let_go()
    after = shop.run("--workers", "1")
    until(lambda: shop.counts()["succeeded"] == 1, "its message to run again")
    assert len(shop.noted("slow begins")) == 2
    assert after.stop() == 0


def test_a_handler_that_blocks_its_process_does_not_keep_the_daemon(shop: Shop) -> None:
    daemon = shop.run("--workers", "1", TODOKU_DRAIN_GRACE_SEC="1")
    shop.enqueue("blocking")
    until(lambda: shop.noted("blocking begins"), "it to begin")
    pids = [worker["pid"] for worker in daemon.workers()]
    daemon.signal(signal.SIGTERM)
    assert daemon.exit_code() == 0
    assert not any(alive(pid) for pid in pids)
    assert shop.counts()["sending"] == 0
    assert daemon.events("NOT_DRAINED_IN_TIME")


@pytest.mark.parametrize(("second", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_second_signal_exits_now(shop: Shop, second: int, code: int) -> None:
    daemon = shop.run("--workers", "2", TODOKU_DRAIN_GRACE_SEC="3600")
    begin_slow(shop)
    pids = [worker["pid"] for worker in daemon.workers()]
    until_503(daemon, signal.SIGTERM)
    daemon.signal(second)
    assert daemon.exit_code() == code
    assert not any(alive(pid) for pid in pids)
    counts = shop.counts()
    assert counts["sending"] == 0, "the leases were ended: nobody waits for them to run out"
    assert counts["pending"] == 1


def test_a_daemon_with_nothing_to_do_stops_at_once(sqlite_shop: Shop) -> None:
    sqlite_shop.box.migrate()
    daemon = sqlite_shop.run("--workers", "2")
    until(lambda: [worker["state"] for worker in daemon.workers()] == ["running"] * 2, "both of them")
    assert daemon.stop() == 0
    for number in (1, 2):  # S3-91
        for word in ("started", "received stop signal", "stopped"):
            assert f"Worker {number} {word}" in daemon.err


def test_ctrl_c_in_a_terminal_reaches_the_workers_only_through_the_supervisor(sqlite_shop: Shop) -> None:
    """A terminal signals the whole foreground group: handlers must not be interrupted by it."""
    sqlite_shop.box.migrate()
    daemon = sqlite_shop.run()
    begin_slow(sqlite_shop)
    (worker,) = daemon.workers()
    assert os.getpgid(worker["pid"]) != os.getpgid(daemon.process.pid)
    os.kill(worker["pid"], signal.SIGINT)
    daemon.signal(signal.SIGINT)
    until(lambda: daemon.events("DRAINING"), "draining")
    sqlite_shop.let_go()
    assert daemon.exit_code() == 0
    assert sqlite_shop.noted("slow ends") == ["slow ends 0"]


def test_workers_leave_when_their_supervisor_is_killed(shop: Shop) -> None:
    daemon = shop.run("--workers", "2")
    begin_slow(shop)
    until(lambda: [worker["state"] for worker in daemon.workers()] == ["running"] * 2, "both of them")
    pids = [worker["pid"] for worker in daemon.workers()]
    daemon.signal(signal.SIGKILL)
    daemon.exit_code()
    until(lambda: sum(alive(pid) for pid in pids) <= 1, "the idle one to leave")
    shop.let_go()
    until(lambda: not any(alive(pid) for pid in pids), "everybody to leave", seconds=PATIENCE)
    assert shop.noted("slow ends") == ["slow ends 0"], "it drained: what ran was awaited"
    assert shop.counts() == {"pending": 0, "sending": 0, "succeeded": 1, "failed": 0, "aborted": 0}
