"""Opening the database a command is about."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from todoku.app import App, load_settings
from todoku.core.errors import SchemaError
from todoku.core.settings import Settings
from todoku.daemon.app_loader import load_app, named_app
from todoku.daemon.start import DaemonOptions, checked_app, sqlite_file


@contextmanager
def opened(database: str | None, schema: str | None) -> Iterator[App]:
    """The database that was said, by argument or setting; else that of the App which is named; else the default.

    Looking must not make a database: a SQLite file that is not there is refused.
    """
    url, inside = (database, schema) if database is not None else _of_the_app(schema)
    box = App(url, schema=inside)
    try:
        refuse_missing(box.settings.database)
        yield box
    finally:
        box.close()


@contextmanager
def opened_app(app: str | None, database: str | None, schema: str | None) -> Iterator[App]:
    """The App that is named, with its routes and jobs; without one, a bare App on the database."""
    found = checked_app(DaemonOptions(app=app, database=database, schema=schema))
    if found is None:
        with opened(database, schema) as bare:
            yield bare
        return
    _, box = found
    try:
        yield box
    finally:
        box.close()


def _of_the_app(schema: str | None) -> tuple[str | None, str | None]:
    if load_settings().database != Settings().database or (name := named_app()) is None:
        return None, schema
    box = load_app(name)
    box.close()
    return box.settings.database, schema or box.settings.schema


def refuse_missing(url: str) -> None:
    """Raise if a URL names a SQLite file that is not there: opening it would make it."""
    file = sqlite_file(url)
    if file is not None and not file.exists():
        raise SchemaError(f"there is no database {file}", hint="`todoku up` or `todoku migrate` makes it; or say --db")
