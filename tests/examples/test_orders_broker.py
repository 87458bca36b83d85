"""The brokers of examples/orders: at least once out, exactly once in effect (S0-2, S0-3, S0-93)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from orders_example.broker.http import HttpAdapter
from orders_example.broker.paper import PaperAdapter
from orders_example.broker.scenario import Scenario, Step, read_scenario
from orders_example.broker.server import Exchange, read_log
from orders_example.reasons import AdapterError, Reason, reason_code_from, reason_of_end
from orders_example.settings import read_settings

import todoku as product
from tests.examples.orders_at_work import KEY, an_order, broker_at, ledger, orders_at, outbox, rows
from tests.support.ports import free_port

TOKEN = "open-sesame"


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_TOKEN", TOKEN)
    monkeypatch.setenv("OUTBOX_BACKOFF_SEC", "0")
    monkeypatch.setenv("OUTBOX_MAX_ATTEMPTS", "2")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[str]:
    with broker_at(tmp_path, TOKEN) as url:
        yield url


def adapter(url: str, ref: str = "env:BROKER_TOKEN") -> HttpAdapter:
    return HttpAdapter(url, product.Ref(ref))


async def reason(adapter: HttpAdapter, **changed: object) -> Reason:
    with pytest.raises(AdapterError) as refused:
        await adapter.send(an_order(**changed))
    return refused.value.reason


async def test_the_same_key_is_the_same_order_also_at_the_same_moment(broker: str, tmp_path: Path) -> None:
    answers = await asyncio.gather(*(adapter(broker).send(an_order()) for _ in range(8)))
    assert len({answer.order_ref for answer in answers}) == 1
    assert [noted.event for noted in read_log(tmp_path / "broker.jsonl")] == ["order", *["repeat"] * 7]
    assert await reason(adapter(broker), qty=4) is Reason.IDEMPOTENCY_CONFLICT


async def test_a_broker_that_is_started_again_knows_what_it_did(tmp_path: Path) -> None:
    log = tmp_path / "broker.jsonl"
    first = await Exchange(PaperAdapter(Scenario()), log).execute(an_order(), 1)
    with log.open("ab") as file:
        file.write(b'{"event": "order", "at"')  # it was killed here
    again = await Exchange(PaperAdapter(Scenario()), log).execute(an_order(), 2)
    assert (again, [noted.event for noted in read_log(log)]) == (first, ["order", "repeat"])


async def test_what_a_broker_answers_has_its_reason(tmp_path: Path) -> None:
    scenario = "AAPL=reject;USDJPY=invalid;BTC-USD=down;7203.T=error"
    with broker_at(tmp_path, TOKEN, scenario) as url:
        sender = adapter(url)
        assert [await reason(sender, instrument=each, qty=1000, idempotency_key=f"key-of-{each}") for each in
                ("AAPL", "USDJPY", "BTC-USD", "7203.T")] == [
            Reason.BROKER_REJECTED, Reason.VALIDATION_ERROR, Reason.BROKER_DOWN, Reason.INTERNAL_ERROR,
        ]  # fmt: skip
        assert await reason(adapter(url, "env:HOME")) is Reason.INTERNAL_ERROR, "a wrong credential is our fault"
    assert await reason(adapter(f"http://127.0.0.1:{free_port()}")) is Reason.BROKER_DOWN


def test_whatever_is_raised_has_a_reason() -> None:
    """S0-47."""
    raised = (TimeoutError(), ConnectionRefusedError(), ValueError(), AdapterError())
    assert [reason_code_from(error) for error in raised] == [
        Reason.BROKER_TIMEOUT, Reason.BROKER_DOWN, Reason.INTERNAL_ERROR, Reason.INTERNAL_ERROR,
    ]  # fmt: skip
    assert [reason_of_end(each) for each in ("BAD_PAYLOAD", "EXPIRED", None, "BROKER_DOWN")] == [
        Reason.VALIDATION_ERROR, Reason.INTERNAL_ERROR, Reason.INTERNAL_ERROR, Reason.BROKER_DOWN,
    ]  # fmt: skip


def test_credentials_come_from_where_the_worker_runs_and_are_in_no_message(broker: str, url: str) -> None:
    """S0-93: the order is executed, and nothing in the database knows the token."""
    with orders_at(url, broker_url=broker) as orders:
        orders.accepting.accept(an_order())
        orders.box.drain()
        assert (ledger(orders)[:2], outbox(orders)[0]) == (("succeeded", 200), "succeeded")
        kept = [rows(orders, f"select * from {table}") for table in
                ("todoku_message", "todoku_ledger", "todoku_attempt", "todoku_result")]  # fmt: skip
        assert KEY in str(kept)
        assert TOKEN not in str(kept)


def test_a_secret_that_is_not_there_is_worth_another_attempt(
    broker: str, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BROKER_TOKEN")
    with orders_at(sqlite_url, broker_url=broker) as orders:
        orders.accepting.accept(an_order())
        orders.box.drain()
        assert outbox(orders) == ("aborted", 2, "INTERNAL_ERROR")


def test_a_scenario_is_read_and_its_last_step_stays() -> None:
    scenario = read_scenario("AAPL=down, latency:250 ,fill;BTC-USD=partial:30")
    assert [scenario.step("AAPL", n) for n in range(4)] == [
        Step("down"), Step("latency", 250), Step("fill"), Step("fill"),
    ]  # fmt: skip
    assert (scenario.step("BTC-USD", 0), scenario.step("USDJPY", 0)) == (Step("partial", 30), Step("fill"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("INSTRUMENTS", "AAPL"), ("INSTRUMENTS", "AAPL=0"), ("INSTRUMENTS", "AAPL=nan"), ("BROKER_TIMEOUT_MS", "soon"),
        ("BROKER_TIMEOUT_MS", "0"), ("ORDERS_PER_MINUTE", "-1"),
    ],
)  # fmt: skip
def test_a_setting_that_cannot_be_is_refused_by_its_name(name: str, value: str) -> None:
    with pytest.raises(product.InvalidSetting, match=name):
        read_settings({name: value})


def test_a_scenario_that_cannot_be_is_refused() -> None:
    with pytest.raises(product.InvalidSetting, match="PAPER_SCENARIO cannot have 'explode'"):
        read_scenario("AAPL=explode")


def test_the_settings_are_the_seeds() -> None:
    """S0-92."""
    settings = read_settings({})
    assert (settings.broker_timeout, settings.orders_per_minute, settings.broker_url) == (2.5, 60, None)
    assert read_settings({"BROKER_TIMEOUT_MS": "100"}).broker_timeout == 0.1
