"""Tables, columns and Apps that change: a rolling deploy, DDL under way, a capture of todoku's own database."""

from __future__ import annotations

import asyncio

import pytest

from tests.capture.conftest import OpenShop
from tests.capture.shop import ORDERS, Shop
from todoku.capture.pages import ReadPage
from todoku.capture.replication import Stream
from todoku.capture.session import SessionOptions
from todoku.capture.snapshot import Snapshots
from todoku.capture.source import SourceSession
from todoku.capture.tables import CapturedTable
from todoku.core.errors import CaptureError, InvalidSetting
from todoku.store.captures import CaptureStore

pytestmark = pytest.mark.postgres


def test_a_table_that_only_another_version_of_the_app_declares_is_not_passed_over(open_shop: OpenShop) -> None:
    """A rolling deploy: the new version has added a table, and a worker of the old one takes over."""
    new = open_shop()
    new.sql(ORDERS, "create table customers (id int primary key)")
    new.capture()
    new.capture("customers")
    new.catch_up()
    old = open_shop()
    old.capture()
    new.sql("insert into customers values (1)", "insert into orders values (1)")
    old.catch_up()

    assert [topic for topic, _, _ in old.messages()] == ["customers.insert", "orders.insert"]


def test_a_table_that_is_not_declared_and_not_published_any_more_is_left_out(open_shop: OpenShop) -> None:
    new = open_shop()
    new.sql(ORDERS, "create table customers (id int primary key)")
    new.capture()
    new.capture("customers")
    new.catch_up()
    new.sql(f"alter publication {new.row.publication} drop table customers", "drop table customers")
    old = open_shop()
    old.capture()
    old.sql("insert into orders values (1)")
    old.catch_up()

    assert [topic for topic, _, _ in old.messages()] == ["orders.insert"]


def test_a_dropped_table_stops_the_capture(shop: Shop) -> None:
    shop.sql(ORDERS)
    shop.capture()
    shop.catch_up()
    shop.sql("drop table orders")
    with pytest.raises(CaptureError) as raised:
        shop.catch_up()
    assert raised.value.reason == "NO_TABLE"


def test_a_key_column_that_is_gone_stops_the_capture(shop: Shop) -> None:
    shop.sql(ORDERS)
    shop.capture()
    shop.catch_up()
    shop.sql("alter table orders rename column id to number", "insert into orders values (1)")
    with pytest.raises(CaptureError) as raised:
        shop.catch_up()
    assert raised.value.reason == "NO_IDENTITY"
    assert shop.messages() == []
    shop.sql("alter table orders rename column number to id")
    with pytest.raises(CaptureError):  # the log has the row with the other name
        shop.catch_up()
    assert shop.row.state == "stopped"


def between_two_pages(shop: Shop, monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
    """Lets the source run a statement after the first page of a snapshot."""
    read = Snapshots._read

    def reading(self: Snapshots, table: CapturedTable) -> ReadPage:
        if table.copied == 2:
            shop.sql(statement)
        return read(self, table)

    monkeypatch.setattr(Snapshots, "_read", reading)


def test_columns_may_change_between_two_pages(open_shop: OpenShop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = open_shop(options=SessionOptions(heartbeat=0.2, measure=0.2, page_rows=2))
    shop.sql(ORDERS, "insert into orders select n from generate_series(1, 4) n")
    between_two_pages(shop, monkeypatch, "alter table orders drop column what, add column paid bool default true")
    shop.capture()
    shop.catch_up()

    assert [found["row"] for _, _, found in shop.messages()] == [
        {"id": 1, "what": None, "amount": None}, {"id": 2, "what": None, "amount": None},
        {"id": 3, "amount": None, "paid": True}, {"id": 4, "amount": None, "paid": True},
    ]  # fmt: skip


def test_a_table_that_is_rewritten_between_two_pages_does_not_look_empty(
    open_shop: OpenShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = open_shop(options=SessionOptions(heartbeat=0.2, measure=0.2, page_rows=2))
    shop.sql(ORDERS, "insert into orders select n from generate_series(1, 6) n")
    between_two_pages(shop, monkeypatch, "alter table orders alter what type varchar(20) using 'x'")
    shop.capture()
    shop.catch_up()
    assert [key for _, key, _ in shop.messages()] == [str(n) for n in range(1, 7)]


def test_rows_of_tables_that_inherit_are_not_published(shop: Shop) -> None:
    shop.sql(ORDERS, "create table special (primary key (id)) inherits (orders)", "insert into special values (1)")
    shop.sql("insert into orders values (2)")
    shop.capture()
    shop.catch_up()
    shop.sql("insert into special values (3)", "insert into orders values (4)")
    shop.catch_up()
    assert [key for _, key, _ in shop.messages()] == ["2", "4"]


def test_a_quiet_capture_of_todokus_own_database_stays_quiet(
    open_shop: OpenShop, source_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the reader stores is in the log of the same server: it must not make the reader store again."""
    shop = open_shop(source_url, source=None, options=SessionOptions(heartbeat=0.5, measure=0.5))
    shop.sql(ORDERS)
    shop.capture()
    shop.catch_up()
    commits: list[int] = []
    heartbeats: list[int] = []
    store, mark = CaptureStore.store, SourceSession.mark

    def storing(self: CaptureStore, *args: object, **more: object) -> object:
        commits.append(1)
        return store(self, *args, **more)  # type: ignore[arg-type]

    def marking(self: SourceSession, content: str) -> None:
        heartbeats.append(1)
        mark(self, content)

    monkeypatch.setattr(CaptureStore, "store", storing)
    monkeypatch.setattr(SourceSession, "mark", marking)
    replies: list[int] = []
    confirm = Stream.confirm

    def confirming(self: Stream, lsn: int, received: int) -> None:
        replies.append(lsn)
        confirm(self, lsn, received)

    monkeypatch.setattr(Stream, "confirm", confirming)
    with shop.reading():
        shop.until(lambda: len(heartbeats) >= 6)
    assert 1 <= len(commits) <= len(heartbeats)
    assert len(replies) < 20 * len(heartbeats)  # a server that is not satisfied asks thousands of times


def test_todokus_own_tables_cannot_be_captured(shop: Shop) -> None:
    with pytest.raises(InvalidSetting, match="each message would make another one"):
        shop.capture("todoku_message", key="seq")


def test_catching_up_lets_the_worker_read_that_has_the_capture(open_shop: OpenShop) -> None:
    worker, script = open_shop(), open_shop()
    worker.sql(ORDERS)
    for shop in (worker, script):
        shop.capture()
    with worker.reading():
        worker.until(lambda: worker.row.state == "streaming")
        owner = worker.row.owner
        script.sql("insert into orders values (1)")
        script.catch_up()
        assert [key for _, key, _ in script.messages()] == ["1"]
        assert worker.row.owner == owner


def test_async_forms(shop: Shop) -> None:
    shop.sql(ORDERS, "insert into orders values (1)")
    shop.capture()
    capture = shop.box.captures["main"]

    async def use() -> None:
        assert (await capture.acatch_up()).lsn > 0
        await capture.asnapshot(by="ada", why="a test")
        await capture.acatch_up()
        assert (await capture.astatus()).generation == 2
        await capture.adrop(by="ada", why="a test")

    asyncio.run(use())
    assert len(shop.messages()) == 2
