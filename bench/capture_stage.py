"""The stage of `bench.capture`: servers, a source with its table, todoku's database, and a daemon to start and stop."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg

import todoku
from bench.running import SERVER
from tests.daemon.running import Daemon, until
from tests.support.postgres import VERSION, fresh_database, start
from tests.support.services import ROOT

LOGICAL = f"{SERVER} -c wal_level=logical"
TABLE = "create table orders (id bigint primary key, amount integer, text text, updated_at timestamptz default now())"


def box_of(url: str, source: str | None, started: Path | None) -> todoku.App:
    """The App: one captured table. `started`: a handler notes there when each change begins."""
    box = todoku.App(url)
    box.capture("public.orders", topic="orders.{op}", key="id", database=source, snapshot=False)
    if started is None:
        box.route("orders.*", to="warehouse")  # another process would serve it: here only storing is measured
        return box
    notes = os.open(started, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)

    @box.on("orders.*")
    async def begin(event: dict[str, Any]) -> None:
        os.write(notes, f"{event['row']['id']} {time.time()}\n".encode())

    return box


if "BENCH_CAPTURE" in os.environ:
    noted = os.environ.get("BENCH_STARTED")
    box = box_of(os.environ["TODOKU_DATABASE"], os.environ["BENCH_CAPTURE"] or None, Path(noted) if noted else None)


# ------------------------------------------------------------------------------------------------------- the stage


class Stage:
    """A source with its table, todoku's database, and a daemon that can be started and stopped."""

    def __init__(self, source: str, url: str, home: Path, started: Path | None = None) -> None:
        self.source, self.url, self._home, self._started = source, url, home, started
        self._box = box_of(url, None if source == url else source, None)
        with psycopg.connect(source, autocommit=True) as connection:
            connection.execute(TABLE)
        self._box.migrate()

    @contextmanager
    def daemon(self) -> Iterator[Daemon]:
        """`todoku run` with one worker process, which reads."""
        environ = {
            "TODOKU_DATABASE": self.url, "PYTHONPATH": f"{ROOT}/src:{ROOT}", "TODOKU_POLL_INTERVAL_SEC": "0.5",
            "BENCH_CAPTURE": "" if self.source == self.url else self.source,
            **({} if self._started is None else {"BENCH_STARTED": str(self._started)}),
        }  # fmt: skip
        daemon = Daemon(("run", "--app", "bench.capture_stage:box", "--workers", "1"), self._home, environ)
        try:
            until(lambda: self._box.captures["main"].status().state == "streaming", f"streaming: {daemon.err[-2000:]}")
            yield daemon
        finally:
            daemon.stop()
            daemon.close()

    def close(self) -> None:
        capture = self._box.captures["main"]
        capture.drop(by="bench", why="the measurement is over")
        self._box.close()


Halves = tuple[set[int], set[int]]
"""The processors of the source, and those of todoku."""


@contextmanager
def on_half(halves: Halves | None, which: int) -> Iterator[None]:
    """What is started in the block stays on that half of the processors."""
    before = os.sched_getaffinity(0)
    if halves is not None:
        os.sched_setaffinity(0, halves[which])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


class Servers:
    """The source's server and todoku's, each in a directory of its own."""

    def __init__(self, home: Path, halves: Halves | None = None) -> None:
        self.home = home
        self._halves = halves
        with on_half(halves, 0):
            self.source = self._start("source", LOGICAL)
        self._other: str | None = None

    @property
    def other(self) -> str:
        """Todoku's server, where that is another one than the source's."""
        if self._other is None:
            with on_half(self._halves, 1):
                self._other = self._start("other", SERVER)
        return self._other

    def _start(self, name: str, options: str) -> str:
        place = self.home / name
        place.mkdir()
        self.home.chmod(0o711)
        dsn = start(place, options, VERSION)
        (place / "dsn").write_text(dsn)
        return dsn

    @contextmanager
    def stage(self, *, own: bool, started: Path | None = None) -> Iterator[Stage]:
        """A fresh source; todoku's tables are in the same database, or on the other server."""
        with ExitStack() as stack:
            source = stack.enter_context(fresh_database(self.source))
            url = source if own else stack.enter_context(fresh_database(self.other))
            stage = Stage(source, url, self.home, started)
            try:
                yield stage
            finally:
                stage.close()


def half_the_processors() -> Halves:
    there = sorted(os.sched_getaffinity(0))
    middle = len(there) // 2
    return (set(there[:middle]), set(there[middle:])) if middle else (set(there), set(there))
