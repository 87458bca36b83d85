"""A database for one test: the App leaves its own for it, and comes back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from todoku.app import App
from todoku.core.errors import InvalidAct
from todoku.daemon.start import sqlite_file


def empty(box: App) -> None:
    """Remove every message, delivery, key and lease: for suites whose database outlives a test.

    The audit stays, because nobody can delete from it. No worker may be running.
    """
    box.store.database.empty()
    box.migrate()  # what is declared is there again: schedules


@contextmanager
def fresh(box: App, database: str) -> Iterator[App]:
    """Let `box` live in a fresh place of `database` while the block runs; its jobs, events and routes stay.

    SQLite: that file, removed afterwards unless it was there before, with tables of yours; one with messages in it is
    refused. PostgreSQL: a schema of its own in that database, dropped afterwards; nothing else there is touched.
    """
    before, file = box.settings, sqlite_file(database)
    was_there = file is not None and file.exists()
    box.connect(database, schema=f"todoku_test_{uuid4().hex[:16]}" if file is None else None)
    try:
        _refuse_used(box)
        try:
            box.migrate()
            yield box
        finally:
            if not was_there:
                box.store.database.remove()
    finally:
        box.connect(before.database, schema=before.schema)


def _refuse_used(box: App) -> None:
    if box.store.facts().version is not None:
        raise InvalidAct("this database is in use by todoku", hint="give each test a file of its own, or empty it")
