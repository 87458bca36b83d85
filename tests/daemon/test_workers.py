"""Worker processes: replaced when they die, asked how they are, never able to silence the daemon."""

from __future__ import annotations

import os
import signal
import time

import pytest

import todoku
from tests.daemon.running import Shop, alive, until

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_killed_worker_is_replaced_and_its_messages_run_again(shop: Shop, workers: str) -> None:
    """W-103 without waiting for the lease: the supervisor ends it (DESIGN §4, Reclaim)."""
    daemon = shop.run("--workers", workers, TODOKU_LEASE_SEC="3600")
    shop.enqueue("slow")
    until(lambda: shop.noted("slow begins"), "it to begin")
    (victim,) = until(lambda: [worker for worker in daemon.workers() if worker["running"]], "it to be told who runs it")
    began = time.monotonic()
    os.kill(victim["pid"], signal.SIGKILL)
    until(lambda: len(shop.noted("slow begins")) == 2, "it to begin again")
    print(f"runs_again_after_sec: {time.monotonic() - began:.2f}")
    shop.let_go()
    until(lambda: shop.counts()["succeeded"] == 1, "it to succeed")
    until(lambda: all(worker["state"] == "running" for worker in daemon.workers()), "a new worker")
    assert victim["pid"] not in [worker["pid"] for worker in daemon.workers()]
    assert sum(worker["restarts"] for worker in daemon.workers()) == 1
    (died,) = daemon.events("WORKER_DIED")
    assert (died["pid"], died["how"], died["next_in_sec"]) == (victim["pid"], "was killed by SIGKILL", 0)
    assert daemon.ask("/healthz")[0] == 200
    assert daemon.stop() == 0


def test_a_message_that_kills_its_workers_is_given_up_and_the_others_arrive(shop: Shop) -> None:
    """DESIGN §2: at `lost` = 3 it is a dead letter, reason WORKER_LOST; each restart comes later than the last."""
    daemon = shop.run("--workers", "1")
    shop.enqueue("deadly")
    until(lambda: shop.counts()["aborted"] == 1, "the deadly one to be given up")
    shop.enqueue("quick", 7)
    until(lambda: shop.counts()["succeeded"] == 1, "the other one to arrive")
    assert len(shop.noted("deadly")) == 3
    assert [died["how"] for died in daemon.events("WORKER_DIED")] == ["exited with 9"] * 3
    counts = shop.box.store.statistics.counts()
    assert [(row.reason, row.number) for row in counts.rows if row.status == "aborted"] == [("WORKER_LOST", 1)]
    assert daemon.stop() == 0


def test_a_blocked_event_loop_costs_neither_health_nor_readiness_and_is_named(shop: Shop) -> None:
    daemon = shop.run("--workers", "1", "--open")
    shop.enqueue("blocking")
    until(lambda: shop.noted("blocking begins"), "it to begin")
    verbose = until(
        lambda: body if (body := daemon.ask("/readyz?verbose")[1]) and body["blocked"] else None, "it to be named"
    )
    assert verbose["blocked"] == ["blocking"]
    assert verbose["ready"]
    assert daemon.ask("/healthz") == (200, {"live": True, "state": "running"})
    assert daemon.ask("/readyz") == (200, {"ready": True, "reasons": []})
    assert "blocking blocks its worker" in daemon.ask("/")[1]
    shop.let_go()
    until(lambda: shop.counts()["succeeded"] == 1, "it to end: the lease was kept")
    until(lambda: not daemon.ask("/readyz?verbose")[1]["blocked"], "nobody to be blocked")
    assert daemon.stop() == 0


def test_a_worker_stuck_longer_than_an_attempt_may_take_is_replaced(shop: Shop) -> None:
    daemon = shop.run("--workers", "1", TODOKU_MAX_PROCESSING_SEC="2")
    shop.enqueue("blocking")
    until(lambda: shop.noted("blocking begins"), "it to begin")
    until(lambda: daemon.events("WORKER_DIED"), "the stuck worker to be ended")
    shop.let_go()
    until(lambda: shop.counts()["succeeded"] == 1, "another one to run it")
    assert daemon.stop() == 0


def test_a_frozen_worker_is_ended_when_its_lease_has(sqlite_shop: Shop) -> None:
    """A zombie is not left to wake up later: it is killed and replaced."""
    sqlite_shop.box.migrate()
    daemon = sqlite_shop.run(TODOKU_LEASE_SEC="3")
    (worker,) = daemon.workers()
    os.kill(worker["pid"], signal.SIGSTOP)
    until(lambda: daemon.events("WORKER_SILENT"), "it to be missed")
    until(lambda: not alive(worker["pid"]), "it to be ended")
    sqlite_shop.enqueue("quick", 1)
    until(lambda: sqlite_shop.noted("quick 1"), "its successor to work")
    assert daemon.stop() == 0


def test_a_worker_that_is_told_to_stop_by_hand_is_replaced(sqlite_shop: Shop) -> None:
    sqlite_shop.box.migrate()
    daemon = sqlite_shop.run()
    (worker,) = daemon.workers()
    os.kill(worker["pid"], signal.SIGTERM)
    until(lambda: [w for w in daemon.workers() if w["pid"] not in (0, worker["pid"])], "its successor")
    daemon.until_ready()
    assert daemon.stop() == 0


def test_two_daemons_may_run_on_one_file(sqlite_shop: Shop) -> None:
    """`run`, unlike `up`."""
    sqlite_shop.box.migrate()
    daemons = [sqlite_shop.run() for _ in range(2)]
    for n in range(20):
        sqlite_shop.enqueue("quick", n)
    until(lambda: sqlite_shop.counts()["succeeded"] == 20, "all to arrive")
    assert len(sqlite_shop.noted("quick")) == 20
    assert [daemon.stop() for daemon in daemons] == [0, 0]


def test_what_workers_count_is_added_up_and_does_not_go_back_when_one_dies(shop: Shop) -> None:
    """§8: `/metrics`."""
    daemon = shop.run("--workers", "1")

    def done() -> float:
        text = daemon.ask("/metrics")[1]
        (line,) = [line for line in text.splitlines() if line.startswith('outbox_processed_total{outcome="done"}')]
        return float(line.split()[-1])

    for n in range(10):
        shop.enqueue("quick", n)
    until(lambda: done() == 10, "ten to be counted")
    (worker,) = daemon.workers()
    os.kill(worker["pid"], signal.SIGKILL)
    until(lambda: daemon.events("WORKER_DIED"), "its death to be noticed")
    assert done() == 10
    shop.enqueue("quick", 10)
    until(lambda: done() == 11, "the eleventh")
    until(lambda: "outbox_lag_events 0.0" in daemon.ask("/metrics")[1], "the database's own numbers")
    assert daemon.stop() == 0


def test_steps_of_runs_are_counted_over_all_workers_and_so_are_the_runs_that_wait(shop: Shop) -> None:
    """§8: `/metrics`; the signal is counted where it is sent, the rest in the workers."""

    @shop.box.workflow("walk")
    async def walk(ctx: todoku.Flow, steps: int) -> None: ...

    daemon = shop.run("--workers", "2")
    runs = [walk.start(3) for _ in range(20)]

    def shown(*metrics: str) -> bool:
        page = daemon.ask("/metrics")[1].splitlines()
        return all(metric in page for metric in metrics)

    steps = 'flow_steps_total{kind="step",outcome="done"} 60.0'
    until(
        lambda: shown(steps, "flow_step_seconds_count 60.0", 'flow_parked_runs{waits_for="signal"} 20.0'),
        "the steps, and the runs that wait",
    )
    for worker in daemon.workers():
        os.kill(worker["pid"], signal.SIGKILL)
    until(lambda: len(daemon.events("WORKER_DIED")) == 2, "their deaths to be noticed")
    for run in runs:
        shop.box.signal(run, "home", tx=None)
    until(lambda: shown(steps, 'flow_signals_total{state="taken"} 20.0', "flow_woken_total 20.0"), "the signals")
    assert daemon.stop() == 0
