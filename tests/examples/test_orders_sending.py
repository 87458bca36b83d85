"""examples/orders and its broker: ledger and outbox from the first attempt to the last (seed 000, §4 to §7)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from orders_example.application import Application
from orders_example.broker import Execution
from orders_example.order import ORDERS, TOPIC, Order
from orders_example.reasons import HTTP_STATUS, TRANSIENT, AdapterError, Reason
from orders_example.result import DIGESTED
from orders_example.sending import time_limit

import todoku as product
from tests.engine.test_tracing import Traced, id_of, parent_of
from tests.examples.orders_at_work import KEY, ORDER, Desk, an_order, ledger, orders_at, outbox, rows, todoku
from tests.support.held import held_transactions


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a back-off here."""
    monkeypatch.setenv("OUTBOX_BACKOFF_SEC", "0")
    monkeypatch.setenv("OUTBOX_MAX_ATTEMPTS", "3")


@pytest.fixture
def orders(url: str) -> Iterator[Application]:
    with orders_at(url) as application:
        yield application


class Recording:
    """A broker that does what it is told, and remembers who asked."""

    name = "recording"

    def __init__(self, act: Any = None) -> None:
        self.sent: list[str] = []
        self._act = act or (lambda order: None)

    async def send(self, order: Order) -> Execution:
        self.sent.append(order.idempotency_key)
        self._act(order)
        return Execution(order_ref="R-1", fills=())


def with_broker(application: Application, broker: Recording) -> Recording:
    application.sending._adapter = broker
    return broker


# --------------------------------------------------------------------------------------------- the result


def test_W101_an_order_is_sent_and_its_result_keeps_the_contract(orders: Application) -> None:
    """S0-24 … S0-26, S0-45, S0-50, S0-103."""
    orders.accepting.accept(an_order(risk_constraints={"max_slippage": 0.001}))
    orders.box.drain()
    status, code, result = ledger(orders)
    assert (status, code, outbox(orders)) == ("succeeded", 200, ("succeeded", 1, None))
    assert result.keys() == {
        "status", "order_id", "instrument", "side", "requested_at", "completed_at", "trace_id", "idempotency_key",
        "fills", "executed_qty", "avg_price", "cost", "slippage", "broker", "latency_ms", "reason_code", "warnings",
        "result_digest",
    }  # fmt: skip
    assert {name: result[name] for name in ("order_id", "instrument", "side", "trace_id", "idempotency_key")} == {
        name: ORDER[name] for name in ("order_id", "instrument", "side", "trace_id", "idempotency_key")
    }
    assert (result["status"], result["reason_code"], result["warnings"]) == ("ok", None, ["MAX_SLIPPAGE_EXCEEDED"])
    assert datetime.fromisoformat(result["requested_at"]) <= datetime.fromisoformat(result["completed_at"])
    assert [(fill["px"], fill["qty"]) for fill in result["fills"]] == [(187.5, 1), (187.51, 2)]
    assert all(fill.keys() == {"px", "qty", "ts"} for fill in result["fills"])
    assert result["executed_qty"] == sum(fill["qty"] for fill in result["fills"]) == 3
    assert result["avg_price"] == pytest.approx((187.5 + 2 * 187.51) / 3)
    assert (result["cost"], result["slippage"]) == (0.1125, pytest.approx(result["avg_price"] - 187.5))
    assert result["broker"].keys() == {"name", "order_ref"}
    assert result["latency_ms"].keys() == {"queue", "broker_rtt", "total"}


def test_the_digest_is_of_what_two_results_of_one_order_must_agree_in(orders: Application) -> None:
    orders.accepting.accept(an_order())
    orders.box.drain()
    result = ledger(orders)[2]
    text = json.dumps({name: result[name] for name in DIGESTED}, sort_keys=True, separators=(",", ":"))
    assert result["result_digest"] == f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    assert set(DIGESTED) == {
        "status", "order_id", "instrument", "side", "executed_qty", "avg_price", "fills", "reason_code",
    }  # fmt: skip


def test_a_part_may_be_filled_but_not_of_what_is_all_or_nothing(url: str) -> None:
    with orders_at(url, scenario="AAPL=partial:50") as orders:
        for key, how in (("immediate-1", "IOC"), ("all-or-none-1", "FOK")):
            orders.accepting.accept(an_order(idempotency_key=key, time_in_force=how, qty=4, side="SELL"))
        orders.box.drain()
        some, none = ledger(orders, "immediate-1"), ledger(orders, "all-or-none-1")
    assert (some[1], some[2]["executed_qty"], some[2]["warnings"]) == (200, 2, ["PARTIAL_FILL"])
    assert (none[1], none[2]["reason_code"], none[2]["executed_qty"]) == (409, "BROKER_REJECTED", 0)


# ------------------------------------------------------------------------------------------------ failures


def test_the_table_of_statuses_is_the_seeds() -> None:
    """S0-51, and which reasons are worth another attempt."""
    assert {reason.value: status for reason, status in HTTP_STATUS.items()} == {
        "VALIDATION_ERROR": 422, "BROKER_REJECTED": 409, "BROKER_TIMEOUT": 504, "BROKER_DOWN": 503,
        "INTERNAL_ERROR": 500, "IDEMPOTENCY_CONFLICT": 409,
    }  # fmt: skip
    assert {reason.value for reason in TRANSIENT} == {"BROKER_TIMEOUT", "BROKER_DOWN", "INTERNAL_ERROR"}
    assert AdapterError().reason is Reason.INTERNAL_ERROR


@pytest.mark.parametrize(
    ("does", "reason", "status", "attempts"),
    [
        ("reject", "BROKER_REJECTED", 409, 1),
        ("invalid", "VALIDATION_ERROR", 422, 1),
        ("timeout", "BROKER_TIMEOUT", 504, 3),
        ("down", "BROKER_DOWN", 503, 3),
        ("error", "INTERNAL_ERROR", 500, 3),
    ],
)
async def test_an_order_that_fails_for_good_is_answered_so_again_and_again_and_never_sent_again(
    url: str, does: str, reason: str, status: int, attempts: int
) -> None:
    """S0-46 … S0-51: what is deterministic is tried once, what is transient until the attempts are used up."""
    with orders_at(url, scenario=f"AAPL={does}", broker_timeout=0.05 if does == "timeout" else 30) as orders:
        desk = Desk(orders)
        await desk.post(ORDER)
        await orders.box.adrain()
        assert outbox(orders) == ("aborted", attempts, reason)
        state, code, result = ledger(orders)
        assert (state, code, result["status"], result["reason_code"]) == ("failed", status, "error", reason)
        for _ in range(2):
            answer = await desk.post(ORDER)
            assert (answer.status_code, answer.json()) == (status, result)
        await orders.box.adrain()
        assert rows(orders, "select count(*) from outbox_orders") == [(1,)]
        assert outbox(orders) == ("aborted", attempts, reason)


def test_W102_a_timeout_then_success(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S0-27, S0-28, S0-96: failed until its back-off is over, and the ledger accepted; the second time it succeeds."""
    monkeypatch.setenv("OUTBOX_BACKOFF_SEC", "3600")
    with orders_at(url, scenario="AAPL=timeout,fill", broker_timeout=0.05) as orders:
        orders.accepting.accept(an_order())
        orders.box.drain()
        assert (ledger(orders)[:2], outbox(orders)) == (("accepted", 201), ("failed", 1, "BROKER_TIMEOUT"))
        assert orders.box.drain() == 0, "not before its back-off is over"
        rows(orders, "update todoku_delivery set next_run_at = claimed_at")  # an hour has passed
        orders.box.drain()
        assert (ledger(orders)[:2], outbox(orders)) == (("succeeded", 200), ("succeeded", 2, None))


def test_what_is_down_and_then_broken_is_tried_until_it_is_filled(url: str) -> None:
    """S0-27, S0-28, S0-60."""
    with orders_at(url, scenario="AAPL=down,error,fill") as orders:
        orders.accepting.accept(an_order())
        orders.box.drain()
        assert (ledger(orders)[:2], outbox(orders)) == (("succeeded", 200), ("succeeded", 3, None))


def test_I8_no_transaction_is_open_while_an_order_is_sent(orders: Application, backend: Any) -> None:
    """Somebody else can write and commit while the broker has the order, or sees no transaction that waits for it."""
    orders.accepting.accept(an_order())
    held: list[str] = []
    broker = with_broker(
        orders, Recording(lambda _order: held.extend(held_transactions(backend, orders.settings.database)))
    )
    orders.box.drain()
    assert (broker.sent, held, outbox(orders)[0]) == ([KEY], [], "succeeded")


def test_MEND_7_the_send_of_an_order_is_a_span_with_the_adapters_name_and_its_round_trip(url: str) -> None:
    """S0-83, S0-84: `broker.send` under `outbox.process`; a timeout is seen in it, the order is not."""
    traced = Traced()
    with orders_at(url, scenario="AAPL=timeout,fill", broker_timeout=0.05) as orders:
        orders.box.telemetry = traced.telemetry
        orders.accepting.accept(an_order())
        orders.box.drain()
        assert outbox(orders) == ("succeeded", 2, None)
    spans = traced.exporter.get_finished_spans()
    attempts = {id_of(span): span for span in spans if span.name == "outbox.process"}
    sends = [span for span in spans if span.name == "broker.send"]
    told = [dict(span.attributes or {}) for span in sends]
    assert [(each["adapter"], each["destination"], each["attempt"], each["outcome"]) for each in told] == [
        ("paper", "orders", 1, "error"), ("paper", "orders", 2, "done"),
    ]  # fmt: skip
    assert told[0]["error.type"] == "TimeoutError"
    assert float(str(told[0]["round_trip_ms"])) >= 50, "never less than the time limit"
    for span, attributes in zip(sends, told, strict=True):
        above = attempts[parent_of(span) or 0]
        assert (above.attributes or {})["attempt"] == attributes["attempt"]
    assert KEY not in "".join(span.to_json() for span in spans)


def test_an_order_to_be_filled_at_once_has_half_the_time() -> None:
    assert [time_limit(an_order(time_in_force=how), 2.5) for how in ("IOC", "FOK", "GTC")] == [2.5, 5.0, 5.0]


async def test_W104_what_was_given_up_is_requeued_by_hand_and_succeeds(url: str) -> None:
    """S0-64, S0-65, S0-98, S0-102: failed → accepted → succeeded, by replay only."""
    with orders_at(url, scenario="AAPL=down,down,down,fill") as orders:
        desk = Desk(orders)
        await desk.post(ORDER)
        await orders.box.adrain()
        assert (ledger(orders)[:2], outbox(orders)) == (("failed", 503), ("aborted", 3, "BROKER_DOWN"))
        ((id,),) = rows(orders, "select id from outbox_orders where status = 'aborted'")
        assert "changed 1 of 1" in todoku(orders, "replay", str(id), "--why", "the broker is back")
        assert (ledger(orders)[0], outbox(orders)) == ("accepted", ("pending", 0, None))
        answer = await desk.post(ORDER)
        assert (answer.status_code, answer.json()["status"]) == (200, "accepted")
        await orders.box.adrain()
        assert (ledger(orders)[:2], outbox(orders)) == (("succeeded", 200), ("succeeded", 1, None))
        assert (await desk.post(ORDER)).json()["status"] == "ok"


# ------------------------------------------------------------------------------- the ledger is told first


def test_W105_what_the_ledger_knows_to_be_done_is_not_sent_again(orders: Application) -> None:
    """I5, S0-33, S0-99: killed between the ledger and the row, the row is synchronised."""
    orders.accepting.accept(an_order())
    orders.box.ledger.conclude(KEY, scope=ORDERS, tx=None, response={"status": "ok"})
    broker = with_broker(orders, Recording())
    orders.box.drain()
    assert (broker.sent, outbox(orders)) == ([], ("succeeded", 1, None))
    assert ledger(orders) == ("succeeded", 200, {"status": "ok"})


def test_what_the_ledger_knows_to_have_failed_is_not_sent_again_either(orders: Application) -> None:
    """S0-48, S0-52: killed between the two, the row has the end that clients were told."""
    orders.accepting.accept(an_order())
    told = {"reason_code": "BROKER_TIMEOUT"}
    orders.box.ledger.conclude(KEY, scope=ORDERS, tx=None, response=told, status=504, ok=False)
    broker = with_broker(orders, Recording())
    orders.box.drain()
    assert (broker.sent, outbox(orders)) == ([], ("aborted", 1, "BROKER_TIMEOUT"))
    assert ledger(orders) == ("failed", 504, told)


FULL = {
    "sqlite": "create trigger full_disk before update on todoku_ledger when new.scope = 'once:orders'"
    " begin select raise(abort, 'disk full'); end",
    "postgres": "create function full_disk() returns trigger language plpgsql as $$ begin raise 'disk full'; end $$;"
    " create trigger full_disk before update on todoku_ledger for each row when (new.scope = 'once:orders')"
    " execute function full_disk()",
}
FREE = {"sqlite": "drop trigger full_disk", "postgres": "drop function full_disk cascade"}


def test_a_ledger_that_cannot_be_written_after_the_send_is_written_by_the_next_attempt(
    orders: Application, backend: str
) -> None:
    """S0-66: the order is sent again, and its broker knows it."""
    orders.accepting.accept(an_order())
    broker = with_broker(
        orders, Recording(lambda _order: rows(orders, (FULL if len(broker.sent) == 1 else FREE)[backend]))
    )
    orders.box.drain()
    assert (broker.sent, outbox(orders)) == ([KEY, KEY], ("succeeded", 2, None))
    assert ledger(orders)[:2] == ("succeeded", 200)


def test_another_order_in_the_ledger_is_a_conflict_and_the_ledger_is_left_alone(orders: Application) -> None:
    """S0-56, S0-57."""
    with orders.database.begin() as tx, orders.box.once(KEY, scope=ORDERS, tx=tx, body="another") as done:
        done.store({"status": "accepted"}, status=201, state="accepted")
    orders.box.publish(TOPIC, an_order(), tx=None, key=KEY, idempotency_key=KEY)
    broker = with_broker(orders, Recording())
    orders.box.drain()
    assert (broker.sent, outbox(orders)) == ([], ("aborted", 1, "IDEMPOTENCY_CONFLICT"))
    assert ledger(orders) == ("accepted", 201, {"status": "accepted"})


def test_a_worker_that_has_lost_the_order_does_not_fail_it(orders: Application) -> None:
    """I3: somebody else has it by now, and may succeed."""
    orders.accepting.accept(an_order())

    def lose(_order: Order) -> None:
        rows(orders, "update todoku_delivery set epoch = epoch + 1")
        raise AdapterError(Reason.BROKER_REJECTED)

    broker = with_broker(orders, Recording(lose))
    orders.box.drain()
    assert (broker.sent, ledger(orders)[0]) == ([KEY], "accepted")


# --------------------------------------------------------------------------- ends that no attempt has seen


@pytest.mark.parametrize("broken", ["not JSON", "another document"])
def test_a_row_that_cannot_be_read_is_aborted_before_anything_is_sent(
    orders: Application, backend: str, broken: str
) -> None:
    """S0-62. PostgreSQL keeps no broken JSON in the first place."""
    if broken == "not JSON" and backend == "postgres":
        orders.accepting.accept(an_order())
        with pytest.raises(Exception, match="invalid input syntax for type json"):
            rows(orders, "update todoku_message set payload = '{\"idem'")
        return
    orders.accepting.accept(an_order())
    rows(orders, "update todoku_message set payload = :text", text='{"idem' if broken == "not JSON" else '{"qty": 3}')
    broker = with_broker(orders, Recording())
    orders.box.drain()
    assert (broker.sent, outbox(orders)[0], outbox(orders)[2]) == ([], "aborted", "BAD_PAYLOAD")
    status, code, result = ledger(orders)
    assert (status, code, result["reason_code"], result["order_id"]) == ("failed", 422, "VALIDATION_ERROR", "o-1")


def test_an_order_that_is_cancelled_fails_and_one_that_is_replayed_meanwhile_does_not(orders: Application) -> None:
    """The hook tells the ledger, unless the end it is about was undone."""
    for key in ("cancelled-1", "replayed-1"):
        orders.accepting.accept(an_order(idempotency_key=key))
    with_broker(orders, Recording())
    assert "changed 2 of 2" in todoku(orders, "cancel", "--all", "--topic", TOPIC, "--why", "a mistake")
    assert "changed 1 of 1" in todoku(orders, "replay", "--all", "--key", "replayed-1", "--why", "it was none")
    orders.box.drain()
    status, code, result = ledger(orders, "cancelled-1")
    assert (status, code, result["reason_code"]) == ("failed", 500, "INTERNAL_ERROR")
    assert (ledger(orders, "replayed-1")[:2], outbox(orders, "replayed-1")[0]) == (("succeeded", 200), "succeeded")


def test_the_word_of_a_late_hook_counts_no_more_after_a_replay(orders: Application) -> None:
    """I9: accepted again stays accepted until the next end."""
    orders.accepting.accept(an_order())
    todoku(orders, "cancel", "--all", "--why", "a mistake")
    todoku(orders, "replay", "--all", "--why", "it was none")
    ((id,),) = rows(orders, "select id from outbox_orders")
    ending = product.Ending(
        message_id="01a1e246-1366-7cc5-a124-4e8b0a1f3548", delivery_id=id, topic=TOPIC, destination=ORDERS,
        queue=ORDERS, key=KEY, status=product.Status.ABORTED, reason="CANCELLED", error=None, attempts=0,
        replay_count=0, ended_at=datetime.now(UTC),
    )  # fmt: skip
    with orders.database.begin() as tx:
        orders.sending.ended(tx, ending)  # type: ignore[arg-type]
    assert ledger(orders)[0] == "accepted"


@pytest.mark.parametrize("given", [(), ("--result", '{"status": "ok", "by": "telephone"}')])
def test_an_order_settled_by_hand_is_settled_in_the_ledger(url: str, given: tuple[str, ...]) -> None:
    """S0-67: a dead letter of which somebody knows that the broker has done it."""
    with orders_at(url, scenario="AAPL=reject") as orders:
        orders.accepting.accept(an_order())
        orders.box.drain()
        assert ledger(orders)[:2] == ("failed", 409)
        ((id,),) = rows(orders, "select id from outbox_orders")
        todoku(orders, "settle", str(id), "--as", "succeeded", *given, "--why", "they say they have it")
        orders.box.drain()
        status, code, result = ledger(orders)
        assert (status, code, result["status"]) == ("succeeded", 200, "ok")
        assert result.get("by") == "telephone" if given else result["warnings"] == ["SETTLED_BY_HAND"]
        assert outbox(orders)[0] == "succeeded"
