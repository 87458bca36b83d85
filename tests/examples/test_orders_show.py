"""The show of examples/orders, small. `make example-orders-chaos` kills 50."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from orders_example.broker import Execution
from orders_example.broker.server import Noted, read_log
from orders_example.chaos.show import AT_ONCE, Client, order, shown
from orders_example.chaos.verdict import judged

from tests.daemon.running import PATIENCE, until
from tests.examples.orders_at_work import KEY, an_order
from tests.support.ports import free_port

KILLS = int(os.environ.get("TODOKU_TEST_ORDER_KILLS", "5"))
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "orders"


@pytest.mark.slow
def test_it_starts_by_one_command_takes_an_order_and_stops_by_ctrl_c(tmp_path: Path) -> None:
    """`make example NAME=orders`, without the make."""
    port, out = free_port(), tmp_path / "out"
    ports = {"PORT": str(port), "BROKER_PORT": str(free_port()), "TODOKU_PORT": str(free_port())}
    environ = os.environ | {"PYTHONPATH": str(EXAMPLE)} | ports
    with out.open("wb") as said:
        example = subprocess.Popen([sys.executable, "-m", "orders_example"], cwd=tmp_path, env=environ, stdout=said)
    try:
        until(lambda: b"Ctrl-C stops all" in out.read_bytes() or example.poll() is not None, "its greeting")
        with closing(Client(port)) as client:
            assert client.post(order(KEY)) == 201
            assert client.post(order(KEY)) == 200
        until(lambda: read_log(tmp_path / "broker.jsonl"), "the order at the broker")
        example.send_signal(signal.SIGINT)
        assert example.wait(PATIENCE) == 0
    finally:
        example.kill()
        example.wait()
    assert [noted.key for noted in read_log(tmp_path / "broker.jsonl")] == [KEY]


@pytest.mark.crash
@pytest.mark.slow
def test_of_64_identical_orders_one_is_accepted_and_the_brokers_log_agrees_whoever_is_killed(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I6, I13, W-103: at least once out, exactly once in effect."""
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLE))
    monkeypatch.setattr("orders_example.chaos.show.free_port", free_port)
    verdict = shown(tmp_path, url, kills=KILLS, workers=3)
    assert verdict.problems == ()
    assert verdict.at_once == {201: 1, 200: AT_ONCE - 1}
    assert (verdict.other, verdict.kills) == (409, KILLS)
    assert verdict.executed == verdict.accepted > 1


def test_the_verdict_finds_what_is_lost_doubled_or_told_wrongly() -> None:
    """A judge that never finds anything judges nothing."""

    def noted(key: str, worker: int, event: str = "order", ref: str = "P-1") -> Noted:
        return Noted(
            event=event, at=time.time(), key=key, worker=worker, order=an_order(idempotency_key=key),  # type: ignore[arg-type]
            execution=Execution(order_ref=ref, fills=()),
        )  # fmt: skip

    log = [noted("good-one-1", 1), noted("good-one-1", 2, "repeat"), noted("doubled-1", 1), noted("doubled-1", 2),
           noted("nobodys-1", 2), noted("again-and-1", 2), noted("again-and-1", 2, "repeat")]  # fmt: skip
    posted = {"good-one-1", "doubled-1", "again-and-1", "missing-1"}
    told = json.dumps({"broker": {"order_ref": "P-1"}})
    other = told.replace("P-1", "X")
    entries = [("good-one-1", "succeeded", 200, told), ("doubled-1", "succeeded", 200, other),
               ("again-and-1", "failed", 503, told), ("missing-1", "succeeded", 200, told)]  # fmt: skip
    verdict = judged(posted, Counter({201: 2, 200: 62}), 200, log, [1], entries)
    assert verdict.problems == (
        "64 identical orders at once were answered {201: 2, 200: 62}",
        "another body with their key was answered 200",
        "missing-1 was accepted and never executed",
        "nobodys-1 was executed and never accepted",
        "doubled-1 was executed 2 times",
        "again-and-1 was sent again although worker 2 lives",
        "the ledger says X of doubled-1, the broker P-1",
        "the ledger says failed 503 of again-and-1",
    )
    assert (verdict.executed, verdict.repeats) == (5, 2)
