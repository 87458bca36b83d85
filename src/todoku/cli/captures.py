"""Commands for captures: `todoku capture list|show|snapshot|drop`."""

from __future__ import annotations

from typing import Final

import click

from todoku.capture.captures import read_status
from todoku.cli.options import (
    act_options,
    database_option,
    identify_operator,
    json_option,
    open_app,
    open_named_app,
    utc_option,
)
from todoku.cli.output import format_time, print_json, print_table, say, say_wrapped, show_rows
from todoku.core.byte_size import format_bytes
from todoku.core.capture import format_lsn
from todoku.store.captures import CaptureRow, TableState, tables_to_restart

COLUMNS: Final = (
    "name", "state", "reason", "reader", "behind_bytes", "retained_bytes", "changes", "committed_at", "tables",
    "snapshots_done",
)  # fmt: skip
_INDENT: Final = 10
TABLE: Final = ("table", "topic", "key", "snapshot", "phase", "copied", "expected")


@click.command("list")
@database_option
@utc_option
@json_option
def _list(database: str | None, schema: str | None, as_json: bool) -> None:
    """List captures: state, reader, how far behind, snapshots."""
    with open_app(database, schema) as box:
        found = box.store.captures.list()
    if not found and not as_json:
        say("no captures")
        return
    show_rows(COLUMNS, [_row(one) for one in found], as_json=as_json)


@click.command("show")
@database_option
@utc_option
@click.argument("name")
@json_option
def _show(database: str | None, schema: str | None, name: str, as_json: bool) -> None:
    """Show a capture with each of its tables."""
    with open_app(database, schema) as box:
        one = read_status(box.store.captures, name)
    if as_json:
        tables = [dict(zip(TABLE, _table_row(table), strict=True)) for table in one.tables]
        print_json({
            **dict(zip(COLUMNS, _row(one), strict=True)), "why": one.why, "since": one.state_at,
            "lsn": format_lsn(one.lsn) if one.lsn else None, "generation": one.generation, "slot": one.slot,
            "publication": one.publication, "measured_at": one.measured_at, "warnings": one.warnings, "tables": tables,
        })  # fmt: skip
        return
    reader = f"read by {one.reader}" if one.reader else "no worker reads it"
    reason = f" ({one.reason})" if one.reason else ""
    say_wrapped(f"{name}: {one.state}{reason} since {format_time(one.state_at)}, {reader}", indent=0)
    if one.why is not None:
        say_wrapped(one.why, indent=_INDENT, label="why")
    say_wrapped(_position(one), indent=_INDENT, label="position")
    say_wrapped(f"{one.slot}, publication {one.publication}, generation {one.generation}", indent=_INDENT, label="slot")
    for warning in one.warnings:
        say_wrapped(warning, indent=_INDENT, label="warning")
    if one.tables:
        print_table(TABLE, [_table_row(table) for table in one.tables])


@click.command("snapshot")
@database_option
@click.argument("name")
@click.option("--table", "tables", multiple=True, metavar="TABLE", help="Only this table; may be repeated.")
@act_options
@json_option
def _snapshot(
    *, database: str | None, schema: str | None, name: str, tables: tuple[str, ...], by: str | None, why: str | None,
    dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Publish the rows of all its tables anew.

    A worker does it, while changes arrive; for a stopped capture it makes a new slot first. Rows that are gone since
    the last snapshot are published as deletes. Without --table, tables that were declared without a snapshot are left
    out.
    """
    with open_app(database, schema) as box:
        operator = identify_operator(by, why, dry_run=dry_run)
        before = read_status(box.store.captures, name)
        wanted = tables_to_restart(before, tables or None)
        if not dry_run:
            box.store.captures.restart(name, tables or None, operator)
    anew = before.state == "stopped"
    if as_json:
        print_json({"act": "snapshot", "capture": name, "tables": wanted, "new_slot": anew, "dry_run": dry_run})
        return
    text = f"{'would read' if dry_run else 'a worker will read'} {', '.join(wanted) or 'no table'}"
    say(f"{name}: {text}{', after it has made a new slot' if anew else ''}")


@click.command("drop")
@click.option("--app", metavar="MODULE:ATTR", help="Your App (TODOKU_APP, or [tool.todoku] app).")
@database_option
@click.argument("name")
@click.option("--forget", is_flag=True, help="Leave slot and publication at the source; needs no App.")
@act_options
@json_option
def _drop(
    *, app: str | None, database: str | None, schema: str | None, name: str, forget: bool, by: str | None,
    why: str | None, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Drop a capture, its slot and its publication.

    What it has published stays. Remove it from your App first: a worker that still declares it begins it anew.
    """
    with open_app(database, schema) if forget else open_named_app(app, database, schema) as box:
        if not forget and name not in {one.name for one in box.captures}:
            raise click.UsageError(f"Your App has no capture {name!r}; name it with --app, or use --forget.")
        operator = identify_operator(by, why, dry_run=dry_run)
        found = read_status(box.store.captures, name)
        if not dry_run and forget:
            box.store.captures.drop(name, operator)
        elif not dry_run:
            box.captures[name].drop(by=operator.by, why=operator.why)
    left = _left_behind(found) if forget else ()
    if as_json:
        print_json({
            "act": "drop", "capture": name, "slot": found.slot, "publication": found.publication,
            "at_source": not forget, "left": left, "dry_run": dry_run,
        })  # fmt: skip
        return
    what = "the capture" if forget else f"the slot {found.slot}, its publication and the capture"
    say(f"{name}: {'would drop' if dry_run else 'dropped'} {what}")
    if left:
        say(f"the slot {found.slot} stays at the source, which keeps its log for it; drop it there:", *left)


def _left_behind(row: CaptureRow) -> tuple[str, ...]:
    """The SQL that an operator runs at the source. The names have letters, digits and underscores alone."""
    return (
        f"select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = '{row.slot}';",
        f"drop publication if exists {row.publication};",
    )


def _position(one: CaptureRow) -> str:
    if not one.lsn:
        return "it has not started yet"
    committed = "" if one.committed_at is None else f", the last committed {format_time(one.committed_at)}"
    behind = "" if one.behind_bytes is None else f"; {format_bytes(one.behind_bytes)} behind"
    kept = one.retained_bytes
    retained = "" if kept is None else f", the source keeps {format_bytes(kept)} of log for it"
    return f"{format_lsn(one.lsn)}, {one.changes} messages published{committed}{behind}{retained}"


def _row(one: CaptureRow) -> tuple[object, ...]:
    return (
        one.name, one.state, one.reason, one.reader, one.behind_bytes, one.retained_bytes, one.changes,
        one.committed_at, len(one.tables), sum(table.phase == "done" for table in one.tables),
    )  # fmt: skip


def _table_row(table: TableState) -> tuple[object, ...]:
    return (
        table.table, table.topic, ", ".join(table.key), table.snapshot, table.phase, table.copied, table.expected
    )  # fmt: skip


COMMANDS = (_list, _show, _snapshot, _drop)

capture = click.Group(
    "capture", {command.name: command for command in COMMANDS if command.name is not None},
    help="Look at captures, read their tables anew, or drop them.",
)  # fmt: skip
