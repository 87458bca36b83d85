"""A database for one test: the App is connected to it, and to its own database again afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from todoku.app import App
from todoku.core.errors import InvalidAct
from todoku.daemon.start import sqlite_file


def empty(box: App) -> None:
    """Removes all messages, deliveries, keys and leases: for suites that share a database between tests.

    The audit stays, because it is append-only. No worker may be running.
    """
    box.store.database.empty()
    box.migrate()  # stores the declared schedules again


@contextmanager
def fresh(box: App, database: str) -> Iterator[App]:
    """Connects `box` to an empty database while the block runs; its jobs, events and routes stay.

    SQLite: the file, which may have tables of yours but none of todoku; it is removed afterwards unless it existed
    before. PostgreSQL: a new schema in that database, dropped afterwards; nothing else in it is touched.
    """
    before, file = box.settings, sqlite_file(database)
    existed = file is not None and file.exists()
    box.connect(database, schema=f"todoku_test_{uuid4().hex[:16]}" if file is None else None)
    try:
        _refuse_used(box)
        try:
            box.migrate()
            yield box
        finally:
            if not existed:
                box.store.database.remove()
    finally:
        box.connect(before.database, schema=before.schema)


def _refuse_used(box: App) -> None:
    if box.store.facts().version is not None:
        raise InvalidAct("this database already has todoku's tables", hint="give each test its own file")
