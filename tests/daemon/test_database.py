"""The database comes late, goes away and comes back: the daemon waits, says so a few times, and is the same process."""

from __future__ import annotations

import signal
import sqlite3
import time
from pathlib import Path

import pytest

from tests.daemon.own_server import own_server
from tests.daemon.running import Shop, shop_at, until
from todoku.core.settings import Settings

pytestmark = pytest.mark.slow


@pytest.mark.postgres
def test_a_database_that_is_down_is_waited_for_and_one_that_goes_comes_back(tmp_path: Path) -> None:
    """S2-22, S2-23: not ready, claiming nothing, a bounded number of lines; ready again by itself, nothing lost."""
    with own_server() as server, shop_at(tmp_path, server.url) as shop:
        shop.box.migrate()
        shop.box.close()
        server.stop()

        daemon = shop.start("run", "--app", "shop:box", "--workers", "2")
        until(lambda: daemon.events("WAITING_FOR_DATABASE"), "it to say that it waits")
        status, body = daemon.ask("/readyz?verbose")
        assert (status, body["ready"]) == (503, False)
        assert "database" in body["reasons"]
        assert daemon.ask("/healthz")[0] == 200
        server.start()
        daemon.until_ready()
        pids = {worker["pid"] for worker in daemon.workers()}

        shop.enqueue("quick", 1)
        until(lambda: shop.noted("quick 1"), "the first to arrive")
        server.stop()
        until(lambda: daemon.ask("/readyz")[0] == 503, "it to notice")
        assert "tripped" in daemon.ask("/readyz")[1]["reasons"]
        assert daemon.ask("/healthz")[0] == 200
        assert daemon.ask("/metrics")[0] == 200
        assert "the database is not available" in daemon.ask("/")[1]
        time.sleep(5)  # an outage has a length; nothing can be awaited in it

        server.start()
        began = time.monotonic()
        daemon.until_ready()
        print(f"ready_again_after_sec: {time.monotonic() - began:.2f}")
        shop.enqueue("quick", 2)
        until(lambda: shop.noted("quick 2"), "work to go on")
        assert {worker["pid"] for worker in daemon.workers()} == pids, "the same processes"
        for name in ("DATABASE_FAILED", "GUARDRAIL_TRIPPED", "DATABASE_RECOVERED"):
            said = [line for line in daemon.events(name) if line.get("part") == "supervisor"]
            assert len(said) == 1, name
        assert len(daemon.err.splitlines()) < 60, daemon.err
        assert daemon.stop() == 0


@pytest.mark.postgres
def test_a_daemon_that_waits_for_its_database_can_be_stopped(tmp_path: Path) -> None:
    with shop_at(tmp_path, "postgresql://u:sesame@127.0.0.1:1/x") as shop:
        daemon = shop.start("up", "--app", "shop:box")
        until(lambda: daemon.events("WAITING_FOR_DATABASE"), "it to say that it waits")
        daemon.signal(signal.SIGTERM)
        assert daemon.exit_code() == 0
        assert len(daemon.events("WAITING_FOR_DATABASE")) == 1
        assert "sesame" not in daemon.out + daemon.err


def test_run_waits_for_the_migration_that_somebody_else_applies(sqlite_shop: Shop, tmp_path: Path) -> None:
    daemon = sqlite_shop.start("run", "--app", "shop:box")
    until(lambda: (body := daemon.ask("/readyz")[1]) and "not_migrated" in body["reasons"], "not migrated")
    assert "todoku migrate" in daemon.events("WAITING_FOR_DATABASE")[0]["error"]
    assert not (tmp_path / "todoku.db").exists(), "waiting makes no file"
    sqlite_shop.box.migrate()
    daemon.until_ready()
    assert daemon.stop() == 0


def test_a_file_that_cannot_be_opened_is_one_line_and_exit_1(sqlite_shop: Shop, tmp_path: Path) -> None:
    """Nothing will make it appear: unlike a server, it is not waited for."""
    nowhere = f"sqlite:///{tmp_path}/nowhere/todoku.db"
    daemon = sqlite_shop.start("up", "--app", "shop:box", TODOKU_DATABASE=nowhere)
    assert daemon.exit_code() == 1
    (line,) = daemon.err.splitlines()
    assert "cannot be opened" in line
    assert f"{tmp_path}/nowhere exists" in line


def test_a_newer_schema_is_refused(sqlite_shop: Shop, tmp_path: Path) -> None:
    sqlite_shop.box.migrate()
    connection = sqlite3.connect(tmp_path / "todoku.db")
    with connection:
        connection.execute("insert into todoku_migration values (99, 'from the future', 'x', 0)")
    connection.close()
    daemon = sqlite_shop.start("up", "--app", "shop:box")
    assert daemon.exit_code() == 1
    assert "the schema is at version 99" in daemon.err


def test_a_disabled_daemon_takes_no_work_and_says_so(sqlite_shop: Shop) -> None:
    """S0-85, but for its default, which is on here: publishing still stores."""
    sqlite_shop.enqueue("quick", 1)
    daemon = sqlite_shop.start("run", "--app", "shop:box", OUTBOX_ENABLED="false")
    until(lambda: daemon.ask("/readyz")[1] == {"ready": False, "reasons": ["disabled"]}, "disabled")
    assert daemon.ask("/healthz")[0] == 200
    assert daemon.stop() == 0
    assert sqlite_shop.counts()["pending"] == 1


def test_statistics_are_logged(sqlite_shop: Shop) -> None:
    """S3-76, S3-77: again and again, every 30 s unless told otherwise."""
    assert Settings().stats_interval_sec == 30
    sqlite_shop.enqueue("quick", 1)
    daemon = sqlite_shop.run(TODOKU_STATS_INTERVAL_SEC="0.2")
    said = "Job Stats - Pending: 0, Processing: 0, Completed: 1, Failed: 0"
    until(lambda: len(daemon.events(said)) >= 3, "the line of seed 003, three times")
    assert daemon.stop() == 0
