"""Commands about schedules: schedules, and the group schedule."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import click

from todoku.cli import schedule_commands
from todoku.cli.database_option import opened
from todoku.cli.options import database_option, json_option
from todoku.cli.output import print_table, say, show_rows
from todoku.engine.schedules import Schedule

COLUMNS = ("name", "when", "tz", "next", "local", "last", "last_message", "missed", "paused", "declared", "source",
           "topic", "overdue", "error")  # fmt: skip

schedule = click.Group(
    "schedule", {command.name: command for command in schedule_commands.COMMANDS if command.name is not None},
    help="Change a schedule, run it now, or show the slots of a cron expression.",
)  # fmt: skip


@click.command()
@database_option
@json_option
def schedules(database: str | None, schema: str | None, as_json: bool) -> None:
    """List the schedules: when they fire, next and last, and what keeps them from it."""
    with opened(database, schema) as box:
        found = box.schedules.list()
    if as_json:
        show_rows(COLUMNS, [_row(one) for one in found], as_json=True)
    elif not found:
        say("no schedules")
    else:
        columns = ("name", "when", "tz", "next", "local", "last", "missed", "state", "error")
        print_table(columns, [(*_row(one)[:6], one.missed, _state(one), one.error) for one in found])


def _row(one: Schedule) -> tuple[object, ...]:
    return (
        one.name, one.when, one.tz, one.next_run_at, _local(one.next_run_at, one.tz), one.last_run_at,
        one.last_message_id, one.missed, one.paused, one.declared, one.source, one.topic, round(one.overdue, 3),
        one.error,
    )  # fmt: skip


def _local(at: datetime | None, tz: str | None) -> str | None:
    """The time where the schedule is read."""
    return None if at is None or tz is None else at.astimezone(ZoneInfo(tz)).isoformat()


def _state(one: Schedule) -> str:
    if one.paused:
        return "paused"
    if not one.declared:
        return "not declared any more"
    return f"overdue {one.overdue:.0f} s" if one.overdue >= 1 else "waits"
