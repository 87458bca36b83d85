"""Rows that exist already are read in pages while changes flow (R17); rows that are gone are found (R20)."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest

from tests.capture.conftest import OpenShop
from tests.capture.servers import OwnServer
from tests.capture.shop import ORDERS, Shop
from todoku.capture.pages import ReadPage
from todoku.capture.session import SessionOptions
from todoku.capture.snapshot import Snapshots
from todoku.capture.tables import CapturedTable

pytestmark = pytest.mark.postgres

SMALL_PAGES = SessionOptions(heartbeat=0.2, measure=0.2, page_rows=2)


def fill(shop: Shop, rows: int) -> None:
    shop.sql(ORDERS, f"insert into orders select n, 'old' from generate_series(1, {rows}) n")


@pytest.fixture
def before_page(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], None]], list[ReadPage]]:
    """Lets a function run before the page of that number is read; returns the pages, as they come."""

    def arrange(number: int, act: Callable[[], None]) -> list[ReadPage]:
        pages: list[ReadPage] = []
        read = Snapshots._read

        def reading(self: Snapshots, table: CapturedTable) -> ReadPage:
            if len(pages) + 1 == number:
                act()
            pages.append(read(self, table))
            return pages[-1]

        monkeypatch.setattr(Snapshots, "_read", reading)
        return pages

    return arrange


BeforePage = Callable[[int, Callable[[], None]], list[ReadPage]]


def test_all_rows_are_published_once_and_in_pages(open_shop: OpenShop) -> None:
    shop = open_shop(options=SMALL_PAGES)
    fill(shop, 7)
    shop.sql("analyze orders")
    shop.capture()
    row = shop.catch_up()

    assert [(topic, key) for topic, key, _ in shop.messages()] == [("orders.snapshot", str(n)) for n in range(1, 8)]
    (table,) = row.tables
    assert (table.phase, table.copied, table.expected) == ("done", 7, 7)
    assert shop.row.changes == 7


def test_a_snapshot_that_is_not_wanted(shop: Shop) -> None:
    fill(shop, 3)
    shop.capture(snapshot=False)
    shop.catch_up()
    shop.sql("insert into orders values (4)")
    shop.catch_up()
    assert [topic for topic, _, _ in shop.messages()] == ["orders.insert"]


def test_pages_by_several_columns_of_several_types(open_shop: OpenShop) -> None:
    shop = open_shop(options=SMALL_PAGES)
    shop.sql(
        "create type size as enum ('small', 'large')",
        'create table orders ("the day" timestamptz, s size, id uuid default gen_random_uuid(), n numeric(10, 2),'
        ' primary key ("the day", s, id))',
        """insert into orders ("the day", s, n) select '2026-01-01'::timestamptz + (n / 4) * interval '1 hour',"""
        " case when n % 2 = 0 then 'small'::size else 'large' end, n from generate_series(1, 15) n",
    )
    shop.capture(key=["id", "the day", "s"])
    shop.catch_up()
    assert sorted(float(found["row"]["n"]) for _, _, found in shop.messages()) == list(range(1, 16))


def test_changes_while_pages_are_read(open_shop: OpenShop, before_page: BeforePage) -> None:
    """Behind the pages, before them, and where they are: each row ends as the source has it."""
    shop = open_shop(options=SMALL_PAGES)
    fill(shop, 10)

    def change() -> None:
        shop.sql("update orders set what = 'new' where id in (1, 3, 9)")
        shop.sql("delete from orders where id in (2, 4, 10)")
        shop.sql("insert into orders values (0, 'new'), (11, 'new')", "update orders set id = 20 where id = 6")

    before_page(2, change)
    shop.capture()
    shop.catch_up()

    rows = dict(shop.sql("select id, what from orders"))
    assert {key: row["what"] for key, row in shop.state_of().items()} == rows


@contextmanager
def invisible(shop: Shop, server: OwnServer, statement: str) -> Iterator[None]:
    """Commits a statement that is in the log and visible to no one while the block runs: it waits for a standby."""
    server.set(synchronous_standby_names="nobody")
    commit = threading.Thread(target=shop.sql, args=(statement,))
    commit.start()
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        waiting = "select from pg_stat_activity where wait_event = 'SyncRep'"
        while not admin.execute(waiting).fetchall():  # type: ignore[arg-type]
            assert commit.is_alive()
            time.sleep(0.01)
    try:
        yield
    finally:
        server.set(synchronous_standby_names="")
        commit.join()


def test_R17_a_commit_that_the_page_could_not_see_wins(
    open_shop: OpenShop, own_server: OwnServer, before_page: BeforePage
) -> None:
    """The update is published before the page is read, and the page still sees the old row."""
    shop = open_shop(source=own_server.dsn, options=SMALL_PAGES)
    fill(shop, 6)
    hidden = invisible(shop, own_server, "update orders set what = 'new' where id = 3")

    def change() -> None:
        hidden.__enter__()
        shop.until(lambda: shop.messages("orders.update"))

    pages = before_page(2, change)
    shop.capture()
    shop.catch_up()
    hidden.__exit__(None, None, None)

    assert [row[:2] for row in pages[1].rows] == [(b"3", b"old"), (b"4", b"old")]
    assert [key for topic, key, _ in shop.messages("orders.snapshot")] == ["1", "2", "4", "5", "6"]
    assert shop.state_of()[3]["what"] == "new"


def test_R17_a_truncate_that_the_page_could_not_see_wins(
    open_shop: OpenShop, own_server: OwnServer, before_page: BeforePage
) -> None:
    """A page that was read before a TRUNCATE, whose mark comes after it, is not published."""
    shop = open_shop(options=SMALL_PAGES)
    fill(shop, 6)
    read = Snapshots._read

    def reading(self: Snapshots, table: CapturedTable) -> ReadPage:
        page = read(self, table)
        if page.rows and page.rows[0][0] == b"3":
            shop.sql("truncate orders", "insert into orders values (4, 'new')")
        return page

    Snapshots._read = reading  # type: ignore[method-assign]
    try:
        shop.capture()
        shop.catch_up()
    finally:
        Snapshots._read = read  # type: ignore[method-assign]

    assert {key: row["what"] for key, row in shop.state_of().items()} == {4: "new"}


def test_R17_the_first_page_waits_for_what_an_earlier_session_has_published(
    open_shop: OpenShop, own_server: OwnServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = open_shop(source=own_server.dsn, options=SMALL_PAGES)
    fill(shop, 3)
    shop.capture()
    shop.catch_up()
    refusals = []
    may_begin = Snapshots._may_begin

    def asked(self: Snapshots) -> bool:
        answer = may_begin(self)
        refusals.append(answer)
        return answer

    with invisible(shop, own_server, "update orders set what = 'new' where id = 3"):
        with shop.reading():
            shop.until(lambda: shop.messages("orders.update"))
        shop.box.captures["main"].snapshot(by="ada", why="a test")
        monkeypatch.setattr(Snapshots, "_may_begin", asked)
        with shop.reading():
            shop.until(lambda: len(refusals) > 3)
            assert not any(refusals)
            assert shop.row.state == "snapshot"
    shop.catch_up()

    assert shop.state_of()[3]["what"] == "new"


def test_interrupted_and_resumed(
    open_shop: OpenShop, before_page: BeforePage, caplog: pytest.LogCaptureFixture
) -> None:
    shop = open_shop(options=SMALL_PAGES)
    fill(shop, 9)
    failures = [psycopg.OperationalError("the network broke"), psycopg.OperationalError("once more")]

    def fail() -> None:
        assert shop.row.tables[0].copied == 4
        if failures:
            raise failures.pop()

    pages = before_page(3, fail)
    shop.capture()
    shop.catch_up()

    assert [page.rows[0][0] for page in pages] == [b"1", b"3", b"5", b"7", b"9"]
    assert [key for _, key, _ in shop.messages()] == [str(n) for n in range(1, 10)]
    assert [record.getMessage().split()[0] for record in caplog.records].count("CAPTURE_AWAY") == 2


@pytest.mark.slow
def test_random_changes_while_many_pages_are_read(open_shop: OpenShop) -> None:
    shop = open_shop(options=SessionOptions(heartbeat=0.2, measure=0.2, page_rows=5))
    fill(shop, 400)
    stop = threading.Event()

    def change(seed: int) -> None:
        chance = random.Random(seed)
        with psycopg.connect(shop.source, autocommit=True) as app:
            while not stop.is_set():
                key = chance.randrange(500)
                statement = chance.choice([
                    f"insert into orders values ({key}, 'i{chance.random()}') on conflict do nothing",
                    f"update orders set what = 'u{chance.random()}' where id = {key}",
                    f"delete from orders where id = {key}",
                    f"update orders set id = {chance.randrange(500, 600)} where id = {key} and id < 500",
                ])  # fmt: skip
                with suppress(psycopg.errors.UniqueViolation):  # the other thread was first
                    app.execute(statement)  # type: ignore[arg-type]

    threads = [threading.Thread(target=change, args=(random.random(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        shop.capture()
        shop.catch_up()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    shop.catch_up()

    assert {key: row["what"] for key, row in shop.state_of().items()} == dict(shop.sql("select id, what from orders"))


def lose(shop: Shop) -> None:
    """Drops the slot, and lets the capture find out."""
    shop.drop_slot()
    shop.box.store.captures.set_state("main", "stopped", reason="SLOT_MISSING", why="a test", fence=None)


def again(shop: Shop) -> list[tuple[str, str | None, Any]]:
    """Reads the tables anew; returns the deletes that were published for rows that are gone."""
    before = len(shop.messages())
    shop.box.captures["main"].snapshot(by="ada", why="a test")
    shop.catch_up()
    return [(topic, key, found["old"]) for topic, key, found in shop.messages()[before:] if found["op"] == "delete"]


def test_R20_rows_that_are_gone_are_published_as_deletes(shop: Shop) -> None:
    fill(shop, 3)
    shop.capture()
    shop.catch_up()
    shop.sql(
        "insert into orders values (4), (5)", "delete from orders where id = 5", "update orders set id = 6 where id = 3"
    )
    shop.catch_up()
    lose(shop)
    shop.sql("delete from orders where id in (1, 4)", "insert into orders values (7)")

    assert again(shop) == [("orders.delete", "1", {"id": 1}), ("orders.delete", "4", {"id": 4})]
    assert set(shop.state_of()) == {2, 6, 7}
    assert {one["capture-generation"] for one in shop.headers()} == {"1", "2"}
    lose(shop)
    shop.sql("delete from orders where id = 7")
    assert again(shop) == [("orders.delete", "7", {"id": 7})]


def test_R20_more_keys_than_one_sweep_has(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("todoku.capture.storing.SWEPT", 3)
    fill(shop, 10)
    shop.capture()
    shop.catch_up()
    lose(shop)
    shop.sql("delete from orders where id > 3")
    assert sorted(key or "" for _, key, _ in again(shop)) == sorted(str(n) for n in range(4, 11))
    assert set(shop.state_of()) == {1, 2, 3}


def test_R20_keys_of_several_columns_and_of_any_length(shop: Shop) -> None:
    shop.sql(
        "create table orders (tenant int, id text, primary key (tenant, id))",
        "insert into orders values (1, 'a'), (1, ''), (2, repeat('x', 600))",
    )
    shop.capture(key=["tenant", "id"])
    shop.catch_up()
    keys = [key for _, key, _ in shop.messages()]
    lose(shop)
    shop.sql("delete from orders")

    found = again(shop)

    assert sorted(key or "" for _, key, _ in found) == sorted(key or "" for key in keys)
    old = [old for _, _, old in found if old is not None]
    assert sorted(one["id"] for one in old) == ["", "a"]


def test_R20_rows_that_share_a_key_are_told_apart(shop: Shop) -> None:
    shop.sql(
        "create table orders (id int primary key, customer text)", "alter table orders replica identity full",
        "insert into orders values (1, 'ada'), (2, 'ada'), (3, 'bob')",
    )  # fmt: skip
    shop.capture(key="customer")
    shop.catch_up()
    shop.sql("delete from orders where id = 1")
    shop.catch_up()
    lose(shop)
    shop.sql("delete from orders where id = 2")

    assert again(shop) == [("orders.delete", "ada", {"id": 2, "customer": "ada"})]


def test_R20_a_truncated_table_has_no_keys(shop: Shop) -> None:
    fill(shop, 3)
    shop.capture()
    shop.catch_up()
    shop.sql("truncate orders", "insert into orders values (2)")
    shop.catch_up()
    lose(shop)
    shop.sql("delete from orders")
    assert again(shop) == [("orders.delete", "2", {"id": 2})]


def test_a_snapshot_by_command_of_one_table_while_it_streams(shop: Shop) -> None:
    shop.sql("create table customers (id int primary key)", "insert into customers values (1)")
    fill(shop, 2)
    shop.capture()
    shop.capture("customers")
    shop.catch_up()
    before = len(shop.messages())
    with shop.reading():
        shop.until(lambda: shop.row.state == "streaming")
        shop.box.captures["main"].snapshot(["customers"], by="ada", why="a test")
        shop.until(lambda: len(shop.messages()) > before)
        shop.until(lambda: shop.row.state == "streaming")
    assert [topic for topic, _, _ in shop.messages()[before:]] == ["customers.snapshot"]


def test_a_locked_table_holds_up_its_snapshot_and_nothing_else(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("todoku.capture.source._LOCK_TIMEOUT", "50ms")
    shop.sql("create table customers (id int primary key)", "insert into customers values (1)")
    fill(shop, 2)
    shop.capture()
    shop.capture("customers", snapshot=False)
    shop.box.captures["main"].declare()
    with shop.session() as app, shop.reading():
        shop.until(lambda: shop.row.state == "snapshot" or shop.row.lsn)
        app.execute("lock table orders in access exclusive mode")
        shop.sql("insert into customers values (2)")
        shop.until(lambda: shop.messages("customers.insert"))
        app.commit()
        shop.until(lambda: len(shop.messages("orders.snapshot")) == 2)
