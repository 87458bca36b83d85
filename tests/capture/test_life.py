"""One reader: workers that come and go, a source that is away, an operator who changes the capture."""

from __future__ import annotations

import logging
import threading
import time

import psycopg
import pytest

from tests.capture.conftest import OpenShop
from tests.capture.servers import OwnServer
from tests.capture.shop import ORDERS, Shop
from todoku.capture.replication import Stream, Wakeup
from todoku.core.errors import CaptureError

pytestmark = pytest.mark.postgres


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage().split()[0] for record in caplog.records if record.name == "todoku"]


def test_a_worker_reads_and_runs_the_handler(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "todoku")
    shop.sql(ORDERS, "insert into orders values (1)")
    shop.capture()
    shop.route()
    with shop.reading():
        shop.until(lambda: len(shop.seen) == 1)
        shop.sql("insert into orders values (2)")
        shop.until(lambda: len(shop.seen) == 2)
        row = shop.row
        assert (row.state, row.owned, row.owner is not None) == ("streaming", True, True)
        shop.until(lambda: shop.row.measured_at is not None)
    assert shop.row.owner is None
    assert [key for _, key, _ in shop.seen] == ["1", "2"]
    assert events(caplog).count("CAPTURE_STARTED") == 1
    assert events(caplog).count("CAPTURE_SNAPSHOT_DONE") == 1


def test_the_second_worker_takes_over_when_the_first_ends(open_shop: OpenShop) -> None:
    first, second = open_shop(), open_shop()
    first.sql(ORDERS)
    for shop in (first, second):
        shop.capture()
    with second.reading():
        with first.reading():
            first.until(lambda: first.row.state == "streaming")
            owner = first.row.owner
            for number in range(20):
                first.sql(f"insert into orders values ({number})")
        first.sql("insert into orders values (20)")
        first.until(lambda: len(first.messages()) == 21)
        first.until(lambda: first.row.owner not in (None, owner) or owner == first.row.owner)
    assert [key for _, key, _ in first.messages()] == [str(number) for number in range(21)]


def test_a_second_reader_of_the_slot_is_waited_for(shop: Shop) -> None:
    shop.sql(ORDERS)
    shop.capture()
    row = shop.catch_up()
    wakeup = Wakeup()
    stream = Stream(shop.source, wakeup)
    stream.start(row.slot, row.publication, 0)
    shop.sql("insert into orders values (1)")
    try:
        with pytest.raises(CaptureError, match="Another reader has the slot"):
            shop.catch_up(timeout=1)
        assert (shop.row.state, shop.row.reason) == ("away", "SLOT_BUSY")
    finally:
        stream.close()
        wakeup.close()
    shop.catch_up()
    assert [key for _, key, _ in shop.messages()] == ["1"]


@pytest.mark.parametrize("how", ["stop", "shut_down"])
def test_a_source_that_is_away_comes_back(
    how: str, open_shop: OpenShop, own_server: OwnServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "todoku")
    shop = open_shop(source=own_server.dsn)
    shop.sql(ORDERS)
    shop.capture()
    with shop.reading():
        shop.until(lambda: shop.row.state == "streaming")
        shop.sql("insert into orders values (1)")
        shop.until(lambda: len(shop.messages()) == 1)
        getattr(own_server, how)()
        shop.until(lambda: shop.row.state == "away")
        assert shop.row.reason == "SOURCE_AWAY"
        own_server.start()
        shop.sql("insert into orders values (2)")
        shop.until(lambda: len(shop.messages()) == 2)
        shop.until(lambda: shop.row.state == "streaming")
        assert (shop.row.reason, shop.row.why) == (None, None)
    assert "CAPTURE_AWAY" in events(caplog)
    assert events(caplog).count("CAPTURE_STARTED") == 2


def test_a_reader_that_was_fenced_out_stops_at_its_next_write(shop: Shop) -> None:
    shop.sql(ORDERS, "insert into orders values (1)")
    shop.capture()
    with shop.reading():
        shop.until(lambda: shop.row.state == "streaming")
        epoch = shop.row.epoch
        shop.box.captures["main"].snapshot(by="ada", why="a test")
        shop.until(lambda: len(shop.messages()) == 2)
        assert shop.row.epoch > epoch + 1
    assert [(topic, key) for topic, key, _ in shop.messages()] == [("orders.snapshot", "1")] * 2


def test_what_the_operator_repairs_needs_no_command(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("todoku.capture.reader._RETRY_STOPPED", 0.2)
    shop.sql("create table orders (id int)")
    shop.capture()
    with shop.reading():
        shop.until(lambda: shop.row.state == "stopped")
        assert shop.row.reason == "NO_IDENTITY"
        shop.sql("alter table orders add primary key (id)", "insert into orders values (1)")
        shop.until(lambda: len(shop.messages()) == 1)


def test_a_transaction_that_is_open_for_long_holds_up_the_first_start_and_the_worker_still_ends(shop: Shop) -> None:
    shop.sql(ORDERS)
    shop.capture()
    with shop.session() as app:
        app.execute("insert into orders values (1)")
        with shop.reading():
            shop.until(
                lambda: shop.sql(
                    "select from pg_stat_activity where query like '%create%slot%' and pid <> pg_backend_pid()"
                )
            )
        assert shop.row.lsn == 0
        assert shop.sql("select from pg_replication_slots where database = current_database()") == []
    shop.catch_up()
    assert [topic for topic, _, _ in shop.messages()] == ["orders.snapshot"]


def test_a_slow_store_does_not_cost_the_stream(
    open_shop: OpenShop, own_server: OwnServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keep-alives are answered while a commit takes longer than wal_sender_timeout."""
    from todoku.store.captures import CaptureStore

    own_server.set(wal_sender_timeout="1s")
    shop = open_shop(source=own_server.dsn)
    shop.sql(ORDERS)
    shop.capture()
    shop.catch_up()
    store = CaptureStore.store
    slow = threading.Event()

    def storing(self: CaptureStore, fence: object, portion: object, **more: object) -> object:
        if portion.drafts and not slow.is_set():  # type: ignore[attr-defined]
            slow.set()
            time.sleep(3.5)  # the fault itself: a commit that takes longer than wal_sender_timeout
        return store(self, fence, portion, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(CaptureStore, "store", storing)
    with shop.reading():
        shop.until(lambda: shop.sql("select from pg_replication_slots where active_pid is not null"))
        ((pid,),) = shop.sql("select active_pid from pg_replication_slots")
        shop.sql("insert into orders values (1)")
        shop.until(lambda: len(shop.messages()) == 1)
        assert shop.sql("select active_pid from pg_replication_slots") == [(pid,)]


def test_drop_leaves_nothing_at_the_source(shop: Shop) -> None:
    shop.sql(ORDERS)
    shop.capture()
    with shop.reading():
        shop.until(lambda: shop.row.state == "streaming")
        dropped = shop.box.captures["main"].drop(by="ada", why="it is not needed")
    assert dropped is not None
    assert shop.box.store.captures.list() == ()
    assert shop.sql("select from pg_publication") == []
    assert shop.sql("select from pg_replication_slots where database = current_database()") == []
    assert shop.box.captures["main"].drop(by="ada", why="once more") is None


def test_drop_of_a_source_that_is_gone(open_shop: OpenShop, own_server: OwnServer) -> None:
    shop = open_shop(source=own_server.dsn)
    shop.sql(ORDERS)
    shop.capture()
    shop.catch_up()
    own_server.stop()
    with pytest.raises(CaptureError, match="forget_source=True"):
        shop.box.captures["main"].drop(by="ada", why="it is gone")
    assert shop.box.captures["main"].drop(by="ada", why="it is gone", forget_source=True) is not None
    assert shop.box.store.captures.list() == ()


def test_the_guardrail_drops_the_slot_loudly(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    shop.sql(ORDERS, "insert into orders values (1)")
    shop.capture(drop_slot_above=8 << 20)
    shop.catch_up()
    with shop.session() as open_transaction:
        open_transaction.execute("insert into orders values (2)")  # it keeps the slot where it is
        with psycopg.connect(shop.source, autocommit=True) as app:
            for _ in range(5):
                app.execute("select pg_logical_emit_message(false, 'fill', repeat('x', 4000000))")
            app.execute("checkpoint")
        with pytest.raises(CaptureError, match="drop_slot_above"):
            shop.catch_up()
    row = shop.row
    assert (row.state, row.reason) == ("stopped", "SLOT_DROPPED")
    assert shop.sql("select from pg_replication_slots where database = current_database()") == []
    assert "SLOT_DROPPED" in events(caplog)
    assert "CAPTURE_STOPPED" in events(caplog)
    with pytest.raises(CaptureError, match="todoku capture snapshot main"):
        shop.catch_up()
    shop.box.captures["main"].snapshot(by="ada", why="the disk is larger")
    shop.catch_up()
    assert set(shop.state_of()) == {1, 2}


def test_doctor_is_warned_of_a_slot_without_a_bound(shop: Shop, open_shop: OpenShop, own_server: OwnServer) -> None:
    shop.sql(ORDERS)
    shop.capture()
    with shop.reading():
        shop.until(lambda: shop.row.warnings)
    assert "max_slot_wal_keep_size is -1" in shop.row.warnings[0]


def test_a_bounded_slot_has_no_warning(open_shop: OpenShop, own_server: OwnServer) -> None:
    own_server.set(max_slot_wal_keep_size="1GB")
    shop = open_shop(source=own_server.dsn)
    shop.sql(ORDERS)
    shop.capture()
    with shop.reading():
        shop.until(lambda: shop.row.measured_at)
        shop.until(lambda: shop.row.state == "streaming")
    assert shop.row.warnings == ()


def test_heartbeats_move_the_slot_of_a_quiet_database(shop: Shop, source_dsn: str) -> None:
    shop.sql(ORDERS)
    shop.capture()
    before = shop.catch_up()
    with psycopg.connect(source_dsn, autocommit=True) as other:
        other.execute("select pg_logical_emit_message(false, 'fill', repeat('x', 1000000))")
    with shop.reading():
        shop.until(lambda: shop.row.lsn > before.lsn + 1_000_000)
        shop.until(
            lambda: shop.sql(
                f"select from pg_replication_slots where slot_name = '{before.slot}'"
                f" and confirmed_flush_lsn - '0/0' > {before.lsn + 1_000_000}"
            )
        )
