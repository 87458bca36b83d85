"""`todoku schedules`, and `todoku schedule add`, remove, pause, resume, run, next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Literal
from zoneinfo import ZoneInfo

import click

from todoku.cli.messages import call_arguments
from todoku.cli.options import (
    act_options,
    database_option,
    duration,
    identify_operator,
    json_option,
    moment,
    open_app,
    open_named_app,
    utc_option,
)
from todoku.cli.output import format_value, print_json, print_table, say, show_rows
from todoku.core.errors import InvalidMessage, InvalidSetting
from todoku.core.schedule import Missed, cron, next_after, slots
from todoku.engine.schedules import Schedule

_FAR = datetime.max.replace(tzinfo=UTC)
_TIMING = (
    click.option("--cron", "expression", metavar="EXPRESSION", help='Cron expression: "0 9 * * *".'),
    click.option("--every", type=duration, metavar="DURATION", help="Interval, instead of --cron: 30s, 15m, 6h."),
    click.option("--tz", default="UTC", show_default=True, help="Time zone of --cron: Asia/Tokyo."),
    click.option("--missed", type=click.Choice(["skip", "once", "all"]), default="once", show_default=True,
                 help="Slots missed while no worker ran: skip them, fire once, or fire all."),
)  # fmt: skip


def timing_options(command: Any) -> Any:
    """Adds the options that say when a schedule fires, named as in Python."""
    for option in reversed(_TIMING):
        command = option(command)
    return command


@contextmanager
def schedule_usage_errors() -> Iterator[None]:
    """Turns an invalid schedule into wrong usage (exit 2)."""
    try:
        yield
    except (InvalidSetting, InvalidMessage) as error:
        raise click.UsageError(str(error)) from None


@click.command("add")
@database_option
@click.argument("name")
@click.argument("job")
@click.argument("arguments", nargs=-1, metavar="[JSON|NAME=VALUE]...")
@click.option("--app", metavar="MODULE:ATTR", help="Your App (TODOKU_APP, or [tool.todoku] app).")
@timing_options
@act_options
@json_option
def _add(
    *, database: str | None, schema: str | None, name: str, job: str, arguments: tuple[str, ...], app: str | None,
    expression: str | None, every: float | None, tz: str, missed: Missed, by: str | None, why: str | None,
    dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Add a schedule that enqueues a job of your App.

    Give the job's arguments as one JSON object, one JSON array, or name=value pairs. A schedule that was added under
    this NAME before is changed.
    """
    args, kwargs = call_arguments(arguments)
    with open_named_app(app, database, schema) as box:
        operator = identify_operator(by, why, dry_run=dry_run)
        with schedule_usage_errors():
            if not box.jobs:
                raise click.UsageError("There are no jobs; name your App with --app.")
            call = box.jobs[job].call(*args, **kwargs)
            following = box.schedules.add(
                name, call, cron=expression, every=every, tz=tz, missed=missed, by=operator.by, why=operator.why,
                dry_run=dry_run,
            )  # fmt: skip
    if as_json:
        print_json({"act": "add", "schedule": name, "job": job, "next": following, "dry_run": dry_run})
    else:
        say(f"{'would add' if dry_run else 'added'} {name}: next at {format_value(following)}")


def _act(act: Literal["remove", "pause", "resume"], done: str, help: str) -> click.Command:
    """Creates the command that does `act` to one schedule."""

    @click.command(act, help=help)
    @database_option
    @click.argument("name")
    @act_options
    @json_option
    def command(
        *, database: str | None, schema: str | None, name: str, by: str | None, why: str | None, dry_run: bool,
        as_json: bool,
    ) -> None:  # fmt: skip
        with open_app(database, schema) as box:
            operator = identify_operator(by, why, dry_run=dry_run)
            acts = {"remove": box.schedules.remove, "pause": box.schedules.pause, "resume": box.schedules.resume}
            acts[act](name, by=operator.by, why=operator.why, dry_run=dry_run)
        if as_json:
            print_json({"act": act, "schedule": name, "dry_run": dry_run})
        else:
            say(f"would {act} {name}" if dry_run else f"{done} {name}")

    return command


@click.command("run")
@database_option
@click.argument("name")
@act_options
@json_option
def _run(
    *, database: str | None, schema: str | None, name: str, by: str | None, why: str | None, dry_run: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Publish one message of a schedule now.

    Its next slots do not change.
    """
    with open_app(database, schema) as box:
        operator = identify_operator(by, why, dry_run=dry_run)
        message = box.schedules.run_now(name, by=operator.by, why=operator.why, dry_run=dry_run)
    if as_json:
        id = None if message is None else message.id
        print_json({"act": "run", "schedule": name, "id": id, "dry_run": dry_run})
    else:
        say(f"would run {name}" if message is None else f"{message.id}")


@click.command("next")
@click.argument("expression", metavar="CRON")
@click.option("--tz", default="UTC", show_default=True, help="Time zone: Asia/Tokyo.")
@click.option("--count", type=click.IntRange(1, 1000), default=5, show_default=True, help="Number of times to show.")
@click.option("--after", type=moment, metavar="TIME", help="Start here instead of now: 2026-01-31T12:00:00Z.")
@json_option
def next_(expression: str, tz: str, count: int, after: datetime | None, as_json: bool) -> None:
    """Show the next times of a cron expression.

    Needs no database. Example: todoku schedule next "0 9 * * *"
    """
    with schedule_usage_errors():
        when = cron(expression, tz)
    found = islice(slots(when, next_after(when, after or datetime.now(UTC)), _FAR), count)
    show_rows(("local", "utc"), [(slot.astimezone(ZoneInfo(tz)).isoformat(), slot) for slot in found], as_json=as_json)


COMMANDS = (
    _add,
    _act("remove", "removed", "Remove a schedule that no App declares."),
    _act("pause", "paused", "Stop a schedule until it is resumed."),
    _act("resume", "resumed", "Let a paused schedule fire again from its next slot."),
    _run,
    next_,
)


COLUMNS = ("name", "when", "tz", "next", "local", "last", "last_message", "missed", "paused", "declared", "source",
           "topic", "overdue", "error")  # fmt: skip

schedule = click.Group(
    "schedule", {command.name: command for command in COMMANDS if command.name is not None},
    help="Change or run a schedule, or try a cron expression.",
)  # fmt: skip


@click.command()
@database_option
@utc_option
@json_option
def schedules(database: str | None, schema: str | None, as_json: bool) -> None:
    """List schedules: next and last run, state, error."""
    with open_app(database, schema) as box:
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
    """The time in the zone of the schedule."""
    return None if at is None or tz is None else at.astimezone(ZoneInfo(tz)).isoformat()


def _state(one: Schedule) -> str:
    if one.paused:
        return "paused"
    if not one.declared:
        return "no longer declared"
    return f"overdue {one.overdue:.0f} s" if one.overdue >= 1 else "waiting"
