"""One thread writes to a file, however many stores, threads and forks there are; other processes are waited for."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tests.support.world import SOMEBODY, World, aborted
from todoku import App
from todoku.core.errors import DatabaseBusy
from todoku.store.database import Tx
from todoku.store.deliveries import Filter

A_MINUTE = 60.0

OTHERS: set[threading.Thread] = set()
"""Threads of stores that other tests have not closed yet."""


@pytest.fixture(autouse=True)
def alone() -> None:
    OTHERS.clear()
    OTHERS.update(threading.enumerate())


@pytest.fixture
def world(alone: None, sqlite_url: str) -> Iterator[World]:
    """A SQLite store."""
    world = World("sqlite", sqlite_url)
    world.store.migrate()
    yield world
    world.close()


def writer_threads() -> list[str]:
    new = set(threading.enumerate()) - OTHERS
    return [thread.name for thread in new if thread.name.startswith("todoku-writer")]


# ---------------------------------------------------------------------------------------------- one thread


def test_one_thread_writes_for_all_stores_on_a_file(world: World, tmp_path: Path) -> None:
    """Ten stores, two of them by another name of the file: one thread; it ends with the last of them."""
    (tmp_path / "link.db").symlink_to(tmp_path / "todoku.db")
    stores = [world.another_store() for _ in range(8)]
    apps = [App(f"sqlite:///{tmp_path}/link.db"), App(f"sqlite:///{tmp_path}/../{tmp_path.name}/todoku.db")]
    for store in (*stores, *(app.store for app in apps)):
        store.leases.reclaim()
    assert writer_threads() == ["todoku-writer:todoku.db"]
    for store in (*stores, *(app.store for app in apps)):
        store.close()
    assert writer_threads() == ["todoku-writer:todoku.db"]  # the world's own store
    world.publish()
    world.store.close()
    assert writer_threads() == []


def test_another_file_has_another_thread(world: World, tmp_path: Path) -> None:
    """Files do not wait for each other."""
    other = App(f"sqlite:///{tmp_path}/other.db")
    other.migrate()
    assert sorted(writer_threads()) == ["todoku-writer:other.db", "todoku-writer:todoku.db"]
    other.close()
    assert writer_threads() == ["todoku-writer:todoku.db"]


def test_many_threads_that_open_one_store_at_once_open_it_once(sqlite_url: str) -> None:
    """And one close is enough to end it."""
    for _ in range(20):
        world = World("sqlite", sqlite_url)
        together = threading.Barrier(8)

        def first_use(store: World = world, barrier: threading.Barrier = together) -> None:
            barrier.wait()
            store.store.migrate()

        with ThreadPoolExecutor(8) as pool:
            for future in [pool.submit(first_use) for _ in range(8)]:
                future.result()
        assert len(writer_threads()) == 1
        world.close()
        assert writer_threads() == []


def test_writes_from_many_threads_are_all_there(world: World) -> None:
    """Each call returns its own rows, whichever thread it came from."""
    with ThreadPoolExecutor(8) as pool:
        futures = [pool.submit(world.publish, 5) for _ in range(40)]
        ids = [message.id for future in futures for message in future.result()]
    assert len(set(ids)) == 200
    assert {row.message_id for row in world.deliveries()} == set(ids)


def test_a_write_that_fails_does_not_stop_the_thread(world: World) -> None:
    """Its error goes to whoever called, and nothing of it stays."""

    def breaks(tx: Tx) -> None:
        tx.rows("set_queue", name="mail", paused=1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        world.store.database.write("publish", breaks)
    assert world.sql("select count(*) from todoku_queue") == [(0,)]
    world.publish()
    assert len(world.deliveries()) == 1


# ----------------------------------------------------------------------------------------- other processes

HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute(sys.argv[2])
connection.execute("insert into mine values (1)")
print("locked", flush=True)
sys.stdin.readline()
connection.execute("commit")
print("free", flush=True)
"""


@contextmanager
def another_process(path: Path, begin: str) -> Iterator[Callable[[], None]]:
    """A process that holds a lock on the file, until it is told to let go."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), begin], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def let_go() -> None:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()

    with process:
        assert process.stdout.readline() == "locked\n"
        try:
            yield let_go
        finally:
            process.kill()


@pytest.fixture
def file(world: World, tmp_path: Path) -> Path:
    """The file of the world, with a table for somebody else."""
    world.sql("create table mine (id integer)")
    return tmp_path / "todoku.db"


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when somebody has met a lock and waits."""
    event, sleep = threading.Event(), time.sleep

    def noted(seconds: float) -> None:
        event.set()
        sleep(seconds)

    monkeypatch.setattr("todoku.store.sqlite.writer.time.sleep", noted)
    return event


@pytest.mark.parametrize("begin", ["begin immediate", "begin exclusive"])
def test_a_write_waits_for_another_process(world: World, file: Path, waiting: threading.Event, begin: str) -> None:
    """It waits as long as the other one holds the lock, and then succeeds."""
    with another_process(file, begin) as let_go, ThreadPoolExecutor(1) as pool:
        future = pool.submit(world.publish)
        assert waiting.wait(60)
        assert not future.done()
        let_go()
        (message,) = future.result(60)
    assert [row.message_id for row in world.deliveries()] == [message.id]


def test_a_read_waits_for_another_process_that_writes(world: World, file: Path, waiting: threading.Event) -> None:
    """Without WAL a commit keeps readers out for a moment; they wait for it instead of failing."""
    world.publish()
    with another_process(file, "begin exclusive") as let_go, ThreadPoolExecutor(1) as pool:
        future = pool.submit(world.deliveries)
        if world.store.database._open_writer().journal == "wal":  # type: ignore[attr-defined]
            assert len(future.result(60)) == 1  # nobody keeps a reader out
            return
        assert waiting.wait(60)
        let_go()
        assert len(future.result(60)) == 1


def test_who_waits_looks_often_and_at_random_moments(world: World, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers that publish in a loop take the lock again the moment they let go of it.

    Beside three of them, waits that grew to 50 ms found it free after 5 to 9 s, short ones in a fraction of that; and
    equal waits would make two processes that met once meet for ever.
    """
    waits: list[float] = []
    enough, sleep = threading.Event(), time.sleep

    def noted(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 100:
            enough.set()
        sleep(seconds)

    monkeypatch.setattr("todoku.store.sqlite.writer.time.sleep", noted)
    with another_process(file, "begin immediate") as let_go, ThreadPoolExecutor(1) as pool:
        future = pool.submit(world.publish)
        assert enough.wait(60)
        let_go()
        future.result(60)
    assert max(waits) <= 0.005
    assert len(set(waits)) > 90


def test_a_writer_that_met_others_leaves_the_lock_to_them_between_two_transactions(
    world: World, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits asks now and then, and would miss the moment between two transactions time after time."""
    waits: list[float] = []
    met, sleep = threading.Event(), time.sleep

    def noted(seconds: float) -> None:
        waits.append(seconds)
        met.set()
        sleep(min(seconds, 0.001))

    monkeypatch.setattr("todoku.store.sqlite.writer.time.sleep", noted)
    monkeypatch.setattr("todoku.store.sqlite.writer._GAP", A_MINUTE)
    monkeypatch.setattr("todoku.store.sqlite.writer._LATELY", A_MINUTE)
    for _ in range(3):
        world.publish()
    assert not [wait for wait in waits if wait > A_MINUTE / 2], "alone, it leaves no gap"
    with another_process(file, "begin immediate") as let_go, ThreadPoolExecutor(1) as pool:
        monkeypatch.setattr("todoku.store.sqlite.writer._GAP", 0.0)
        future = pool.submit(world.publish)
        assert met.wait(60)
        let_go()
        future.result(60)
    monkeypatch.setattr("todoku.store.sqlite.writer._GAP", A_MINUTE)
    world.publish()
    assert [wait for wait in waits if wait > A_MINUTE / 2], "it leaves one after it has waited"


def test_a_lock_that_is_held_too_long_is_told(world: World, file: Path) -> None:
    """DatabaseBusy: nothing was changed, and the hint names the usual cause and its cure."""
    world.store.close()
    world.store.database._timeout = 0.2  # type: ignore[attr-defined]
    with another_process(file, "begin immediate") as let_go:
        with pytest.raises(DatabaseBusy, match="held the database lock") as busy:
            world.publish()
        let_go()
    assert "pass tx=" in busy.value.hint
    assert world.deliveries() == []
    world.publish()
    assert len(world.deliveries()) == 1


def test_a_caller_that_forgets_tx_is_told_to_pass_it(world: World, file: Path) -> None:
    """API.md: this thread has a transaction open itself, and publishes with tx=None: it waits for itself."""
    world.store.close()
    world.store.database._timeout = 0.2  # type: ignore[attr-defined]
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("insert into mine values (1)")
        with pytest.raises(DatabaseBusy) as busy:
            world.publish()
        connection.commit()
    assert "pass tx= to join it" in busy.value.hint


# ----------------------------------------------------------------------------------------------- forks

FORKS = """
import os, signal, sys, threading
import todoku
from todoku.store.failpoint import armed

signal.alarm(120)  # a process that waits for ever ends here
box = todoku.App(sys.argv[1])
box.route("**", to="warehouse")
box.migrate()
box.publish("order.created", {"who": "parent, before"}, tx=None)
inside, forking = threading.Event(), threading.Event()

def slowly(*_):
    inside.set()
    assert forking.wait(60)

def write():
    with armed("publish.before_commit", slowly):
        box.publish("order.created", {"who": "parent, meanwhile"}, tx=None)

def read():
    box.store.database.read(slowly)

os.register_at_fork(before=forking.set)  # the last to register is the first to be called
other = threading.Thread(target={"write": write, "read": read, "idle": inside.set}[sys.argv[2]])
other.start()
assert inside.wait(60)
child = os.fork()
if child == 0:
    signal.alarm(90)
    box.publish("order.created", {"who": "child"}, tx=None)
    assert box.store.statistics.counts().of("pending") >= 2
    box.close()
    sys.exit(0)  # as a program ends: with everything the interpreter cleans up
other.join()
assert os.waitpid(child, 0)[1] == 0
box.publish("order.created", {"who": "parent, after"}, tx=None)
box.close()
"""

POOL = """
import multiprocessing, signal, sys
import todoku

signal.alarm(120)
box = todoku.App(sys.argv[1])
box.route("**", to="warehouse")
box.migrate()

def work(number):
    signal.alarm(90)
    box.publish("order.created", {"who": f"child {number}"}, tx=None)
    return box.store.ping()

box.publish("order.created", {"who": "parent, before"}, tx=None)
with multiprocessing.get_context("fork").Pool(3) as pool:
    pool.map(work, range(12))
box.publish("order.created", {"who": "parent, after"}, tx=None)
box.close()
"""


def run(program: str, *arguments: str) -> None:
    """Run a program that forks. From Python 3.12 on a fork beside threads is warned about: that is what is tested."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr


def published(world: World) -> list[str]:
    return [who for (who,) in world.sql("select json_extract(payload, '$.who') from todoku_message order by 1")]


@pytest.mark.parametrize("what", ["idle", "write", "read"])
def test_a_store_works_on_both_sides_of_a_fork(world: World, what: str) -> None:
    """The child opens connections of its own, also when the parent was in the middle of a transaction.

    SQLite remembers in memory what its process has locked: forked in a transaction, the child would inherit the
    memory without the lock, and find the file locked for ever.
    """
    run(FORKS, world.url, what)
    meanwhile = ["parent, meanwhile"] if what == "write" else []
    assert published(world) == ["child", "parent, after", "parent, before", *meanwhile]
    assert world.sql("pragma integrity_check") == [("ok",)]


def test_a_pool_of_forked_processes_shares_the_file(world: World) -> None:
    """multiprocessing's fork: every child has a writer of its own, and the parent goes on."""
    run(POOL, world.url)
    expected = [*(f"child {number}" for number in range(12)), "parent, after", "parent, before"]
    assert published(world) == sorted(expected)


# ------------------------------------------------------------------------------------------------- ids


def test_an_id_is_never_used_again(world: World) -> None:
    """I4: (id, epoch, worker) works once, so a row that is gone takes its id along, the highest one too."""
    seen: list[int] = []
    for way in ("settled", "purged", "deleted"):
        world.publish(3)
        claims = world.claim(world.worker())
        seen += [claim.id for claim in claims]
        if way == "purged":
            world.settle(claims, aborted())
            world.store.acts.purge(Filter(status="aborted"), SOMEBODY)
        elif way == "deleted":
            world.sql("delete from todoku_delivery")
        else:
            world.settle(claims)
        assert world.deliveries() == []
    assert len(seen) == 9
    assert seen == sorted(set(seen))


def test_a_message_number_is_never_used_again(world: World) -> None:
    """History rows and deliveries refer to messages by number: a later message must not inherit them."""
    world.publish(3)
    ((last,),) = world.sql("select max(seq) from todoku_message")
    world.sql("delete from todoku_delivery")
    world.sql("delete from todoku_message")
    world.publish()
    ((first,),) = world.sql("select min(seq) from todoku_message")
    assert first > last
