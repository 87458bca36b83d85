"""Translates errors of psycopg to errors of todoku, and refuses databases with a wrong encoding."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg
from psycopg import errors
from psycopg_pool import PoolTimeout

from todoku.core.errors import DatabaseBusy, DatabaseUnavailable, SchemaError, StoreError

_GONE: Final = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    PoolTimeout,
    errors.IdleInTransactionSessionTimeout,  # the server ended a session that was idle in a transaction
)


@contextmanager
def translate_errors() -> Iterator[None]:
    """Raises errors of psycopg as errors of todoku, with a hint."""
    try:
        yield
    except (errors.LockNotAvailable, errors.DeadlockDetected) as error:
        hint = "another transaction holds a row; try again"
        raise DatabaseBusy(f"PostgreSQL: {_first_line(error)}", hint=hint) from error
    except (errors.UndefinedTable, errors.UndefinedFunction, errors.UndefinedColumn) as error:
        hint = "box.migrate(), or `todoku migrate --db URL`; if that was done, set `schema` to the schema of its tables"
        raise SchemaError(f"this database is not migrated: {_first_line(error)}", hint=hint) from error
    except errors.InvalidSchemaName as error:
        hint = "the search_path of this role names no schema that exists: set `schema`, or create one of those it names"
        raise SchemaError(f"PostgreSQL refused: {_first_line(error)}", hint=hint) from error
    except errors.InsufficientPrivilege as error:
        hint = "this role lacks a privilege: docs/postgresql.md lists what `migrate`, workers and publishers need"
        raise StoreError(f"PostgreSQL refused: {_first_line(error)}", hint=hint) from error
    except errors.ReadOnlySqlTransaction as error:
        hint = "is this a standby, or is default_transaction_read_only on for this role or database?"
        raise DatabaseUnavailable("PostgreSQL is read-only", hint=hint) from error
    except _GONE as error:
        raise DatabaseUnavailable(
            f"PostgreSQL does not answer: {_first_line(error)}",
            hint="check the database URL and the server",
        ) from error
    except psycopg.Error as error:
        hint = "check the database URL; if it is right, this is a bug in todoku: please report it"
        raise StoreError(f"PostgreSQL refused: {_first_line(error)}", hint=hint) from error


def refuse_encoding(encoding: str) -> None:
    """Raises SchemaError unless the encoding is UTF8: no other can store every text."""
    if encoding != "UTF8":
        raise SchemaError(
            f"this database has the encoding {encoding}, and todoku needs UTF8",
            hint="use a database created by: create database … encoding 'UTF8' template template0",
        )


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
