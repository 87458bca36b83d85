"""Seed 000, §7: every manual operation as README.md types it, and the document's own SELECTs on its own table names."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from orders_example.application import Application
from orders_example.broker import Execution
from orders_example.order import ORDERS, TOPIC, Order
from orders_example.reasons import AdapterError, Reason

from tests.examples.orders_at_work import KEY, an_order, ledger, orders_at, outbox, rows, todoku
from todoku import IdempotencyConflict
from todoku.core.decision import SUCCEEDED
from todoku.store.database import Slice

README = Path(__file__).resolve().parents[2] / "examples" / "orders" / "README.md"
TYPED = re.findall(r"^todoku (.+?)(?: +#.*)?$", README.read_text("utf-8"), re.MULTILINE)

OUTBOX_COLUMNS = (
    "id", "idempotency_key", "order_request_json", "request_digest", "status", "attempts", "last_error_code",
    "last_error_msg", "locked_by", "locked_at", "next_run_at", "created_at", "updated_at", "expires_at",
)  # fmt: skip
OUTBOX_TYPES = (
    "int8", "text", "jsonb", "text", "text", "int4", "text", "text", "text", *["timestamptz"] * 5,
)  # fmt: skip
LEDGER_COLUMNS = ("idempotency_key", "request_digest", "status", "http_status", "response_payload_json")


@pytest.fixture
def orders(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Application]:
    """One order has succeeded, one is a dead letter, one waits."""
    monkeypatch.setenv("OUTBOX_MAX_ATTEMPTS", "1")
    with orders_at(url, scenario="BTC-USD=down,fill") as application:
        application.accepting.accept(an_order())
        application.accepting.accept(an_order(idempotency_key="dead-order-1", instrument="BTC-USD"))
        application.box.drain()
        application.accepting.accept(an_order(idempotency_key="open-order-1"))
        yield application


def the_dead(orders: Application) -> int:
    return int(rows(orders, "select id from outbox_orders where idempotency_key = 'dead-order-1'")[0][0])


def typed(orders: Application, command: str) -> str:
    """A line of README.md, about the dead letter."""
    (line,) = [line for line in TYPED if line.startswith(command)]
    words = shlex.split(line.replace("ID", str(the_dead(orders))).replace("KEY", "dead-order-1"))
    return todoku(orders, *words)


def test_every_command_of_the_readme_is_typed_here() -> None:
    assert [line.split()[0] for line in TYPED] == [
        "stats", "list", "show", "ledger", "release-expired", "limit", "limit", "replay", "replay", "settle",
    ]  # fmt: skip


def test_looking(orders: Application) -> None:
    """S0-68."""
    assert re.search(r"^all +1 +0 +\d+ +0 +1 *$", typed(orders, "stats"), re.MULTILINE)
    assert f"{the_dead(orders)} " in typed(orders, "list")
    assert "BROKER_DOWN" in typed(orders, "show")
    assert re.search(r"^state +failed$", typed(orders, "ledger"), re.MULTILINE)


class Busy:
    """A broker that counts how many orders it has at once, and asks something while it has one."""

    name = "busy"

    def __init__(self) -> None:
        self.here, self.most, self.executed = 0, 0, 0
        self.asks: Callable[[], Any] = lambda: None
        self.answers: list[Any] = []
        self.fails: Exception | None = None

    async def send(self, order: Order) -> Execution:
        self.here += 1
        self.most = max(self.most, self.here)
        self.answers.append(self.asks())
        await asyncio.sleep(0.05)
        self.here -= 1
        if self.fails is not None:
            raise self.fails
        self.executed += 1
        return Execution(order_ref=f"B-{order.idempotency_key}", fills=())


def test_slowing_down(orders: Application) -> None:
    """S0-61: orders go one by one while the limit is there, and several at once when it is not."""
    most: list[int] = []
    for turn in ("--concurrency 1", "--off"):
        typed(orders, f"limit orders --of destination {turn}")
        for number in range(6):
            orders.accepting.accept(an_order(idempotency_key=f"order-{len(most)}-{number}"))
        orders.sending._adapter = busy = Busy()
        orders.box.drain()
        most.append(busy.most)
        assert busy.executed >= 6
    assert most[0] == 1
    assert most[1] > 1
    assert rows(orders, "select count(*) from todoku_audit where action like 'limit to 1 at once%'") == [(1,)]


def test_freeing_what_a_dead_worker_holds(orders: Application) -> None:
    """S0-69: nothing while its lease lasts; then its order is pending again, and is sent by whoever comes."""
    store = orders.box.store
    dead = uuid4()
    store.leases.register(dead, name="dead:1", lease=3600)
    (place,) = [place for place in store.claims.waiting(None).groups if place[1] == ORDERS]
    (claim,) = store.claims.take(dead, [Slice(*place[:3], most=1)], limit=1)
    assert typed(orders, "release-expired") == "freed 0 deliveries of 0 expired leases\n"
    assert outbox(orders, "open-order-1") == ("sending", 1, None)
    rows(orders, "update todoku_worker set expires_at = started_at where name = 'dead:1'")
    assert typed(orders, "release-expired") == "freed 1 deliveries of 1 expired leases\n"
    assert outbox(orders, "open-order-1") == ("pending", 0, None)
    assert store.claims.settle([(claim, SUCCEEDED)]).lost == (claim,), "the dead one's token works no more"
    orders.box.drain()
    assert outbox(orders, "open-order-1") == ("succeeded", 1, None)


WAITS = {
    "sqlite": "(julianday(next_run_at) - julianday(updated_at)) * 86400 + 0.001",  # shown in milliseconds
    "postgres": "extract(epoch from next_run_at - updated_at)",
}
LEFT = {
    "sqlite": "expires_at / 1e6 - (julianday('now') - 2440587.5) * 86400",
    "postgres": "extract(epoch from expires_at - statement_timestamp())",
}


def test_a_shorter_lease(url: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S0-59: with `OUTBOX_LOCK_LEASE_SEC=30`, as README.md says, no more than that is ever left of a worker's lease."""
    assert "`OUTBOX_LOCK_LEASE_SEC=30`" in README.read_text("utf-8")
    monkeypatch.setenv("OUTBOX_LOCK_LEASE_SEC", "30")
    with orders_at(url) as orders:
        orders.accepting.accept(an_order())
        orders.sending._adapter = busy = Busy()
        busy.asks = lambda: rows(orders, f"select {LEFT[backend]} from todoku_worker")
        orders.box.drain()
    assert busy.executed == 1
    assert [0 < float(left) <= 30.1 for ((left,),) in busy.answers] == [True]


@pytest.mark.parametrize("command", ["replay ID", "replay --reason"])
def test_requeueing(orders: Application, command: str) -> None:
    """S0-64, S0-65, S0-70: pending, attempts 0, the errors cleared; then it succeeds."""
    assert "changed 1 of 1" in typed(orders, command)
    assert rows(
        orders,
        "select status, attempts, last_error_code, last_error_msg from outbox_orders"
        " where idempotency_key = 'dead-order-1'",
    ) == [("pending", 0, None, None)]
    orders.box.drain()
    assert (outbox(orders, "dead-order-1")[0], ledger(orders, "dead-order-1")[0]) == ("succeeded", "succeeded")


def test_settling_by_hand(orders: Application) -> None:
    """S0-67."""
    typed(orders, "settle")
    orders.box.drain()
    assert (outbox(orders, "dead-order-1")[0], ledger(orders, "dead-order-1")[0]) == ("succeeded", "succeeded")


def test_the_outbox_has_the_seeds_columns_and_types(orders: Application, backend: str) -> None:
    """S0-8 … S0-21, by their names, and on PostgreSQL by their types; S0-9, S0-31: a key has one row."""
    if backend == "sqlite":
        columns = [(name, "") for (name,) in rows(orders, "select name from pragma_table_info('outbox_orders')")]
        assert columns == [(name, "") for name in OUTBOX_COLUMNS]
    else:
        columns = rows(orders, "select column_name, udt_name from information_schema.columns"
                               " where table_name = 'outbox_orders' order by ordinal_position")  # fmt: skip
        assert columns == list(zip(OUTBOX_COLUMNS, OUTBOX_TYPES, strict=True))
    order, another = (an_order(idempotency_key="one-row-1", qty=qty) for qty in (3, 4))
    assert [orders.accepting.accept(order).status for _ in range(2)] == [201, 200]
    for _ in range(2):  # while it waits, and when it has succeeded
        with pytest.raises(IdempotencyConflict):
            orders.accepting.accept(another)
        assert orders.box.publish(TOPIC, order, tx=None, key="one-row-1", idempotency_key="one-row-1").duplicate
        assert rows(orders, "select count(*) from outbox_orders where idempotency_key = 'one-row-1'") == [(1,)]
        orders.box.drain()


def test_a_row_says_who_holds_it_and_then_when_it_is_due(
    url: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S0-16, S0-17, S0-37: locked by `hostname:pid` while it is sent; S0-21, S0-53: then unlocked until next_run_at."""
    monkeypatch.setenv("OUTBOX_BACKOFF_SEC", "3600")
    with orders_at(url) as orders:
        orders.accepting.accept(an_order())
        orders.sending._adapter = busy = Busy()
        busy.asks = lambda: rows(orders, "select status, locked_by, locked_at is not null from outbox_orders")
        busy.fails = AdapterError(Reason.BROKER_DOWN, "x" * 600)
        orders.box.drain()
        assert busy.answers == [[("sending", f"{socket.gethostname()}:{os.getpid()}", True)]]
        ((status, code, text, by, at, waits),) = rows(
            orders,
            "select status, last_error_code, last_error_msg, locked_by, locked_at,"
            f" {WAITS[backend]} from outbox_orders",
        )
        assert (status, code, len(text), by, at) == ("failed", "BROKER_DOWN", 512, None, None)
        assert 3600 <= float(waits) <= 3961, "the back-off, and a tenth at most"


def test_the_seeds_selects_run_as_they_are_printed(orders: Application, backend: str) -> None:
    """S0-68, and the conditions of S0-34 and S0-69."""
    counted = rows(orders, "SELECT status, count(*) FROM outbox_orders GROUP BY 1;")
    assert sorted(counted) == [("aborted", 1), ("pending", 1), ("succeeded", 1)]
    if backend == "postgres":  # the conditions of its claim and its lock release: SQLite has no now()
        due = rows(
            orders,
            "SELECT id FROM outbox_orders WHERE status = 'pending' AND (next_run_at IS NULL OR next_run_at <= now())"
            " ORDER BY created_at",
        )
        assert len(due) == 1
        assert (
            rows(
                orders,
                "SELECT id FROM outbox_orders WHERE status='sending' AND locked_at < now() - interval '120 seconds'",
            )
            == []
        )


def test_the_views_have_the_seeds_columns_and_one_row_for_each_order(orders: Application) -> None:
    for view, columns in (("outbox_orders", OUTBOX_COLUMNS), ("idempo_ledger", LEDGER_COLUMNS)):
        found = rows(orders, f"select {', '.join(columns)} from {view} order by idempotency_key")
        assert [row[columns.index("idempotency_key")] for row in found] == ["dead-order-1", "open-order-1", KEY]
    same = "select count(*) from outbox_orders o join idempo_ledger l using (idempotency_key)"
    assert rows(orders, f"{same} where o.request_digest = l.request_digest") == [(3,)]


@pytest.mark.parametrize("view", ["outbox_orders", "idempo_ledger"])
def test_the_views_are_read_only(orders: Application, view: str) -> None:
    with pytest.raises(Exception, match=rf"cannot (modify|update) (view )?.?{view}"):
        rows(orders, f"update {view} set status = 'pending'")
