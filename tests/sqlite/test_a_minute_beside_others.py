"""SQLite for a while: a standard-library publisher and SQLAlchemy handlers on the same file beside the engine.

In one process and in two, of which one is killed: acknowledged rows missing = 0 (I1, I2, H26). The journal is the one
this build gets. TODOKU_TEST_MINUTE_SECONDS=30 makes it a minute.
"""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from todoku import App
from todoku.core.decision import SUCCEEDED
from todoku.core.errors import DatabaseBusy
from todoku.core.message import Claimed
from todoku.engine.claim import ClaimCursor

SECONDS = float(os.environ.get("TODOKU_TEST_MINUTE_SECONDS", "12"))
LEASE = 4.0
PATIENCE = 60
"""How long a caller's connection waits for the write lock: long enough for a slow disk under other tests."""


class Everybody:
    """Threads that work until they are told to stop; the first error stops all of them."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def start(self, work: Callable[[], object]) -> None:
        def guarded() -> None:
            try:
                while not self.stop.is_set():
                    work()
            except BaseException as error:
                self.errors.append(error)
                self.stop.set()

        thread = threading.Thread(target=guarded)
        self._threads.append(thread)
        thread.start()

    def end(self) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join()
        if self.errors:
            raise self.errors[0]


class Shop:
    """The application: its file, its own rows, and what it was told is committed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.box = App(f"sqlite:///{path}")
        self.box.route("order.*", to="warehouse")
        self.box.migrate()
        self.engine = sqlalchemy.create_engine(f"sqlite:///{path}", connect_args={"timeout": PATIENCE})
        with closing(self.connect()) as connection, connection:
            connection.execute("create table shop_order (id text primary key, by text)")
            connection.execute("create table shop_effect (message_id text primary key)")
        self.acknowledged: list[UUID] = []
        self.handled: list[str] = []

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=PATIENCE)

    def publisher(self) -> Callable[[], None]:
        """The standard library: a row and its message, one commit; acknowledged when it returns."""

        def work() -> None:
            with closing(self.connect()) as connection:
                for _ in range(20):
                    order = str(uuid4())
                    with connection:
                        connection.execute("insert into shop_order values (?, 'sqlite3')", (order,))
                        message = self.box.publish("order.created", {"order": order}, tx=connection)
                    self.acknowledged.append(message.id)

        return work

    def session_publisher(self) -> Callable[[], None]:
        """The same through SQLAlchemy."""

        def work() -> None:
            order = str(uuid4())
            with Session(self.engine) as session, session.begin():
                session.execute(sqlalchemy.text("insert into shop_order values (:id, 'session')"), {"id": order})
                message = self.box.publish("order.created", {"order": order}, tx=session)
            self.acknowledged.append(message.id)

        return work

    def handle(self, message_id: str) -> None:
        """A handler: its effect, committed through SQLAlchemy. A message that comes again finds it done."""
        with Session(self.engine) as session, session.begin():
            session.execute(sqlalchemy.text("insert or ignore into shop_effect values (:id)"), {"id": message_id})
        self.handled.append(message_id)

    def reader(self) -> Callable[[], None]:
        """Somebody who looks, through the store and beside it; what it sees never becomes less."""
        seen = [0]

        def work() -> None:
            self.box.store.statistics.counts()
            with closing(self.connect()) as connection:
                ((number,),) = connection.execute("select count(*) from todoku_message").fetchall()
            assert number >= seen[0]
            seen[0] = number

        return work

    def close(self) -> None:
        self.engine.dispose()
        self.box.close()


class Engine:
    """A worker: claims, executes, settles, all through the store."""

    def __init__(
        self, box: App, execute: Callable[[Claimed], object], settled: Callable[[Sequence[int]], object]
    ) -> None:
        self._store = box.store
        self._execute = execute
        self._settled = settled
        self._next_reclaim = 0.0
        self._worker: UUID | None = None

    def _begin(self) -> None:
        worker = uuid4()
        self._store.leases.register(worker, name="a minute", lease=LEASE)
        self._claiming = ClaimCursor(self._store, worker, ["warehouse"], monotonic=time.monotonic)
        self._worker = worker

    def step(self) -> int:
        """One round; returns how many deliveries it settled. A lock that was not to be had changed nothing."""
        try:
            return self._round()
        except DatabaseBusy:
            return 0

    def _round(self) -> int:
        if self._worker is None or not self._store.leases.renew(self._worker, lease=LEASE):
            self._begin()
        if time.monotonic() > self._next_reclaim:
            self._store.leases.reclaim()
            self._next_reclaim = time.monotonic() + 1
        claims = self._claiming.claim(20) or self._claiming.claim_suspect()
        for claim in claims:
            self._execute(claim)
        report = self._store.claims.settle([(claim, SUCCEEDED) for claim in claims])
        left = {claim.id for claim in (*report.lost, *report.stuck)}
        self._settled([claim.id for claim in claims if claim.id not in left])
        return len(claims) - len(left)


def engine_process(url: str, notes: str, stop: Connection) -> None:
    """The engine in a process of its own. What it was told is settled, it notes before it goes on."""
    box = App(url)
    with Path(notes).open("ab", buffering=0) as file:
        engine = Engine(box, lambda claim: None, lambda ids: file.write(b"".join(b"%d\n" % id for id in ids)))
        while not stop.poll():
            if not engine.step():
                stop.poll(0.01)
    box.close()


@contextmanager
def engine_beside(shop: Shop, notes: Path) -> Iterator[BaseProcess]:
    """The engine process, told to stop at the end unless it is dead by then."""
    ours, theirs = multiprocessing.Pipe()
    spawn = multiprocessing.get_context("spawn")
    process = spawn.Process(target=engine_process, args=(f"sqlite:///{shop.path}", str(notes), theirs))
    process.start()
    theirs.close()
    try:
        yield process
    finally:
        if process.is_alive():
            ours.send("stop")
        process.join(60)
        ours.close()


def wait_for(condition: Callable[[], bool], everybody: Everybody) -> None:
    """Until it is so; an error of anybody ends it too."""
    deadline = time.monotonic() + 120
    while not condition() and not everybody.stop.is_set():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def rows(path: Path, statement: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path, timeout=PATIENCE)) as connection:
        return connection.execute(statement).fetchall()


def check(shop: Shop, settled: Sequence[int]) -> None:
    """Everything acknowledged is there, once; and nothing else is."""
    messages: dict[str, int] = dict(rows(shop.path, "select id, seq from todoku_message"))
    assert set(messages) == {str(id) for id in shop.acknowledged}
    assert len(shop.acknowledged) == len(set(shop.acknowledged))

    # Each message has its order, each order its message (I2).
    ordered = Counter(rows(shop.path, "select json_extract(payload, '$.order') from todoku_message"))
    assert ordered == Counter(rows(shop.path, "select id from shop_order"))

    # Each message is in delivery or in history, exactly once (I1).
    unfinished = [seq for (seq,) in rows(shop.path, "select message_seq from todoku_delivery")]
    finished = [seq for (seq,) in rows(shop.path, "select message_seq from todoku_history")]
    assert Counter([*unfinished, *finished]) == Counter(messages.values())

    # What a worker was told is settled, is; and its effect was committed before.
    history = [id for (id,) in rows(shop.path, "select delivery_id from todoku_history")]
    assert set(settled) <= set(history)
    effects = {id for (id,) in rows(shop.path, "select message_id from shop_effect")}
    assert set(shop.handled) <= effects
    assert rows(shop.path, "pragma integrity_check") == [("ok",)]


@pytest.mark.slow
def test_nothing_acknowledged_is_missing_in_one_process(tmp_path: Path) -> None:
    """H26, I1: publisher, handlers, engine and reader are threads of one process, on one file."""
    shop, everybody, settled = Shop(tmp_path / "shop.db"), Everybody(), list[int]()
    handlers = ThreadPoolExecutor(2)
    engine = Engine(shop.box, lambda claim: shop.handle(claim.message_id), settled.extend)
    everybody.start(shop.publisher())
    everybody.start(shop.session_publisher())
    everybody.start(lambda: list(handlers.map(shop.handle, [str(id) for id in shop.acknowledged[-2:]])))
    everybody.start(shop.reader())
    everybody.start(lambda: engine.step() or everybody.stop.wait(0.01))
    everybody.stop.wait(SECONDS)
    everybody.end()
    handlers.shutdown()
    shop.close()

    assert shop.acknowledged
    assert settled
    check(shop, settled)
    done = "select m.id from todoku_history h join todoku_message m on m.seq = h.message_seq"
    assert {id for (id,) in rows(shop.path, done)} <= set(shop.handled)


@pytest.mark.slow
def test_nothing_acknowledged_is_missing_in_two_processes(tmp_path: Path) -> None:
    """H26, I1: the engine is another process, is killed (-9) in the middle of its work, and started again."""
    shop, everybody, notes = Shop(tmp_path / "shop.db"), Everybody(), tmp_path / "settled"
    notes.touch()

    def settled() -> list[int]:
        return [int(line) for line in notes.read_bytes().split()]

    everybody.start(shop.publisher())
    everybody.start(shop.session_publisher())
    everybody.start(lambda: list(map(shop.handle, map(str, shop.acknowledged[-2:]))))
    everybody.start(shop.reader())
    with engine_beside(shop, notes) as first:
        wait_for(lambda: len(settled()) > 50, everybody)
        everybody.stop.wait(SECONDS / 2)
        first.kill()
    assert first.exitcode == -9
    before = len(settled())
    with engine_beside(shop, notes) as second:
        wait_for(lambda: len(settled()) > before + 50, everybody)
        everybody.stop.wait(SECONDS / 2)
        everybody.end()
        wait_for(lambda: rows(shop.path, "select count(*) from todoku_delivery") == [(0,)], Everybody())
    assert second.exitcode == 0
    shop.close()

    check(shop, settled())
