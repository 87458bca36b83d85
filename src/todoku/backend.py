"""The database that a URL names: the only module that names a backend."""

from __future__ import annotations

import msgspec

from todoku.core.errors import UnknownDatabase
from todoku.core.settings import Settings
from todoku.engine.process_settings import load_settings
from todoku.store.database import Database


def open_database(settings: Settings) -> Database:
    """Opens the database that the settings' URL names. UnknownDatabase: it names none."""
    scheme, separator, rest = settings.database.partition("://")
    if scheme == "sqlite":
        from todoku.store.sqlite.database import SqliteDatabase  # noqa: PLC0415 - only the backend in use

        return SqliteDatabase(settings)
    if separator and scheme.split("+")[0] in ("postgresql", "postgres"):
        try:
            from todoku.store.postgres.database import PostgresDatabase  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise UnknownDatabase("PostgreSQL needs psycopg", hint='pip install "todoku[postgres]"') from error
        return PostgresDatabase(msgspec.structs.replace(settings, database=f"postgresql://{rest}"))
    hint = "use sqlite:///name.db or postgresql://user@host/name"
    raise UnknownDatabase(f"{scheme or settings.database!r} is no database todoku knows", hint=hint)


def printed_migrations(database: str | None, schema: str | None) -> str:
    """Returns the whole schema as one SQL script, for people who apply SQL with their own tools."""
    return open_database(load_settings(database=database, schema=schema)).migration_script()
