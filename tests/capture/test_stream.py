"""Changes of a table that knows nothing of todoku become messages, in the order of their commits, once (R16, R18)."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from tests.capture.conftest import OpenShop
from tests.capture.servers import OwnServer
from tests.capture.shop import ORDERS, Shop
from todoku.capture.replication import Stream

pytestmark = pytest.mark.postgres


def event(op: str, row: Any = None, old: Any = None, *, table: str = "orders", unchanged: Any = ()) -> dict[str, Any]:
    return {"op": op, "table": f"public.{table}", "row": row, "old": old, "unchanged": list(unchanged)}


def tea(**more: Any) -> dict[str, Any]:
    return {"id": 1, "what": "tea", "amount": "3.50"} | more


def test_a_change_arrives_at_a_handler(shop: Shop) -> None:
    shop.sql(ORDERS)
    shop.capture()
    shop.route("orders.*")
    shop.catch_up()
    shop.sql("insert into orders values (1, 'tea', 3.50)", "update orders set amount = 4 where id = 1")
    shop.sql("delete from orders where id = 1")

    shop.catch_up()
    shop.box.drain()

    assert shop.seen == [
        ("orders.insert", "1", event("insert", tea())),
        ("orders.update", "1", event("update", tea(amount="4"))),
        ("orders.delete", "1", event("delete", old={"id": 1})),
    ]


@pytest.mark.parametrize("where", ["same database", "another database", "another server"])
def test_todokus_own_database_may_be_the_source(
    where: str, open_shop: OpenShop, source_url: str, source_dsn: str, request: pytest.FixtureRequest
) -> None:
    match where:
        case "same database":
            shop = open_shop(source_url, source=None)
        case "another database":
            from tests.support.postgres import fresh_database

            context = fresh_database(source_dsn)
            shop = open_shop(context.__enter__())
            request.addfinalizer(lambda: context.__exit__(None, None, None))
        case _:
            shop = open_shop(request.getfixturevalue("postgres_url"))
    shop.sql(ORDERS, "insert into orders values (1, 'tea', 3.50)")
    shop.capture()
    shop.route()

    shop.catch_up()
    shop.sql("update orders set what = 'chai'")
    shop.catch_up()
    shop.box.drain()

    assert shop.seen == [
        ("orders.snapshot", "1", event("snapshot", tea())),
        ("orders.update", "1", event("update", tea(what="chai"))),
    ]


def test_the_order_is_that_of_commits_and_what_was_rolled_back_is_not_published(shop: Shop) -> None:
    shop.sql(ORDERS)
    shop.capture()
    shop.catch_up()
    with psycopg.connect(shop.source) as first, psycopg.connect(shop.source) as second:
        first.execute("insert into orders values (1)")
        second.execute("insert into orders values (2)")
        second.execute("savepoint a")
        second.execute("insert into orders values (3)")
        second.execute("rollback to a")
        second.execute("insert into orders values (4)")
        second.commit()
        first.commit()
        first.execute("insert into orders values (5)")
        first.rollback()

    shop.catch_up()

    assert [key for _, key, _ in shop.messages()] == ["2", "4", "1"]
    first_two, last = [one["capture-xid"] for one in shop.headers()][:2], shop.headers()[2]["capture-xid"]
    assert len(set(first_two)) == 1
    assert last not in first_two


def test_headers_name_the_source_transaction(shop: Shop) -> None:
    shop.sql(ORDERS, "insert into orders values (1)")
    shop.capture()
    shop.catch_up()
    ((xid, lsn),) = shop.sql("insert into orders values (2) returning pg_current_xact_id()::text, pg_current_wal_lsn()")
    shop.catch_up()

    snapshot, streamed = shop.headers()

    assert snapshot.keys() == {"capture", "capture-lsn", "capture-generation"}
    assert streamed.keys() == snapshot.keys() | {"capture-xid", "capture-committed-at"}
    assert (streamed["capture"], streamed["capture-xid"], streamed["capture-generation"]) == ("main", xid, "1")
    high, low = (int(part, 16) for part in streamed["capture-lsn"].split("/"))
    wanted_high, wanted_low = (int(part, 16) for part in lsn.split("/"))
    assert (high, low) > (wanted_high, wanted_low)


def test_R18_a_changed_key_is_a_delete_and_an_insert(shop: Shop) -> None:
    shop.sql(ORDERS)
    shop.capture()
    shop.catch_up()
    shop.sql("insert into orders values (1, 'tea', 3.50)", "update orders set id = 7 where id = 1")
    shop.catch_up()

    assert [(topic, key) for topic, key, _ in shop.messages()] == [
        ("orders.insert", "1"), ("orders.delete", "1"), ("orders.insert", "7"),
    ]  # fmt: skip
    assert list(shop.state_of()) == [7]


def test_a_truncate_has_no_key(shop: Shop) -> None:
    shop.sql(ORDERS)
    shop.capture()
    shop.catch_up()
    shop.sql("insert into orders values (1)", "truncate orders", "insert into orders values (2)")
    shop.catch_up()

    assert [(topic, key) for topic, key, _ in shop.messages()] == [
        ("orders.insert", "1"), ("orders.truncate", None), ("orders.insert", "2"),
    ]  # fmt: skip


def test_partitions_are_published_as_their_table(shop: Shop) -> None:
    shop.sql(
        "create table orders (id int, day date, what text, primary key (id, day)) partition by range (day)",
        "create table orders_a partition of orders for values from ('2026-01-01') to ('2026-02-01')",
        "insert into orders values (1, '2026-01-05', 'old')",
    )
    shop.capture(key=["id", "day"])
    shop.catch_up()
    shop.sql("create table orders_b partition of orders for values from ('2026-02-01') to ('2026-03-01')")
    shop.sql("insert into orders values (2, '2026-02-05', 'new')")
    shop.sql("update orders set day = '2026-02-06' where id = 1")  # into the other partition
    shop.catch_up()

    assert [(topic, key) for topic, key, _ in shop.messages()] == [
        ("orders.snapshot", '["1","2026-01-05"]'),
        ("orders.insert", '["2","2026-02-05"]'),
        ("orders.delete", '["1","2026-01-05"]'),
        ("orders.insert", '["1","2026-02-06"]'),
    ]
    assert {found["table"] for _, _, found in shop.messages()} == {"public.orders"}


def test_an_unchanged_value_that_is_stored_out_of_line_is_named(shop: Shop) -> None:
    shop.sql(
        "create table orders (id int primary key, note text, n int)",
        "alter table orders alter note set storage external",
    )
    shop.capture()
    shop.catch_up()
    shop.sql("insert into orders values (1, repeat('long', 5000), 1)")
    shop.sql("update orders set n = 2")
    shop.catch_up()

    assert shop.messages("orders.update") == [
        ("orders.update", "1", event("update", {"id": 1, "n": 2}, unchanged=["note"]))
    ]


@pytest.mark.parametrize("identity", ["full", "using index other"])
def test_replica_identities(identity: str, shop: Shop) -> None:
    shop.sql(ORDERS, "alter table orders alter what set not null", "create unique index other on orders (what)",
             f"alter table orders replica identity {identity}")  # fmt: skip
    shop.capture(key="what")
    shop.catch_up()
    shop.sql("insert into orders values (1, 'tea', 3.50)")
    shop.sql("update orders set amount = 4")
    shop.sql("update orders set what = 'chai'")
    shop.sql("delete from orders")
    shop.catch_up()

    old = {"what": "tea"} if identity != "full" else tea(amount="4")
    gone = {"what": "chai"} if identity != "full" else tea(what="chai", amount="4")
    assert [(topic, key) for topic, key, _ in shop.messages()] == [
        ("orders.insert", "tea"), ("orders.update", "tea"), ("orders.delete", "tea"), ("orders.insert", "chai"),
        ("orders.delete", "chai"),
    ]  # fmt: skip
    assert [found["old"] for topic, _, found in shop.messages("orders.delete")] == [old, gone]


def test_columns_may_change_while_it_streams(shop: Shop) -> None:
    shop.sql(ORDERS)
    shop.capture()
    shop.catch_up()
    with shop.session() as app:
        app.execute("insert into orders values (1, 'tea', 3.50)")
        app.execute("alter table orders add column paid bool default true")
        app.execute("insert into orders values (2, 'tea', 3.50, false)")
        app.execute("alter table orders drop column amount")
        app.execute("alter table orders rename column what to item")
        app.execute("insert into orders values (3, 'milk')")
    shop.catch_up()

    assert [found["row"] for _, _, found in shop.messages()] == [
        {"id": 1, "what": "tea", "amount": "3.50"},
        {"id": 2, "what": "tea", "amount": "3.50", "paid": False},
        {"id": 3, "item": "milk", "paid": True},
    ]


def test_several_tables_share_a_capture_and_others_are_not_published(shop: Shop) -> None:
    shop.sql(ORDERS, "create table customers (name text primary key)", "create table secrets (id int primary key)")
    shop.capture()
    shop.capture("customers", key="name")
    shop.catch_up()
    with shop.session() as app:
        app.execute("insert into customers values ('ada')")
        app.execute("insert into secrets values (1)")
        app.execute("insert into orders values (1)")
    shop.catch_up()

    assert [topic for topic, _, _ in shop.messages()] == ["customers.insert", "orders.insert"]


def test_a_table_may_be_added_later_and_gets_a_snapshot(open_shop: OpenShop, sqlite_url: str) -> None:
    first = open_shop()
    first.sql(ORDERS, "create table customers (name text primary key)", "insert into customers values ('ada')")
    first.capture()
    first.catch_up()
    first.sql("insert into orders values (1)")

    second = open_shop()
    second.capture()
    second.capture("customers", key="name")
    second.catch_up()
    second.sql("insert into customers values ('bob')")
    second.catch_up()

    assert sorted((topic, key) for topic, key, _ in second.messages()) == [
        ("customers.insert", "bob"), ("customers.snapshot", "ada"), ("orders.insert", "1"),
    ]  # fmt: skip


def test_stored_first_confirmed_then(shop: Shop) -> None:
    shop.sql(ORDERS)
    shop.capture()
    before = shop.catch_up()
    shop.sql("insert into orders values (1)")
    shop.catch_up()
    row = shop.row

    ((confirmed,),) = shop.sql(
        f"select (confirmed_flush_lsn - '0/0')::bigint from pg_replication_slots where slot_name = '{row.slot}'"
    )

    assert before.lsn < confirmed <= row.lsn


def test_R16_what_was_stored_is_not_stored_again_although_it_is_sent_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that dies between its commit and the confirmation."""
    shop.sql(ORDERS)
    shop.capture()
    shop.catch_up()
    confirm = Stream.confirm
    monkeypatch.setattr(Stream, "confirm", lambda self, _lsn, received: confirm(self, 0, received))
    for number in range(3):
        shop.sql(f"insert into orders values ({number})")
    row = shop.catch_up()
    monkeypatch.setattr(Stream, "confirm", confirm)
    ((confirmed,),) = shop.sql(
        f"select (confirmed_flush_lsn - '0/0')::bigint from pg_replication_slots where slot_name = '{row.slot}'"
    )
    assert confirmed < row.lsn
    assert len(shop.messages()) == 3

    shop.sql("insert into orders values (3)")
    shop.catch_up()

    assert [key for _, key, _ in shop.messages()] == ["0", "1", "2", "3"]


def test_a_server_that_crashed_goes_on(open_shop: OpenShop, own_server: OwnServer) -> None:
    shop = open_shop(source=own_server.dsn)
    shop.sql(ORDERS)
    shop.capture()
    shop.catch_up()
    for number in range(5):
        shop.sql(f"insert into orders values ({number})")
        shop.catch_up()
        own_server.stop()
        own_server.start()
    shop.catch_up()

    assert [key for _, key, _ in shop.messages()] == ["0", "1", "2", "3", "4"]
