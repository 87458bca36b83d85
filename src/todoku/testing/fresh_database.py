"""A database for one test: the App is connected to it, and to its own database again afterwards."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit
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
    before. PostgreSQL: a new schema in that database, dropped afterwards, or the one that a URL of `new_schema` names;
    nothing else in it is touched.
    """
    before, file = box.settings, sqlite_file(database)
    try:
        if file is not None:
            existed = file.exists()
            box.connect(database)
            _refuse_used(box)
            try:
                box.migrate()
                yield box
            finally:
                if not existed:
                    box.store.database.remove()
            return
        with nullcontext(database) if schema_of(database) else new_schema(database) as url:
            box.connect(url, schema=schema_of(url))
            box.migrate()
            yield box
    finally:
        box.connect(before.database, schema=before.schema)


_PREFIX: Final = "todoku_test_"


@contextmanager
def new_schema(database: str) -> Iterator[str]:
    """Yields the URL of a new schema in a PostgreSQL database, with todoku's tables; dropped afterwards.

    Connections to this URL, by any driver, create and find tables in the schema first, then in `public`.
    """
    schema = f"{_PREFIX}{uuid4().hex[:16]}"
    maker = App(database, schema=schema)
    try:
        maker.migrate()
        yield _with_schema(database, schema)
    finally:
        maker.store.database.remove()
        maker.close()


def _with_schema(url: str, schema: str) -> str:
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query))
    query["options"] = f"{query.get('options', '')} -csearch_path={schema},public".strip()
    return urlunsplit(parts._replace(query=urlencode(query, quote_via=quote)))


def schema_of(url: str) -> str | None:
    """Returns the schema that a URL of `new_schema` names; None: it is another URL."""
    found = re.search(rf"search_path=({_PREFIX}[0-9a-f]+)", dict(parse_qsl(urlsplit(url).query)).get("options", ""))
    return None if found is None else found[1]


def _refuse_used(box: App) -> None:
    if box.store.facts().version is not None:
        raise InvalidAct("this database already has todoku's tables", hint="give each test its own file")
