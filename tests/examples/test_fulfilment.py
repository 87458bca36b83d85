"""The fulfilment example on each database: its API, its workflow, and what a killed worker leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fulfilment_example import orders
from fulfilment_example.api import make_api
from fulfilment_example.payments import FILE, payments
from fulfilment_example.shop import Shop

from todoku.testing import crash, lose_lease

ORDER = {"amount": 42, "skus": ["tea", "rice"]}


class AtWork:
    """A shop and a client of its API. Nothing runs by itself: `drain` does."""

    def __init__(self, shop: Shop) -> None:
        self.shop, self.box = shop, shop.box
        self._api = make_api(shop)

    def ask(self, method: str, path: str, body: object = None) -> httpx.Response:
        return asyncio.run(self._ask(method, path, body))

    async def _ask(self, method: str, path: str, body: object) -> httpx.Response:
        transport = httpx.ASGITransport(self._api)
        async with httpx.AsyncClient(transport=transport, base_url="http://fulfilment") as client:
            return await client.request(method, path, json=body)

    def order(self, **other: Any) -> dict[str, Any]:
        answer = self.ask("POST", "/orders", {**ORDER, **other})
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    def decide(self, order: int, *, approved: bool) -> int:
        return self.ask("POST", f"/orders/{order}/approval", {"by": "ana", "approved": approved}).status_code

    def shown(self, order: int) -> dict[str, Any]:
        return dict(self.ask("GET", f"/orders/{order}").json())

    def state(self, order: int) -> str:
        return str(self.shown(order)["state"])


@pytest.fixture
def at_work(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AtWork]:
    monkeypatch.setenv(FILE, str(tmp_path / "service.db"))
    made = Shop(url)
    made.prepare()
    yield AtWork(made)
    made.box.close()


def states() -> list[tuple[str, int]]:
    """Of each payment: its state, and how often it was asked for."""
    return [(state, calls) for _, _, state, calls in payments()]


def test_an_approved_order_is_charged_picked_and_shipped(at_work: AtWork) -> None:
    made = at_work.order()
    at_work.box.drain()
    assert at_work.state(made["id"]) == "charged"
    assert at_work.decide(made["id"], approved=True) == 204
    at_work.box.drain()
    shown = at_work.shown(made["id"])
    assert (shown["state"], shown["shelves"]) == ("shipped", ["shelf 3", "shelf 4"])
    assert at_work.shop.fulfil.handle(made["run"]).result(timeout=0) == "receipt 1, approved by ana"
    assert states() == [("charged", 1)]


def test_an_approval_that_comes_before_the_charge_is_kept(at_work: AtWork) -> None:
    made = at_work.order()
    assert at_work.decide(made["id"], approved=True) == 204
    at_work.box.drain()
    assert at_work.state(made["id"]) == "shipped"


def test_a_refused_order_is_refunded(at_work: AtWork) -> None:
    made = at_work.order()
    at_work.box.drain()
    assert at_work.decide(made["id"], approved=False) == 204
    at_work.box.drain()
    assert at_work.state(made["id"]) == "refused"
    assert at_work.shop.fulfil.handle(made["run"]).delivery().reason == "REFUSED"
    assert states() == [("refunded", 1)]


def test_an_order_of_which_something_is_missing_is_refunded(at_work: AtWork) -> None:
    made = at_work.order(skus=["tea", "nothing"])
    at_work.decide(made["id"], approved=True)
    at_work.box.drain()
    assert at_work.shop.fulfil.handle(made["run"]).delivery().reason == "NOT_IN_STOCK"
    assert states() == [("refunded", 1)]


def test_a_decision_is_made_once_and_of_an_order_that_exists(at_work: AtWork) -> None:
    made = at_work.order()
    assert [at_work.decide(made["id"], approved=approved) for approved in (False, True)] == [204, 409]
    assert at_work.decide(99, approved=True) == 404
    assert at_work.ask("GET", "/orders/99").status_code == 404


def test_an_order_that_is_rolled_back_leaves_no_run(at_work: AtWork, monkeypatch: pytest.MonkeyPatch) -> None:
    run = orders.run

    def fail_after_the_start(tx: Any, statement: str, *values: object) -> list[tuple[Any, ...]]:
        if statement.startswith("update orders set run"):
            raise ConnectionError
        return run(tx, statement, *values)

    with monkeypatch.context() as patched:
        patched.setattr(orders, "run", fail_after_the_start)
        with pytest.raises(ConnectionError):
            at_work.shop.order(1, ["tea"])
    assert at_work.box.drain() == 0
    with orders.transaction(at_work.shop.url) as tx:
        assert orders.run(tx, "select count(*) from orders") == [(0,)]


def test_an_order_whose_worker_is_killed_goes_on_and_is_charged_once(at_work: AtWork) -> None:
    made = at_work.order()
    crash(at_work.box, at="settle.before_commit")
    lose_lease(at_work.box)
    at_work.box.drain()
    at_work.decide(made["id"], approved=True)
    at_work.box.drain()
    assert at_work.state(made["id"]) == "shipped"
    assert states() == [("charged", 1)]
