"""Options that commands share, and parsers of durations, rates and times."""

from __future__ import annotations

import getpass
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from todoku.app import App, load_settings
from todoku.cli.output import UTC_TIMES
from todoku.core.duration import UNITS, parse_duration
from todoku.core.errors import SchemaError
from todoku.core.settings import Settings
from todoku.daemon.app_loader import find_app_name, load_app
from todoku.daemon.start import DaemonOptions, load_named_app, sqlite_file
from todoku.store.audit import Signed

# ------------------------------------------------------------
# Opens the database that a command works on.


@contextmanager
def open_app(database: str | None, schema: str | None, *, may_create: bool = False) -> Iterator[App]:
    """Yields a bare App on the database given by argument or setting, else that of the named App, else the default.

    A SQLite file that does not exist is refused, unless `may_create`: a command that reads must not create a database.
    """
    url, in_schema = (database, schema) if database is not None else _database_of_named_app(schema)
    box = App(url, schema=in_schema)
    try:
        if not may_create:
            refuse_missing_file(box.settings.database)
        yield box
    finally:
        box.close()


@contextmanager
def open_named_app(
    app: str | None, database: str | None, schema: str | None, *, may_create: bool = False
) -> Iterator[App]:
    """Yields the named App with its routes and jobs, or a bare App on the database if none is named."""
    # An App reads its database from the environment; without one, the environment of this process stays as it is.
    found = find_app_name(app) and load_named_app(DaemonOptions(app=app, database=database, schema=schema))
    if not found:
        with open_app(database, schema, may_create=may_create) as bare:
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
        hint = f"create it with `todoku migrate --db {url}` or `todoku up`, or name another with --db"
        raise SchemaError(f"there is no database {file}", hint=hint)


F = TypeVar("F", bound=Callable[..., Any])


def database_option(command: F) -> F:
    """Adds the options of every command that opens a database."""
    command = click.option("--schema", help="PostgreSQL schema (TODOKU_SCHEMA).")(command)
    return click.option("--db", "database", metavar="URL", help="Database URL (TODOKU_DATABASE).")(command)


def json_option(command: F) -> F:
    """Adds --json: one object per line for programs, always with the same fields in the same order."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")(command)


def utc_option(command: F) -> F:
    """Adds --utc, which `format_time` reads: absolute times on a terminal."""
    return click.option(
        "--utc", is_flag=True, expose_value=False, callback=_remember_utc, help="Show absolute times (UTC)."
    )(command)


def _remember_utc(context: click.Context, _: click.Parameter, given: bool) -> None:
    context.meta[UTC_TIMES] = given


def act_options(command: F) -> F:
    """Adds the options of every command that changes something."""
    command = click.option("--dry-run", is_flag=True, help="Show what would change; change nothing.")(command)
    command = click.option("--why", metavar="TEXT", help="Reason, for the audit; prompted for on a terminal.")(command)
    return click.option("--by", metavar="NAME", help="Your name (TODOKU_BY; default: the system user).")(command)


def identify_operator(by: str | None, why: str | None, *, dry_run: bool) -> Signed:
    """Who acts and why, for the audit. Prompts for a missing reason on a terminal."""
    name = (by or os.environ.get("TODOKU_BY") or _user()).strip()
    if why is None and not dry_run and sys.stdin.isatty():
        why = click.prompt("Why", err=True)
    reason = (why or "").strip()
    if not name or (why is not None and not reason):
        raise click.UsageError("--by and --why cannot be empty.")
    return Signed(name, reason or "not said")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container without a passwd entry; Windows without USERNAME
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown"


_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?:/([smh]))?")


def duration(text: str) -> float:
    """Parses a duration into seconds: `90`, `1.5s`, `30m`, `2h`, `7d`, or a sequence, `1h30m`."""
    if (found := parse_duration(text, bare=True, weeks=True)) is None:
        raise click.BadParameter(f"{text!r} is not a duration; write 90, 1.5s, 30m, 2h or 7d.")
    return found


def rate(text: str) -> float:
    """Parses a rate into a number per second: `5`, `5/s`, `100/m`, `1000/h`."""
    found = _RATE.fullmatch(text)
    if found is None or float(found[1]) == 0:
        raise click.BadParameter(f"{text!r} is not a rate; write 5/s, 100/m or 1000/h.")
    return float(found[1]) / UNITS[found[2] or "s"]


def moment(text: str) -> datetime:
    """Parses a time with its zone: `2026-01-31T12:00:00Z`. Without a zone it is ambiguous, and refused."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a time; write 2026-01-31T12:00:00Z.") from None
    if at.tzinfo is None:
        raise click.BadParameter(f"{text!r} has no time zone; write 2026-01-31T12:00:00Z or +02:00.")
    return at.astimezone(UTC)


def json_text(text: str) -> str:
    """Checks that the text is JSON, and returns it unchanged."""
    try:
        json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"this is not valid JSON: {error}.") from None
    return text
