"""Options that commands share, and parsers of durations, rates and times."""

from __future__ import annotations

import getpass
import json
import os
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import click

from todoku.core.duration import UNITS, parse_duration
from todoku.store.audit import Signed

F = TypeVar("F", bound=Callable[..., Any])


def database_option(command: F) -> F:
    """Adds the options of every command that opens a database."""
    command = click.option("--schema", help="PostgreSQL schema (TODOKU_SCHEMA).")(command)
    return click.option("--db", "database", metavar="URL", help="Database URL (TODOKU_DATABASE).")(command)


def json_option(command: F) -> F:
    """Adds --json: one object per line for programs, always with the same fields in the same order."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")(command)


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
    except (KeyError, OSError):  # a container without a passwd entry: KeyError before Python 3.13, then OSError
        return f"uid {os.getuid()}"


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
