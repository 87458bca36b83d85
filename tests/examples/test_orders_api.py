"""examples/orders over HTTP: what is accepted, what a repeat is told, what is refused and how (S0-1, S0-24, S0-55)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from orders_example.application import Application
from orders_example.rate import Rate

from tests.examples.orders_at_work import KEY, ORDER, Desk, ledger, orders_at, outbox, rows


@pytest.fixture
def orders(url: str) -> Iterator[Application]:
    with orders_at(url) as application:
        yield application


@pytest.fixture
def alone(sqlite_url: str) -> Iterator[Application]:
    """Where the database makes no difference."""
    with orders_at(sqlite_url) as application:
        yield application


def problem(answer: httpx.Response) -> tuple[int, str]:
    """An error is a problem document that also carries `error`."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    document = answer.json()
    assert {"type", "title", "status", "detail", "error"} <= document.keys()
    assert document["status"] == answer.status_code
    return answer.status_code, document["error"]


async def test_the_first_is_accepted_and_a_repeat_is_told_what_is_known(orders: Application) -> None:
    desk = Desk(orders)
    first = await desk.post(ORDER)
    assert (first.status_code, first.json()["status"]) == (201, "accepted")
    assert (ledger(orders)[:2], outbox(orders)) == (("accepted", 201), ("pending", 0, None))
    again = await desk.post(ORDER)
    assert (again.status_code, again.json()) == (200, first.json())
    await orders.box.adrain()
    over = await desk.post(ORDER)
    assert (over.status_code, over.json()["status"]) == (200, "ok")
    assert over.json() == ledger(orders)[2]
    assert rows(orders, "select count(*) from outbox_orders") == [(1,)]


async def test_what_is_spelled_differently_is_the_same_order(orders: Application) -> None:
    spelled = (
        f'{{"trace_id": "t-1", "time_in_force": "IOC", "tags": [], "price": 1.875e2, "qty": 3.0, "side": "\\u0042UY",'
        f' "requested_at": "2026-11-16T18:00:00+09:00", "instrument": "AAPL", "order_id": "o-1",'
        f' "risk_constraints": null, "idempotency_key": "{KEY}"}}'
    )
    desk = Desk(orders)
    assert [(await desk.post(body, f'"{KEY}"')).status_code for body in (ORDER, spelled)] == [201, 200]


async def test_another_order_with_the_key_is_a_conflict_whatever_became_of_the_first(orders: Application) -> None:
    """S0-55."""
    desk = Desk(orders)
    await desk.post(ORDER)
    assert problem(await desk.post(ORDER | {"qty": 4})) == (409, "IDEMPOTENCY_CONFLICT")
    await orders.box.adrain()
    assert problem(await desk.post(ORDER | {"tags": ["x"]})) == (409, "IDEMPOTENCY_CONFLICT")
    assert rows(orders, "select count(*) from outbox_orders") == [(1,)]


@pytest.mark.parametrize("key", [None, "", "another-key-1", KEY.upper()])
async def test_the_header_is_required_and_the_orders_own_key(alone: Application, key: str | None) -> None:
    assert problem(await Desk(alone).post(ORDER, key)) == (422, "IDEMPOTENCY_MISMATCH")
    assert rows(alone, "select count(*) from idempo_ledger") == [(0,)]


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"instrument": "aapl"}, "instrument"),
        ({"instrument": "AA"}, "instrument"),
        ({"instrument": "A" * 21}, "instrument"),
        ({"instrument": "AAPL\n"}, "instrument"),
        ({"instrument": "MSFT"}, "instrument"),
        ({"side": "HOLD"}, "side"),
        ({"qty": 0}, "qty"),
        ({"qty": -1}, "qty"),
        ({"qty": "3"}, "qty"),
        ({"qty": True}, "qty"),
        ({"qty": 1.5}, "qty"),
        ({"instrument": "BTC-USD", "qty": 0.0015}, "qty"),
        ({"price": 0}, "price"),
        ({"time_in_force": "DAY"}, "time_in_force"),
        ({"tags": ["x"] * 9}, "tags"),
        ({"tags": ["x" * 33]}, "tags[0]"),
        ({"tags": ["\x00"]}, "tags[0]"),
        ({"risk_constraints": {"max_notional": 0}}, "risk_constraints.max_notional"),
        ({"risk_constraints": {"max_notional": 500}}, "risk_constraints.max_notional"),
        ({"risk_constraints": {"colour": "red"}}, "risk_constraints"),
        ({"order_id": ""}, "order_id"),
        ({"requested_at": "2026-11-16T09:00:00"}, "requested_at"),
        ({"requested_at": "yesterday"}, "requested_at"),
        ({"trace_id": 7}, "trace_id"),
        ({"idempotency_key": "short-1"}, "idempotency_key"),
        ({"idempotency_key": "x" * 65}, "idempotency_key"),
        ({"broker_token": "sesame"}, "broker_token"),
    ],
)
async def test_what_makes_no_sense_is_refused_by_its_field_and_nothing_is_stored(
    alone: Application, changed: dict[str, Any], field: str
) -> None:
    body = ORDER | changed
    answer = await Desk(alone).post(body, body["idempotency_key"])
    assert problem(answer) == (422, "VALIDATION_ERROR")
    assert [each["field"] for each in answer.json()["errors"]] == [field]
    assert rows(alone, "select (select count(*) from idempo_ledger), (select count(*) from outbox_orders)") == [(0, 0)]


@pytest.mark.parametrize("missing", [name for name in ORDER if name != "price"])
async def test_what_is_required_must_be_there(alone: Application, missing: str) -> None:
    answer = await Desk(alone).post({name: value for name, value in ORDER.items() if name != missing})
    assert problem(answer) == (422, "VALIDATION_ERROR")
    assert [each["field"] for each in answer.json()["errors"]] == [missing]


@pytest.mark.parametrize("body", ["", "{", "[]", "null", "[" * 10_000, '{"a": "\\ud800"}', b"\xff"])
async def test_what_is_no_order_at_all_is_refused(alone: Application, body: str | bytes) -> None:
    assert problem(await Desk(alone).post(body)) == (422, "VALIDATION_ERROR")


async def test_a_body_without_end_is_not_read_to_its_end(alone: Application) -> None:
    assert problem(await Desk(alone).post(json.dumps(ORDER) + " " * 70_000)) == (413, "VALIDATION_ERROR")


async def test_over_sixty_requests_in_a_minute_a_client_has_to_wait(alone: Application) -> None:
    desk = Desk(alone)
    answers = [await desk.post("no order") for _ in range(61)]
    assert [answer.status_code for answer in answers] == [422] * 60 + [429]
    assert problem(answers[-1]) == (429, "RATE_LIMITED")
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 60


def test_the_minute_slides_and_each_client_has_its_own() -> None:
    now = [0.0]
    rate = Rate(2, lambda: now[0])
    assert [rate.wait("ada"), rate.wait("ada"), rate.wait("bob")] == [0, 0, 0]
    now[0] = 30.0
    assert (rate.wait("ada"), rate.wait("bob")) == (30, 0)
    now[0] = 60.0
    assert (rate.wait("ada"), rate.wait("ada"), rate.wait("ada")) == (0, 0, 60)


async def test_ledger_and_outbox_row_are_one_commit(orders: Application) -> None:
    """I2, and 5xx mapped: where the row cannot be written, the key is not taken either."""
    rows(orders, "alter table todoku_delivery rename to away")
    answer = await Desk(orders).post(ORDER)
    assert problem(answer) == (503, "INTERNAL_ERROR")
    assert "retry-after" in answer.headers
    assert rows(orders, "select count(*) from todoku_ledger") == [(0,)]
    rows(orders, "alter table away rename to todoku_delivery")
    assert (await Desk(orders).post(ORDER)).status_code == 201


async def test_with_the_outbox_switched_off_orders_are_still_accepted(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S0-85, but for its default: off in the seed, on in todoku (docs/settings.md)."""
    monkeypatch.setenv("OUTBOX_ENABLED", "false")
    with orders_at(url) as orders:
        assert (await Desk(orders).post(ORDER)).status_code == 201
        await orders.box.adrain()
        assert outbox(orders) == ("pending", 0, None)
    monkeypatch.setenv("OUTBOX_ENABLED", "true")
    with orders_at(url) as orders:
        await orders.box.adrain()
        assert outbox(orders) == ("succeeded", 1, None)


async def test_another_path_or_method_is_a_problem_too(alone: Application) -> None:
    transport = httpx.ASGITransport(Desk(alone)._api)
    async with httpx.AsyncClient(transport=transport, base_url="http://orders") as client:
        assert problem(await client.get("/nowhere")) == (404, "NOT_FOUND")
        assert problem(await client.get("/do/order")) == (405, "METHOD_NOT_ALLOWED")
        await client.post("/do/order", content="no order")
        assert 'order_requests_total{status="422"} 1.0' in (await client.get("/metrics")).text
