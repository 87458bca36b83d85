"""What a source can lose is found before anything is skipped: a clear state, and one command that repairs it."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tests.capture.conftest import OpenShop
from tests.capture.servers import OwnServer
from tests.capture.shop import ORDERS, Shop
from todoku.capture.reader import Reader
from todoku.core.capture import Stop
from todoku.core.errors import CaptureError
from todoku.store.captures import CaptureRow

pytestmark = pytest.mark.postgres


def begin(shop: Shop) -> None:
    """Captures a table with three rows."""
    shop.sql(ORDERS, "insert into orders select n, 'before' from generate_series(1, 3) n")
    shop.capture()
    shop.catch_up()


def stopped(shop: Shop, reason: str) -> None:
    """The capture is stopped for this reason, and stays so; its messages are as they were."""
    before = len(shop.messages())
    for _ in range(2):
        with pytest.raises(CaptureError) as raised:
            shop.catch_up(timeout=20)
        assert raised.value.reason == reason, raised.value
    row = shop.row
    assert (row.state, row.reason) == ("stopped", reason)
    assert row.why is not None
    assert "todoku capture snapshot main" in row.why
    assert len(shop.messages()) == before


def repaired(shop: Shop) -> None:
    """One command: the messages say again what the table has, although changes were lost (R20)."""
    shop.box.captures["main"].snapshot(by="ada", why="it was lost")
    shop.catch_up()
    rows = shop.sql("select id, what from orders order by id")
    assert sorted((key, row["what"]) for key, row in shop.state_of().items()) == rows
    assert shop.row.generation == 2
    shop.sql("insert into orders values (1000, 'after')")
    shop.catch_up()
    assert 1000 in shop.state_of()


def change_unseen(shop: Shop) -> None:
    """Changes that no reader will see: an insert, an update, a delete."""
    shop.sql("insert into orders values (4, 'lost')", "update orders set what = 'lost' where id = 1",
             "delete from orders where id = 2")  # fmt: skip


def test_slot_dropped(shop: Shop) -> None:
    begin(shop)
    shop.drop_slot()
    change_unseen(shop)
    stopped(shop, "SLOT_MISSING")
    repaired(shop)
    assert [key for topic, key, _ in shop.messages() if topic == "orders.delete"] == ["2"]


def test_slot_lost(open_shop: OpenShop, own_server: OwnServer) -> None:
    shop = open_shop(source=own_server.dsn)
    begin(shop)
    own_server.set(max_slot_wal_keep_size="1MB", max_wal_size="32MB")
    slot = shop.row.slot
    change_unseen(shop)
    with psycopg.connect(own_server.dsn, autocommit=True) as admin:
        for _ in range(20):
            admin.execute("select pg_logical_emit_message(false, 'fill', repeat('x', 4000000)), pg_switch_wal()")
            admin.execute("checkpoint")
            if admin.execute(
                "select from pg_replication_slots where slot_name = %s and wal_status = 'lost'", (slot,)
            ).fetchall():
                break
    stopped(shop, "SLOT_LOST")
    own_server.set(max_slot_wal_keep_size="-1")
    repaired(shop)


def test_slot_ahead_another_program_has_read_it(shop: Shop) -> None:
    begin(shop)
    change_unseen(shop)
    shop.sql(f"select pg_replication_slot_advance('{shop.row.slot}', pg_current_wal_lsn())")
    stopped(shop, "SLOT_AHEAD")
    repaired(shop)


@pytest.mark.parametrize("comes_back", [False, True])
def test_publication_dropped(comes_back: bool, shop: Shop) -> None:
    begin(shop)
    name = shop.row.publication
    shop.sql(f"drop publication {name}")
    change_unseen(shop)
    if comes_back:
        shop.sql(f"create publication {name} for table orders with (publish_via_partition_root = true)")
    stopped(shop, "PUBLICATION_CHANGED")
    repaired(shop)


@pytest.mark.parametrize("comes_back", [False, True])
def test_table_left_the_publication(comes_back: bool, shop: Shop) -> None:
    shop.sql("create table customers (id int primary key)")
    shop.capture("customers")
    begin(shop)
    name = shop.row.publication
    shop.sql(f"alter publication {name} drop table orders")
    change_unseen(shop)
    if comes_back:
        shop.sql(f"alter publication {name} add table orders")
    stopped(shop, "PUBLICATION_CHANGED")
    repaired(shop)


def test_a_publication_that_changes_while_it_is_read_is_found(shop: Shop) -> None:
    begin(shop)
    name = shop.row.publication
    with shop.reading():
        shop.until(lambda: shop.row.state == "streaming")
        shop.sql(f"alter publication {name} drop table orders", f"alter publication {name} add table orders")
        shop.until(lambda: shop.row.state == "stopped")
    assert shop.row.reason == "PUBLICATION_CHANGED"


def test_a_stop_stays_visible_while_the_source_is_away(
    open_shop: OpenShop, own_server: OwnServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[str] = []
    report = Reader._report

    def reporting(self: Reader, row: CaptureRow, stop: Stop) -> float:
        answer = report(self, row, stop)
        reports.append(stop.reason)
        return answer

    shop = open_shop(source=own_server.dsn)
    begin(shop)
    shop.drop_slot()
    stopped(shop, "SLOT_MISSING")
    own_server.stop()
    monkeypatch.setattr(Reader, "_report", reporting)
    with shop.reading():
        shop.until(lambda: reports)
    assert reports[0] == "SOURCE_AWAY"
    assert (shop.row.state, shop.row.reason) == ("stopped", "SLOT_MISSING")
    own_server.start()
    repaired(shop)


def test_table_made_anew(shop: Shop) -> None:
    begin(shop)
    shop.sql("drop table orders", ORDERS, "insert into orders values (9, 'new')")
    stopped(shop, "PUBLICATION_CHANGED")
    repaired(shop)
    assert set(shop.state_of()) == {9, 1000}


def captured_after_a_copy(open_shop: OpenShop, server: OwnServer) -> tuple[Shop, Path]:
    """A shop that has captured a change, and a copy of its server from before that."""
    shop = open_shop(source=server.dsn)
    begin(shop)
    server.stop()
    backup = server.back_up("backup")
    server.start()
    shop.sql("insert into orders values (4, 'undone')")
    shop.catch_up()
    return shop, backup


def test_restored_from_a_copy(open_shop: OpenShop, own_server: OwnServer) -> None:
    shop, backup = captured_after_a_copy(open_shop, own_server)
    own_server.stop()
    own_server.restore(backup)
    own_server.start()
    stopped(shop, "DIVERGED")
    repaired(shop)
    assert 4 not in shop.state_of()


def test_restored_from_a_copy_that_has_grown_since(open_shop: OpenShop, own_server: OwnServer) -> None:
    """Its position says nothing, but it sends something else than what was stored last."""
    shop, backup = captured_after_a_copy(open_shop, own_server)
    captured = shop.row.lsn
    own_server.stop()
    own_server.restore(backup)
    own_server.start()
    with psycopg.connect(own_server.dsn, autocommit=True) as app:
        for number in range(5, 500):
            app.execute("insert into orders values (%s, 'other')", (number,))
        ((position,),) = app.execute("select (pg_current_wal_flush_lsn() - '0/0')::bigint").fetchall()
    assert position > captured
    stopped(shop, "DIVERGED")
    repaired(shop)
    assert 4 not in shop.state_of()
    assert len(shop.state_of()) == 3 + 495 + 1


def standby_of(server: OwnServer, backup: Path) -> None:
    """Lets the server go on from a copy, as a standby that ends its recovery at once."""
    server.stop()
    server.restore(backup)
    (server.data / "standby.signal").touch()
    (server.data / "standby.signal").chmod(0o666)
    server.start()
    server.promote()


def test_timeline_promotion_of_a_standby_that_was_behind(open_shop: OpenShop, own_server: OwnServer) -> None:
    shop, backup = captured_after_a_copy(open_shop, own_server)
    standby_of(own_server, backup)
    with psycopg.connect(own_server.dsn, autocommit=True) as app:
        for number in range(5, 500):
            app.execute("insert into orders values (%s, 'other')", (number,))
    assert shop.sql("select left(pg_walfile_name(pg_current_wal_lsn()), 8)") == [("00000002",)]
    stopped(shop, "DIVERGED")
    repaired(shop)


def test_timeline_promotion_of_a_standby_that_had_everything_goes_on(
    open_shop: OpenShop, own_server: OwnServer
) -> None:
    shop = open_shop(source=own_server.dsn)
    begin(shop)
    assert shop.row.timeline == 1
    own_server.stop()
    standby_of(own_server, own_server.back_up("backup"))
    shop.sql("insert into orders values (4, 'kept')")
    shop.catch_up()
    assert shop.row.timeline == 2
    assert [key for topic, key, _ in shop.messages() if topic == "orders.insert"] == ["4"]


def test_another_server(open_shop: OpenShop, own_server: OwnServer, source_url: str, sqlite_url: str) -> None:
    begin(open_shop())
    shop = open_shop(source=own_server.dsn)
    shop.sql(ORDERS, "insert into orders values (2, 'elsewhere')")
    shop.capture()
    stopped(shop, "OTHER_SERVER")
    repaired(shop)
    assert set(shop.state_of()) == {2, 1000}


def test_no_slots_left(open_shop: OpenShop, own_server: OwnServer) -> None:
    shop = open_shop(source=own_server.dsn)
    shop.sql(ORDERS)
    ((most,),) = shop.sql("select current_setting('max_replication_slots')::int")
    shop.sql(f"select pg_create_physical_replication_slot('s' || n) from generate_series(1, {most}) n")
    shop.capture()
    with pytest.raises(CaptureError, match="no replication slot left"):
        shop.catch_up()
    assert (shop.row.state, shop.row.reason) == ("stopped", "NO_SLOTS_LEFT")
    shop.sql("select pg_drop_replication_slot('s1')")
    shop.catch_up()  # what the operator has repaired needs no command
    assert shop.row.reason is None
