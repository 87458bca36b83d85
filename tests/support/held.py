"""Which transactions of others stay open while a test looks: how I8 is seen from outside."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from typing import Final

import psycopg

from tests.support.world import Backend
from todoku.store.sqlite.database import file_path

PATIENCE: Final = 30.0
"""A claim, a settle or a heartbeat of another thread ends long before; one that is held for a send does not."""

_OPEN: Final = """
    select pid, xact_start, state, left(query, 80) from pg_stat_activity
     where datname = current_database() and pid <> pg_backend_pid()
       and backend_type = 'client backend' and xact_start is not null
"""


def held_transactions(backend: Backend, url: str, *, patience: float = PATIENCE) -> list[str]:
    """The transactions that were open when this was called and are still open when patience is over. Blocks.

    Call it while something is being sent. Whatever else a worker does meanwhile in a transaction of its own comes to an
    end by itself; only what waits for the send stays.
    """
    return _on_sqlite(url, patience) if backend == "sqlite" else _on_postgres(url, patience)


def _on_postgres(url: str, patience: float) -> list[str]:
    deadline = time.monotonic() + patience
    with psycopg.connect(url, autocommit=True) as looking:
        held = {(pid, since): f"{state}: {query}" for pid, since, state, query in looking.execute(_OPEN)}
        while held and time.monotonic() < deadline:
            now = {(pid, since) for pid, since, *_ in looking.execute(_OPEN)}
            held = {one: text for one, text in held.items() if one in now}
            time.sleep(0.005)
    return sorted(held.values())


def _on_sqlite(url: str, patience: float) -> list[str]:
    """Somebody else can write and commit, which a writer prevents, and a reader too unless the journal is a WAL; of a
    WAL everything can be moved into the file, which a reader prevents.
    """
    with closing(sqlite3.connect(file_path(url), timeout=patience, isolation_level=None)) as other:
        try:
            other.execute("begin immediate")
            other.execute("create table if not exists looked (n integer)")
            other.execute("insert into looked values (1)")
            other.execute("commit")
        except sqlite3.OperationalError as error:
            return [f"{error}: somebody holds a lock"]
        ((busy, *_),) = other.execute("pragma wal_checkpoint(truncate)").fetchall()
    return ["somebody reads the WAL"] if busy else []
