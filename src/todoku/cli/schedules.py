"""Commands about schedules: `todoku schedules`, and `todoku schedule add`, remove, pause, resume, run, next."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Literal
from zoneinfo import ZoneInfo

import click

from todoku.cli.database_option import opened, opened_app
from todoku.cli.messages import call_arguments
from todoku.cli.options import act_options, database_option, duration, json_option, moment, signed
from todoku.cli.output import print_json, print_table, say, show_rows, told
from todoku.core.errors import InvalidMessage, InvalidSetting
from todoku.core.schedule import Missed, cron, next_after, slots
from todoku.engine.schedules import Schedule

_FAR = datetime.max.replace(tzinfo=UTC)
_TIMING = (
    click.option("--cron", "expression", metavar="EXPRESSION", help='When: "0 9 * * *".'),
    click.option("--every", type=duration, metavar="DURATION", help="Or at an interval: 30s, 15m, 6h."),
    click.option("--tz", default="UTC", show_default=True, help="On whose clocks --cron is read: Asia/Tokyo."),
    click.option("--missed", type=click.Choice(["skip", "once", "all"]), default="once", show_default=True,
                 help="What becomes of slots that nobody fired in time."),
)  # fmt: skip


def timing_options(command: Any) -> Any:
    """When it fires, the same words as in Python."""
    for option in reversed(_TIMING):
        command = option(command)
    return command


@contextmanager
def said_wrongly() -> Iterator[None]:
    """A schedule that cannot be as said is wrong usage."""
    try:
        yield
    except (InvalidSetting, InvalidMessage) as error:
        raise click.UsageError(str(error)) from None


@click.command("add")
@database_option
@click.argument("name")
@click.argument("job")
@click.argument("arguments", nargs=-1, metavar="[JSON|NAME=VALUE]...")
@click.option("--app", metavar="MODULE:ATTR", help="The App (TODOKU_APP, or [tool.todoku] app).")
@timing_options
@act_options
@json_option
def _add(
    *, database: str | None, schema: str | None, name: str, job: str, arguments: tuple[str, ...], app: str | None,
    expression: str | None, every: float | None, tz: str, missed: Missed, by: str | None, why: str | None,
    dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Call a JOB of the App by a schedule, under a NAME; one that was added before is changed.

    The arguments of the job: one JSON object, one JSON array, or name=value…
    """
    args, kwargs = call_arguments(arguments)
    with opened_app(app, database, schema) as box:
        who = signed(by, why, dry_run=dry_run)
        with said_wrongly():
            if not box.jobs:
                raise click.UsageError("Without an App there are no jobs; name it with --app.")
            call = box.jobs[job].call(*args, **kwargs)
            following = box.schedules.add(
                name, call, cron=expression, every=every, tz=tz, missed=missed, by=who.by, why=who.why,
                dry_run=dry_run,
            )  # fmt: skip
    if as_json:
        print_json({"act": "add", "schedule": name, "job": job, "next": following, "dry_run": dry_run})
    else:
        say(f"{'would add' if dry_run else 'added'} {name}: next at {told(following)}")


def _act(act: Literal["remove", "pause", "resume"], done: str, help: str) -> click.Command:
    """A command that does one thing to one schedule."""

    @click.command(act, help=help)
    @database_option
    @click.argument("name")
    @act_options
    @json_option
    def command(
        *, database: str | None, schema: str | None, name: str, by: str | None, why: str | None, dry_run: bool,
        as_json: bool,
    ) -> None:  # fmt: skip
        with opened(database, schema) as box:
            who = signed(by, why, dry_run=dry_run)
            acts = {"remove": box.schedules.remove, "pause": box.schedules.pause, "resume": box.schedules.resume}
            acts[act](name, by=who.by, why=who.why, dry_run=dry_run)
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
    """Publish one message of a schedule now; its slots stay as they are."""
    with opened(database, schema) as box:
        who = signed(by, why, dry_run=dry_run)
        message = box.schedules.run_now(name, by=who.by, why=who.why, dry_run=dry_run)
    if as_json:
        id = None if message is None else message.id
        print_json({"act": "run", "schedule": name, "id": id, "dry_run": dry_run})
    else:
        say(f"would run {name}" if message is None else f"{message.id}")


@click.command("next")
@click.argument("expression", metavar="CRON")
@click.option("--tz", default="UTC", show_default=True, help="On whose clocks it is read: Asia/Tokyo.")
@click.option("--count", type=click.IntRange(1, 1000), default=5, show_default=True, help="So many slots.")
@click.option("--after", type=moment, metavar="TIME", help="After this time instead of now: 2026-01-31T12:00:00Z.")
@json_option
def _next(expression: str, tz: str, count: int, after: datetime | None, as_json: bool) -> None:
    """Show the next slots of a cron expression, without a database: "0 9 * * *"."""
    with said_wrongly():
        when = cron(expression, tz)
    found = islice(slots(when, next_after(when, after or datetime.now(UTC)), _FAR), count)
    show_rows(("local", "utc"), [(slot.astimezone(ZoneInfo(tz)).isoformat(), slot) for slot in found], as_json=as_json)


COMMANDS = (
    _add,
    _act("remove", "removed", "Remove a schedule that was added, or that no App declares any more."),
    _act("pause", "paused", "Let a schedule fire nothing until it is resumed."),
    _act("resume", "resumed", "Let a schedule fire again, from its next slot on."),
    _run,
    _next,
)


COLUMNS = ("name", "when", "tz", "next", "local", "last", "last_message", "missed", "paused", "declared", "source",
           "topic", "overdue", "error")  # fmt: skip

schedule = click.Group(
    "schedule", {command.name: command for command in COMMANDS if command.name is not None},
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
