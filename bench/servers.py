"""The servers of `make bench`: PostgreSQL and Redis of their own, fresh for each measurement, and what they used.

Reached by TCP on 127.0.0.1, all peers alike. PostgreSQL runs in its default configuration but for the buffers and the
size of its log, so that a checkpoint does not fall into one measurement and not into the next.
"""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import sqlite3
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import LiteralString

import psycopg
import redis

from bench.peers.peer import Server
from tests.support.postgres import DEBIAN, debian_binaries, fresh_database, start, stop_at_once

OPTIONS = "-c shared_buffers=1GB -c max_wal_size=4GB"
STEADY = 50
"""So often the processes of a family are read until none has begun or ended meanwhile."""
TICKS = os.sysconf("SC_CLK_TCK")


class NotHere(Exception):
    """A server that is missing; the message is the reason, for people."""


@dataclass(frozen=True, slots=True)
class Used:
    """What a server has used so far: seconds of processor time, bytes written to its log."""

    cpu: float = 0.0
    wal: int = 0

    def since(self, before: Used) -> Used:
        return Used(self.cpu - before.cpu, self.wal - before.wal)


class Running(ABC):
    """A server that runs."""

    kind: Server
    about: str
    """Its version and settings, for RESULTS.md."""

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """The address of an empty database."""
        raise NotImplementedError
        yield ""

    @abstractmethod
    def count(self, url: str, question: str) -> int:
        """The one number that answers it."""

    @abstractmethod
    def used(self) -> Used: ...

    @abstractmethod
    def stop(self) -> None: ...

    def settle(self, url: str) -> None:  # noqa: B027 - only PostgreSQL has anything to do
        """After a fill: nothing of it is left to be written during the drain."""


class Postgres(Running):
    """PostgreSQL: Debian's package, or the version that PyPI has."""

    kind = Server.POSTGRES

    def __init__(self, version: str = DEBIAN, more: str = "") -> None:
        if version == DEBIAN and debian_binaries() is None:
            raise NotHere("Debian's PostgreSQL is not installed: make system-packages, or --postgres 18")
        self._home = Path(tempfile.mkdtemp(prefix="todoku-bench-", dir="/tmp"))
        port = free_port()
        options = f"{OPTIONS} {more}".strip()
        try:
            start(self._home, f"-c listen_addresses=127.0.0.1 -c port={port} {options}", version)
        except (OSError, RuntimeError, AssertionError) as error:
            shutil.rmtree(self._home, ignore_errors=True)
            raise NotHere(f"PostgreSQL {version} does not start: {error}") from error
        self.dsn = f"postgresql://postgres@127.0.0.1:{port}/postgres"
        self._pid = int((self._home / "data" / "postmaster.pid").read_text().split()[0])
        self._watch = psycopg.connect(self.dsn, autocommit=True)
        ((said,),) = self._watch.execute("show server_version").fetchall()
        whose = "Debian's package" if version == DEBIAN else "from PyPI"
        self.about = f"PostgreSQL {said} ({whose}), by TCP, its defaults and {options}"

    @contextmanager
    def fresh(self) -> Iterator[str]:
        with fresh_database(self.dsn) as url:
            yield url

    def count(self, url: str, question: str) -> int:
        """On a connection of its own, kept for as long as the database is the same."""
        if getattr(self, "_asked", None) != url:
            with suppress(AttributeError):
                self._line.close()
            self._line, self._asked = psycopg.connect(url, autocommit=True), url
        row = self._line.execute(question).fetchone()
        assert row is not None
        return int(row[0])

    def settle(self, url: str) -> None:
        self.run(url, "analyze")
        self.run(url, "checkpoint")

    def run(self, url: str, statement: LiteralString) -> None:
        with psycopg.connect(url, autocommit=True) as line:
            line.execute(statement)

    @contextmanager
    def snapshot(self, url: str) -> Iterator[None]:
        """A transaction that sees the database as it is now, for as long as the block lasts: nothing is vacuumed."""
        with psycopg.connect(url) as line:
            line.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            line.execute("select count(*) from pg_class")
            yield
            line.rollback()

    def used(self) -> Used:
        ((wal,),) = self._watch.execute("select pg_current_wal_insert_lsn() - '0/0'::pg_lsn").fetchall()
        return Used(processor_time(self._pid), int(wal))

    def stop(self) -> None:
        self._watch.close()
        with suppress(AttributeError):
            self._line.close()
        stop_at_once(self._home)
        shutil.rmtree(self._home, ignore_errors=True)


class Redis(Running):
    """Redis that writes and syncs every change before it answers: the durability that the others have."""

    kind = Server.REDIS

    def __init__(self) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise NotHere("redis-server is not installed: make system-packages")
        self._home = Path(tempfile.mkdtemp(prefix="todoku-bench-", dir="/tmp"))
        port = free_port()
        with (self._home / "log").open("w") as log:
            self._process = subprocess.Popen(
                [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(self._home), "--save", "",
                 "--appendonly", "yes", "--appendfsync", "always"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self._address, self._numbers = f"redis://127.0.0.1:{port}", itertools.cycle(range(16))
        self._client = redis.Redis.from_url(f"{self._address}/0")
        self._until_it_answers()
        version = self._client.info("server")["redis_version"]
        self.about = f"Redis {version}, by TCP, appendonly yes, appendfsync always, no snapshots"

    def _until_it_answers(self) -> None:
        deadline = time.monotonic() + 20
        while True:
            try:
                self._client.ping()
            except redis.ConnectionError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self.stop()
                    raise NotHere(f"redis-server does not start: {error}") from error
                time.sleep(0.05)
            else:
                return

    @contextmanager
    def fresh(self) -> Iterator[str]:
        url = f"{self._address}/{next(self._numbers)}"
        with redis.Redis.from_url(url) as client:
            client.flushdb()
        yield url

    def count(self, url: str, question: str) -> int:
        with redis.Redis.from_url(url) as client:
            return int(str(client.eval(question, 0)))

    def used(self) -> Used:
        info = self._client.info("persistence")
        return Used(processor_time(self._process.pid), int(info["aof_current_size"]))

    def stop(self) -> None:
        self._client.close()
        self._process.terminate()
        self._process.wait(20)
        shutil.rmtree(self._home, ignore_errors=True)


class Sqlite(Running):
    """No server: a file in a directory of its own, on a disk."""

    kind = Server.SQLITE

    def __init__(self) -> None:
        self.about = f"SQLite {sqlite3.sqlite_version}, a file on disk, one process"

    @contextmanager
    def fresh(self) -> Iterator[str]:
        with tempfile.TemporaryDirectory(prefix="todoku-bench-", dir="/tmp") as folder:
            yield str(Path(folder) / "bench.db")

    def count(self, url: str, question: str) -> int:
        line = sqlite3.connect(url, timeout=10)
        try:
            return int(line.execute(question).fetchone()[0])
        finally:
            line.close()

    def used(self) -> Used:
        return Used()

    def stop(self) -> None:
        """There is nothing to stop."""


def started(kind: Server, version: str, more: str) -> Running:
    """Start a server, or raise NotHere."""
    match kind:
        case Server.POSTGRES:
            return Postgres(version, more)
        case Server.REDIS:
            return Redis()
        case Server.SQLITE:
            return Sqlite()


# ----------------------------------------------------------------------------------------------------- the machine


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def processes() -> dict[int, tuple[int, int, float]]:
    """Of each process of the machine its parent, its session, and the seconds it used, ended children included."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we looked
        seconds = sum(int(field) for field in fields[11:15]) / TICKS
        found[int(stat.parent.name)] = (int(fields[1]), int(fields[3]), seconds)
    return found


def processor_time(parent: int) -> float:
    """Seconds that a process and all that it started have used so far."""
    before = processes()
    for _ in range(STEADY):
        now = processes()
        pids = family(parent, now)
        if pids == family(parent, before):
            break
        before = now  # one ended while we looked: its time was at neither place
        time.sleep(0.005)
    return sum(now[pid][2] for pid in pids)


def family(parent: int, all_of_them: dict[int, tuple[int, int, float]] | None = None) -> list[int]:
    """A process and all that it started, and what those started."""
    known = all_of_them if all_of_them is not None else processes()
    found = [parent] if parent in known else []
    for pid in found:
        found += [child for child, (its_parent, _, _) in known.items() if its_parent == pid]
    return found


def peak_memory(parent: int) -> int:
    """The most bytes that a process and its children have had resident, each at its own peak."""
    total = 0
    for pid in family(parent):
        with suppress(OSError):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    total += int(line.split()[1]) * 1024
    return total
