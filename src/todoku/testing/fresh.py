"""A database for one test: the App leaves its own for it, and comes back afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from todoku.app import App


def empty(box: App) -> None:
    """Remove every message, delivery, key, schedule and lease: for suites whose database outlives a test.

    The audit stays, because nobody can delete from it. No worker may be running.
    """
    box.store.database.empty()
    box.migrate()  # what is declared is there again: schedules


@contextmanager
def fresh(box: App, database: str) -> Iterator[App]:
    """Let `box` live in a fresh place of `database` while the block runs; its jobs, events and routes stay.

    SQLite: the file itself, which must not be there yet and is gone afterwards. PostgreSQL: a schema of its own in that
    database, dropped afterwards; nothing else in the database is touched.
    """
    before = box.settings
    sqlite = database.startswith("sqlite:")
    box.connect(database, schema=None if sqlite else f"todoku_test_{uuid4().hex[:16]}")
    try:
        box.migrate()
        yield box
    finally:
        box.store.database.remove()
        box.connect(before.database, schema=before.schema)
