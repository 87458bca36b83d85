"""What cannot be published as it is becomes a dead letter, never nothing, and never stops the stream."""

from __future__ import annotations

import os
from typing import Any

import pytest

import todoku
from tests.capture.conftest import OpenShop
from tests.capture.shop import ORDERS, Shop
from todoku.core.sealed import format_master_key

pytestmark = pytest.mark.postgres


def test_no_route_is_a_dead_letter_also_if_publishers_get_an_error(open_shop: OpenShop) -> None:
    shop = open_shop(no_route="error")
    shop.sql(ORDERS)
    shop.capture()
    shop.route("orders.insert")
    shop.catch_up()
    shop.sql("insert into orders values (1)", "delete from orders", "insert into orders values (2)")
    shop.catch_up()
    shop.box.drain()

    assert shop.dead() == {"orders.delete": "NO_ROUTE"}
    assert [key for _, key, _ in shop.seen] == ["1", "2"]


def test_a_row_that_is_too_large_is_a_dead_letter_with_its_key(
    open_shop: OpenShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TODOKU_MAX_PAYLOAD_BYTES", "2000")
    shop = open_shop()
    shop.sql(ORDERS)
    shop.capture()
    shop.route()
    shop.catch_up()
    shop.sql("insert into orders values (1, repeat('x', 3000))", "insert into orders values (2, 'tea')")
    shop.catch_up()
    shop.box.drain()

    assert shop.dead() == {"orders.insert": "TOO_LARGE"}
    (large, fine) = shop.messages()
    assert (large[1], large[2]["row"]) == ("1", {"id": 1})
    assert fine[2]["row"] == {"id": 2, "what": "tea", "amount": None}
    assert [key for _, key, _ in shop.seen] == ["2"]


def test_a_payload_that_breaks_its_schema_is_a_dead_letter(shop: Shop) -> None:
    shop.sql(ORDERS)
    shop.capture()
    shop.route()
    shop.box.schema("orders.insert", {"properties": {"row": {"properties": {"what": {"type": "string"}}}}})
    shop.catch_up()
    shop.sql("insert into orders values (1)", "insert into orders values (2, 'tea')")
    shop.catch_up()
    shop.box.drain()

    assert shop.dead() == {"orders.insert": "BAD_PAYLOAD"}
    assert [key for _, key, _ in shop.seen] == ["2"]


def test_a_truncate_for_a_projection_is_a_dead_letter(shop: Shop) -> None:
    def write(change: Any, tx: Any) -> None:
        raise AssertionError

    shop.sql(ORDERS)
    shop.capture()
    shop.route("orders.truncate")
    shop.box.projection("book", topics="orders.*", key="id", to=todoku.chronicle(write))
    shop.catch_up()
    shop.sql("truncate orders")
    shop.catch_up()
    shop.box.drain()

    assert shop.dead() == {"orders.truncate": "NO_KEY"}
    assert [topic for topic, _, _ in shop.seen] == ["orders.truncate"]


@pytest.mark.parametrize("own", ["sqlite_url", "postgres_url"])
def test_json_that_no_database_takes_does_not_stop_the_stream(
    own: str, open_shop: OpenShop, request: pytest.FixtureRequest
) -> None:
    shop = open_shop(request.getfixturevalue(own))
    shop.sql("create table orders (id int primary key, doc json)")
    shop.capture()
    shop.route()
    shop.catch_up()
    deep = "[" * 150 + "]" * 150
    for number, doc in enumerate([deep, r'"\u0000"', r'"\ud800"', r'{"\u0000a": 1}', '"fine"']):
        shop.sql(f"insert into orders values ({number}, '{doc}')")
    shop.catch_up()
    shop.box.drain()

    assert len(shop.messages()) == 5
    assert len(shop.seen) + len(shop.dead_letters()) == 5
    assert ("orders.insert", "4") in [(topic, key) for topic, key, _ in shop.seen]


def test_messages_of_an_encrypted_topic_are_encrypted(open_shop: OpenShop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TODOKU_MASTER_KEYS", format_master_key("one", os.urandom(32)))
    monkeypatch.setenv("TODOKU_ENCRYPT", "all")
    shop = open_shop()
    shop.sql(ORDERS, "insert into orders values (1, 'secret tea')")
    shop.capture()
    shop.route()
    shop.catch_up()
    shop.sql("insert into orders values (2, 'secret milk')")
    shop.catch_up()

    assert shop._rows("select count(*) from todoku_message where payload is not null") == [(0,)]
    shop.box.drain()
    assert [found["row"]["what"] for _, _, found in shop.seen] == ["secret tea", "secret milk"]
