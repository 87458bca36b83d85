"""Opens the database that a command works on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from todoku.app import App, load_settings
from todoku.core.errors import SchemaError
from todoku.core.settings import Settings
from todoku.daemon.app_loader import find_app_name, load_app
from todoku.daemon.start import DaemonOptions, load_named_app, sqlite_file


@contextmanager
def open_app(database: str | None, schema: str | None) -> Iterator[App]:
    """Yields a bare App on the database given by argument or setting, else that of the named App, else the default.

    A SQLite file that does not exist is refused: a command that reads must not create a database.
    """
    url, in_schema = (database, schema) if database is not None else _database_of_named_app(schema)
    box = App(url, schema=in_schema)
    try:
        refuse_missing_file(box.settings.database)
        yield box
    finally:
        box.close()


@contextmanager
def open_named_app(app: str | None, database: str | None, schema: str | None) -> Iterator[App]:
    """Yields the named App with its routes and jobs, or a bare App on the database if none is named."""
    found = load_named_app(DaemonOptions(app=app, database=database, schema=schema))
    if found is None:
        with open_app(database, schema) as bare:
            yield bare
        return
    _, box = found
    try:
        yield box
    finally:
        box.close()


def _database_of_named_app(schema: str | None) -> tuple[str | None, str | None]:
    if load_settings().database != Settings().database or (name := find_app_name()) is None:
        return None, schema
    box = load_app(name)
    box.close()
    return box.settings.database, schema or box.settings.schema


def refuse_missing_file(url: str) -> None:
    """Raises SchemaError if the URL names a SQLite file that does not exist: opening it would create it."""
    file = sqlite_file(url)
    if file is not None and not file.exists():
        hint = "create it with `todoku migrate` or `todoku up`, or name another with --db"
        raise SchemaError(f"there is no database {file}", hint=hint)
