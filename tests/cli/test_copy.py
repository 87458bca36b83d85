"""`todoku copy`: everything moves to another database, through kills, while nobody can write to the old one."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.cli.program import Run, misused, refused, rows, said
from tests.daemon.running import ARMED
from tests.support.crew import until
from tests.support.world import World
from todoku.store.table import AT_ONCE

pytestmark = pytest.mark.postgres
LARGE = "x" * 900_000


@pytest.fixture
def old(sqlite_url: str) -> Iterator[World]:
    """A SQLite file with three batches of messages, half of which have arrived."""
    world = World("sqlite", sqlite_url)
    world.store.migrate()
    world.publish(20, payload=lambda place: {"n": place, "text": LARGE})
    world.publish(1, idempotency_key="k1")
    worker = world.worker()
    world.settle(world.claim(worker, limit=10))
    world.store.leases.end(worker, lost=False)
    yield world
    world.close()


@pytest.fixture
def new(postgres_url: str) -> Iterator[World]:
    """A PostgreSQL database to move to."""
    world = World("postgres", postgres_url)
    yield world
    world.close()


def test_it_moves_everything_and_says_what(run: Run, old: World, new: World) -> None:
    done = run("copy", old.url, new.url)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("copied 43 rows of ")
    assert done.stdout.endswith(" tables: counts and digests are equal on both sides\n")
    assert "copying todoku_message: 21 of 21" in done.stderr.splitlines(), "plain lines where no terminal is"
    assert (new.deliveries(), new.history()) == (old.deliveries(), old.history())
    assert new.publish(1, idempotency_key="k1")[0].duplicate
    assert said(run("verify", "--db", new.url))
    assert "other rows" in refused(run("copy", old.url, new.url)), "once is enough"


def test_killed_again_and_again_it_goes_on_where_it_was(run: Run, old: World, new: World) -> None:
    """A real kill -9, after each commit: the first has begun, the next three each bring a batch."""
    seen = []
    for _ in range(4):
        killed = run("copy", old.url, new.url, module=ARMED, TODOKU_FAILPOINTS="copy.after_commit=kill")
        assert killed.returncode == -signal.SIGKILL
        seen.append(new.sql("select (select count(*) from todoku_history), (select count(*) from todoku_message)")[0])
    assert seen == [(0, 0), (10, 0), (10, 0), (10, 10)], "history, one key in the ledger, the first megabytes"
    assert new.deliveries() == [], "nothing runs yet"
    found = {row["table"]: row for row in rows(run("copy", "--json", old.url, new.url))}
    assert (found["todoku_message"]["rows"], found["todoku_message"]["brought"]) == (21, 11)
    assert (found["todoku_history"]["rows"], found["todoku_history"]["brought"]) == (10, 0)
    assert len(found["todoku_message"]["digest"]) == 64
    assert new.deliveries() == old.deliveries()


def test_nobody_writes_to_the_source_meanwhile(old: World, new: World) -> None:
    """The copy is stopped in the middle; whoever wants to publish waits for it, and does not get lost."""
    environ = {**os.environ, "TODOKU_FAILPOINTS": "copy.after_commit=stop"}
    program = subprocess.Popen(
        [sys.executable, "-m", ARMED, "copy", "--json", old.url, new.url],
        env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        until(lambda: stopped(program.pid))
        publisher = sqlite3.connect(old.url.removeprefix("sqlite:///"), timeout=0, isolation_level=None)
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            publisher.execute("begin immediate")
        assert publisher.execute("select count(*) from todoku_message").fetchall() == [(21,)], "readers may read"
        publisher.close()
        until(lambda: gone_on(program) is not None)
        assert program.returncode == 0, program.stderr
    finally:
        program.kill()
        program.communicate()
    assert new.deliveries() == old.deliveries()


def test_nobody_writes_to_a_source_on_postgresql_meanwhile(new: World) -> None:
    """The same, the other way round."""
    new.publish(3)
    with new.store.database.bulk() as bulk, bulk.freeze(), psycopg.connect(new.url) as publisher:
        publisher.execute("set lock_timeout = 50")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            publisher.execute("delete from todoku_message")
        publisher.rollback()
        assert publisher.execute("select count(*) from todoku_message").fetchall() == [(3,)]


def stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def gone_on(program: subprocess.Popen[bytes]) -> int | None:
    """Let it go on if it stands; its exit code, if it has ended."""
    if program.poll() is None and stopped(program.pid):
        program.send_signal(signal.SIGCONT)
    return program.poll()


@pytest.mark.parametrize("side", ["source", "target"])
def test_it_refuses_while_a_worker_holds_a_lease(run: Run, old: World, new: World, side: str) -> None:
    (old if side == "source" else new).worker(name="mail-7")
    line = refused(run("copy", old.url, new.url))
    assert f"a worker holds a lease on the {side}: mail-7" in line
    assert new.sql("select count(*) from todoku_message") == [(0,)]


def test_a_changed_source_is_found_out_and_copied_anew(run: Run, old: World, new: World) -> None:
    for _ in range(4):
        run("copy", old.url, new.url, module=ARMED, TODOKU_FAILPOINTS="copy.after_commit=kill")
    old.sql("update todoku_message set headers = '{}' where seq = 3")
    done = run("copy", old.url, new.url)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == (
        "todoku: todoku_message is not the same on both sides: a row differs; no worker can run on the target yet"
        " (the source was changed between two runs: run the same command again with --restart)"
    )
    assert new.deliveries() == []
    assert run("copy", "--restart", old.url, new.url).returncode == 0
    assert new.deliveries() == old.deliveries()


def test_a_dry_run_makes_nothing(run: Run, old: World, tmp_path: Path) -> None:
    target = tmp_path / "later.db"
    lines = said(run("copy", "--dry-run", old.url, f"sqlite:///{target}"))
    assert lines[0].split() == ["table", "rows", "there"]
    assert [line.split()[0] for line in lines[-3:]] == list(AT_ONCE), "in the order of the copy"
    assert ["todoku_message", "21", "0"] in [line.split() for line in lines]
    assert not target.exists()
    done = run("copy", old.url, f"sqlite:///{target}")
    assert done.returncode == 0, "SQLite to SQLite, and the file is made"
    assert target.exists()


def test_wrong_usage_and_wrong_databases(run: Run, old: World, new: World, tmp_path: Path) -> None:
    assert "Missing argument 'TARGET-URL'" in misused(run("copy", old.url))
    assert "is no database todoku knows" in refused(run("copy", old.url, "mysql://localhost/shop"))
    assert "there is no database" in refused(run("copy", f"sqlite:///{tmp_path}/missing.db", new.url))
    assert "same database" in refused(run("copy", old.url, old.url.replace("/todoku.db", "/./todoku.db")))
    sqlite3.connect(tmp_path / "empty.db").execute("create table mine (id)").connection.close()
    line = refused(run("copy", f"sqlite:///{tmp_path}/empty.db", new.url))
    assert "the source has schema version 0" in line
    assert not (tmp_path / "missing.db").exists()
