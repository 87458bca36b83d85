"""What commands share: options, and the words in which durations, rates and times are written."""

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
    """The options every command has that opens a database."""
    command = click.option("--schema", help="PostgreSQL schema (TODOKU_SCHEMA).")(command)
    return click.option("--db", "database", metavar="URL", help="Database URL (TODOKU_DATABASE).")(command)


def json_option(command: F) -> F:
    """For programs: one JSON object a line, always the same fields in the same order."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")(command)


def act_options(command: F) -> F:
    """The options of whatever changes something."""
    command = click.option("--dry-run", is_flag=True, help="Say what would change, and change nothing.")(command)
    command = click.option("--why", metavar="TEXT", help="Why; goes into the audit. Asked for on a terminal.")(command)
    return click.option("--by", metavar="NAME", help="Who (TODOKU_BY; default: the user of this system).")(command)


def signed(by: str | None, why: str | None, *, dry_run: bool) -> Signed:
    """Who and why: what was not said is asked for on a terminal, where a person sits who knows."""
    who = (by or os.environ.get("TODOKU_BY") or _user()).strip()
    if why is None and not dry_run and sys.stdin.isatty():
        why = click.prompt("Why", err=True)
    reason = (why or "").strip()
    if not who or (why is not None and not reason):
        raise click.UsageError("--by and --why cannot be empty.")
    return Signed(who, reason or "not said")


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without a passwd entry, before and from Python 3.13 on
        return f"uid {os.getuid()}"


_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?:/([smh]))?")


def duration(text: str) -> float:
    """Seconds: `90`, `1.5s`, `30m`, `2h`, `7d`, or several of them, `1h30m`."""
    if (found := parse_duration(text, bare=True, weeks=True)) is None:
        raise click.BadParameter(f"{text!r} is no duration; write 90, 1.5s, 30m, 2h or 7d.")
    return found


def rate(text: str) -> float:
    """So many a second: `5`, `5/s`, `100/m`, `1000/h`."""
    found = _RATE.fullmatch(text)
    if found is None or float(found[1]) == 0:
        raise click.BadParameter(f"{text!r} is no rate; write 5/s, 100/m or 1000/h.")
    return float(found[1]) / UNITS[found[2] or "s"]


def moment(text: str) -> datetime:
    """A time with its zone: `2026-01-31T12:00:00Z`; without one it is refused, because nobody knows whose it is."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no time; write 2026-01-31T12:00:00Z.") from None
    if at.tzinfo is None:
        raise click.BadParameter(f"{text!r} has no time zone; write 2026-01-31T12:00:00Z or +02:00.")
    return at.astimezone(UTC)


def json_text(text: str) -> str:
    """Any JSON, as the text it is."""
    try:
        json.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"this is no JSON: {error}.") from None
    return text
