"""A source with writers, a daemon that captures it, and what kills each of them."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import psycopg

from tests.capture.agreement import Seen, Verdict, arrived, compare
from tests.capture.at_work import box_of
from tests.capture.source_model import Change
from tests.capture.workload import STOCK, Plan
from tests.capture.writers import Committed, Model, Progress, Writer, set_up
from tests.daemon.own_server import OwnServer, own_server
from tests.daemon.running import Daemon, until
from tests.support.postgres import FOR_TESTS
from tests.support.services import ROOT
from todoku.core.errors import StoreError, TodokuError
from todoku.store.captures import CaptureRow

T = TypeVar("T")
LOGICAL = f"{FOR_TESTS} -c wal_level=logical"
LONG = 600.0
WRITERS = 4
STALLED = 120.0
"""So many seconds without a stored change: the capture stands still."""


class Scene:
    """Everything that runs. `source` and `target` are the same server if the tables are in todoku's own database."""

    def __init__(self, source: OwnServer, target: OwnServer | None, url: str, home: Path, seed: str) -> None:
        self.source, self.target, self._home = source, target, home
        self.seed = seed
        self.url = url
        self.chance = random.Random(f"kills {seed}")
        self.killed: Counter[str] = Counter()
        self.fault: str | None = None
        self.recorded = home / "recorded"
        self.box = box_of(url, source.url, WRITERS, home / "unused")
        self.box.migrate()
        self.plans: list[Plan] = []
        self.model = Model()
        self.daemon: Daemon | None = None

    # -------------------------------------------------------------------------------------------------- the actors

    def fill(self, rows: int, large: tuple[int, ...]) -> None:
        """Create the source's tables, with rows that only a snapshot can bring."""
        self.plans = [Plan(self.seed, writer, rows=rows, large=large) for writer in range(WRITERS)]
        self.model = set_up(self.source.url, self.plans)

    def start(self) -> Daemon:
        """Start the daemon, again if it runs no more."""
        environ = {
            "TODOKU_DATABASE": self.url, "PYTHONPATH": f"{ROOT}/src:{ROOT}", "TODOKU_LEASE_SEC": "5",
            "TODOKU_RECLAIM_INTERVAL_SEC": "0.5", "TODOKU_TEST_SOURCE": self.source.url,
            "TODOKU_TEST_WRITERS": str(WRITERS), "TODOKU_TEST_RECORDED": str(self.recorded),
            **({} if self.fault is None else {"TODOKU_TEST_FAULT": self.fault}),
        }  # fmt: skip
        if self.daemon is not None:
            self.daemon.close()
        self.daemon = Daemon(("run", "--app", "tests.capture.at_work:box", "--workers", "2"), self._home, environ)
        return self.daemon

    def keep_up(self) -> None:
        """A daemon that gave up on a database that was away is started again, as its supervisor would."""
        if self.daemon is None or self.daemon.process.poll() is not None:
            self.start()

    def close(self) -> None:
        if self.daemon is not None:
            self.daemon.close()
        self.box.close()

    # ---------------------------------------------------------------------------------------------------- the kills

    def kill_worker(self) -> None:
        """kill -9 of one of the two worker processes: of the one that reads, half of the time."""

        def pids() -> list[int]:
            self.keep_up()
            assert self.daemon is not None
            return [worker["pid"] for worker in self.daemon.workers() if worker["pid"]]

        pid = self.chance.choice(sorted(until(pids, "a worker process", seconds=LONG)))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        self.killed["worker"] += 1

    def kill_daemon(self) -> None:
        """kill -9 of the daemon alone: its workers find out by themselves, while the next daemon starts its own."""
        self.keep_up()
        assert self.daemon is not None
        self.daemon.workers()
        self.daemon.process.kill()
        self.daemon.process.wait()
        self.killed["daemon"] += 1
        old, self.daemon = self.daemon, None
        self.start()
        old.close()

    def kill_source(self) -> None:
        self.source.stop()
        self.source.start()
        self.killed["source server"] += 1

    def kill_target(self) -> None:
        if self.target is None or self.target is self.source:
            return self.kill_worker()
        self.target.stop()
        self.target.start()
        self.killed["todoku's server"] += 1
        return None

    def kill_one(self) -> None:
        """Drawn by the seed: workers most often, for they read."""
        kinds = (self.kill_worker, self.kill_worker, self.kill_daemon, self.kill_source, self.kill_target)
        self.chance.choice(kinds)()

    # ------------------------------------------------------------------------------------------------------ looking

    def row(self) -> CaptureRow:
        return repeated(self.box.captures["main"].status)

    def until_begun(self) -> None:
        """The slot is there: whatever is committed from now on must arrive."""

        def begun() -> bool:
            assert self.daemon is not None
            assert self.daemon.process.poll() is None, self.told()
            row = self.row()
            assert row.state != "stopped", f"{row.reason}: {row.why}"
            return row.lsn > 0 and row.state in ("snapshot", "streaming")

        until(begun, "a slot")

    def until_moved(self, before: int) -> None:
        """Something more is stored."""
        deadline = time.monotonic() + STALLED
        while (row := self.row()).lsn <= before:
            self.keep_up()
            assert time.monotonic() < deadline, f"nothing is stored: {row.state} {row.reason} {row.why}\n{self.told()}"
            threading.Event().wait(0.05)

    def told(self) -> str:
        """The end of the daemon's log."""
        return "" if self.daemon is None else self.daemon.err[-3000:]

    def newest(self) -> int:
        """The number of the newest message."""
        return int(repeated(lambda: self.rows("select coalesce(max(seq), 0) from todoku_message"))[0][0])

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Read todoku's tables past todoku."""
        if self.url.startswith("sqlite"):
            import sqlite3

            with sqlite3.connect(self.url.removeprefix("sqlite:///")) as db:
                return db.execute(sql).fetchall()
        with psycopg.connect(self.url) as connection:
            return connection.execute(sql).fetchall()

    def messages(self) -> list[tuple[str, Seen]]:
        """Every message with its id, in the order in which they were stored."""
        sql = "select id, seq, topic, key, payload, headers from todoku_message order by seq"
        return [
            (str(id), Seen(seq, topic, key, _read(payload), _read(headers)))
            for id, seq, topic, key, payload, headers in self.rows(sql)
        ]

    def finish(self) -> None:
        """A last change of the source; then everything is stored and delivered."""
        self.change_last()
        self.catch_up()

    def change_last(self) -> None:
        """A change behind all others."""
        with psycopg.connect(self.source.url) as connection:
            sql = f"update {STOCK} set v = v + 1, who = 'the last' where id = 0 returning v, pg_current_xact_id()::text"
            ((v, xid),) = connection.execute(sql).fetchall()
        change = Change(STOCK, "update", ("0",), {"id": 0, "v": v, "who": "the last"})
        self.model.writers.append([Committed(xid, (change,), v)])

    def catch_up(self) -> None:
        """Until the last change is stored, the snapshot is done, and nothing waits; or nothing happens any more."""
        since, before = time.monotonic(), (0, 0)
        while True:
            self.keep_up()
            row = self.row()
            waiting = repeated(lambda: self.rows("select count(*) from todoku_delivery"))[0][0]
            if row.state == "streaming" and waiting == 0 and self._has_last():
                return
            if (now := (row.lsn, waiting)) != before:
                since, before = time.monotonic(), now
            still = time.monotonic() - since
            assert row.state != "stopped", f"{row.reason}: {row.why}"
            assert still < STALLED, f"{row.state} {row.reason}, {waiting} deliveries wait\n{self.told()}"
            threading.Event().wait(0.1)

    def _has_last(self) -> bool:
        sql = "select count(*) from todoku_message where cast(payload as text) like '%\"the last\"%'"
        return bool(repeated(lambda: self.rows(sql))[0][0])

    def judge(self, complete_at: int | None) -> tuple[Verdict, Verdict]:
        """What is stored beside the model, and what arrived beside what is stored."""
        stored = self.messages()
        by_id = dict(stored)
        lines = self.recorded.read_text().splitlines() if self.recorded.exists() else []
        known = [by_id[line] for line in lines if line in by_id]  # a kill may cut a line; its batch is sent again
        messages = [seen for _, seen in stored]
        return compare(self.model, messages, complete_at=complete_at), arrived(
            ((s.key, s.seq) for s in known), messages
        )


def _read(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str | bytes) else value


def repeated(call: Callable[[], T]) -> T:
    """Until the database answers."""
    deadline = time.monotonic() + LONG
    while True:
        try:
            return call()
        except (StoreError, TodokuError, psycopg.OperationalError):
            assert time.monotonic() < deadline
        threading.Event().wait(0.1)


@contextmanager
def scene_of(kind: str, home: Path, seed: str) -> Iterator[Scene]:
    """`own`: the tables are in todoku's own database. `another`: on another server. `sqlite`: todoku's is SQLite."""
    with ExitStack() as stack:
        source = stack.enter_context(own_server(LOGICAL))
        target = {"own": source, "sqlite": None}.get(kind, ...)
        if target is ...:
            target = stack.enter_context(own_server())
        url = f"sqlite:///{home}/todoku.db" if target is None else target.url
        scene = Scene(source, target, url, home, seed)
        stack.callback(scene.close)
        yield scene


class Writers:
    """The threads that write, and how far they may go."""

    def __init__(self, scene: Scene, number: int) -> None:
        self.progress = Progress(0)
        self._scene = scene
        share = -(-number // WRITERS)
        self.threads = [Writer(scene.source.url, plan, share, self.progress) for plan in scene.plans]

    def __enter__(self) -> Writers:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()
        for thread in self.threads:
            thread.join(LONG)

    def join(self) -> None:
        """Until all are done; the model then has what they committed."""
        self.progress.allow(1 << 40)
        for thread in self.threads:
            thread.join(LONG)
            assert thread.error is None, thread.error
            assert not thread.is_alive()
        self._scene.model.writers += [thread.committed for thread in self.threads]
