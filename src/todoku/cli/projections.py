"""Commands for projections: `todoku projection list|show|rebuild|verify|switch|drop|purge`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from todoku.cli.options import (
    act_options,
    database_option,
    duration,
    identify_operator,
    json_option,
    open_app,
    open_named_app,
)
from todoku.cli.output import print_json, print_table, progress, progress_bar, say, show_rows
from todoku.engine.projections.projection import Projection, ProjectionStatus, list_statuses, read_status
from todoku.store.projections import IndexRow

F = TypeVar("F", bound=Callable[..., Any])

COLUMNS = ("name", "kind", "state", "readers", "lag_events", "oldest_age_seconds", "index", "building", "kept")
INDEX = ("index", "role", "generation", "written", "phase", "copied", "expected", "rejected")


def _of_app(command: F) -> F:
    """Adds the options of a command that needs the App, which knows the search server and the source."""
    command = click.option("--app", metavar="MODULE:ATTR", help="Your App (TODOKU_APP, or [tool.todoku] app).")(command)
    return database_option(click.argument("name")(command))


@contextmanager
def _projection(name: str, app: str | None, database: str | None, schema: str | None) -> Iterator[Projection]:
    with open_named_app(app, database, schema) as box:
        if not len(box.projections):
            raise click.UsageError("There are no projections; name your App with --app.")
        yield box.projections[name]


@click.command("list")
@database_option
@json_option
def _list(database: str | None, schema: str | None, as_json: bool) -> None:
    """List projections: state, readers' flag, lag, indexes."""
    with open_app(database, schema) as box:
        found = list_statuses(box.store)
    if not found and not as_json:
        say("no projections")
        return
    show_rows(COLUMNS, [_row(one) for one in found], as_json=as_json)


@click.command("show")
@database_option
@click.argument("name")
@json_option
def _show(database: str | None, schema: str | None, name: str, as_json: bool) -> None:
    """Show a projection with each of its indexes, and how far a rebuild is."""
    with open_app(database, schema) as box:
        one = read_status(box.store, name)
    if as_json:
        indexes = [dict(zip(INDEX, _index_row(index), strict=True)) for index in one.row.indexes]
        print_json({**dict(zip(COLUMNS, _row(one), strict=True)), "why": one.row.why, "indexes": indexes})
        return
    say(f"{name}: {one.row.kind}, {one.row.state}, readers {'on' if one.row.readable else 'off'}")
    if one.row.why is not None:
        say(f"why: {one.row.why}")
    say(f"lag: {one.lag.events} events, the oldest is {one.lag.age:.1f} s old")
    if one.row.indexes:
        print_table(INDEX, [_index_row(index) for index in one.row.indexes])


@click.command("rebuild")
@_of_app
@click.option(
    "--sample", type=click.IntRange(1), metavar="N", help="Compare so many documents before the switch (1000)."
)
@click.option("--all", "everything", is_flag=True, help="Compare all documents before the switch.")
@click.option("--no-switch", is_flag=True, help="Leave the new index ready; `switch` lets readers see it.")
@click.option("--accept", is_flag=True, help="Switch even if the new index differs from the source.")
@click.option("--patience", type=duration, default="5m", show_default=True, help="Wait so long for workers and server.")
@act_options
@json_option
def _rebuild(
    *, database: str | None, schema: str | None, name: str, app: str | None, sample: int | None, everything: bool,
    no_switch: bool, accept: bool, patience: float, by: str | None, why: str | None, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Build a new index from the source, while events arrive, and let readers see it.

    A rebuild that was killed goes on where it was: run the same command again. Exits 1 if readers still see the old
    index because the new one differs.
    """
    with _projection(name, app, database, schema) as projection:
        operator = identify_operator(by, why, dry_run=dry_run)
        if dry_run:
            say(f"would rebuild {name}")
            return
        with _rebuild_bar(quiet=as_json) as update:
            done = projection.rebuild(
                by=operator.by, why=operator.why, progress=update, patience=patience, accept=accept,
                switch=not no_switch, sample=None if everything else sample or 1000,
            )  # fmt: skip
    if as_json:
        print_json({
            "act": "rebuild", "projection": name, "index": done.index, "copied": done.copied, "rejected": done.rejected,
            "differences": len(done.differences), "switched": done.switched, "seconds": round(done.seconds, 3),
        })  # fmt: skip
    else:
        rejected = f", {done.rejected} rejected" if done.rejected else ""
        say(f"{done.index}: {done.copied} documents copied{rejected}, in {done.seconds:.1f} s")
        for text in (*done.problems, *(f"{one.key}: {one.kind}" for one in done.differences)):
            say(f"differs: {text}")
        say("readers see the new index" if done.switched else "readers still see the old index")
    if not done.switched and not no_switch:
        sys.exit(1)


@contextmanager
def _rebuild_bar(*, quiet: bool) -> Iterator[Callable[[IndexRow], None]]:
    if quiet or not sys.stderr.isatty():
        yield lambda _: None
        return
    with progress_bar("rebuild", None) as (bar, task):
        yield lambda index: bar.update(
            task, description=index.phase.replace("_", " "), completed=index.copied, total=max(index.expected, 1)
        )


@click.command("verify")
@_of_app
@click.option("--sample", type=click.IntRange(1), metavar="N", help="Compare about so many, at random; default: all.")
@click.option("--index", metavar="INDEX", help="Another index than the live one.")
@json_option
def _verify(
    *, database: str | None, schema: str | None, name: str, app: str | None, sample: int | None, index: str | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Compare a projection with its source, also while events arrive. Exits 1 if they differ."""
    with _projection(name, app, database, schema) as projection, progress("verify", quiet=as_json) as update:
        found = projection.verify(sample, index=index, progress=update)
    if as_json:
        print_json({
            "projection": name, "checked": found.checked, "in_flight": found.in_flight, "source": found.source,
            "index": found.index, "problems": found.problems,
            "differences": [{"key": one.key, "kind": one.kind, "version": one.version, "dead_letter": one.dead_letter}
                            for one in found.differences],
        })  # fmt: skip
    else:
        for text in found.problems:
            say(f"problem: {text}")
        if found.differences:
            print_table(("key", "kind", "version", "dead_letter"), [
                (one.key, one.kind, one.version, one.dead_letter) for one in found.differences
            ])  # fmt: skip
        say(
            f"{found.checked} documents compared, {len(found.differences)} differ; "
            f"the source has {found.source}, readers see {found.index}"
        )
    if not found.ok:
        sys.exit(1)


@click.command("switch")
@_of_app
@click.option("--back", is_flag=True, help="Let readers see the index they saw before the last switch.")
@click.option("--readers", type=click.Choice(["on", "off"]), help="Only set the flag that readers ask.")
@act_options
@json_option
def _switch(
    *, database: str | None, schema: str | None, name: str, app: str | None, back: bool, readers: str | None,
    by: str | None, why: str | None, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Let readers see the index that a rebuild made ready, or the one before it; or set the readers' flag."""
    if back and readers is not None:
        raise click.UsageError("--back cannot be combined with --readers.")
    operator = identify_operator(by, why, dry_run=dry_run)
    if readers is not None:
        with open_app(database, schema) as box:
            if not dry_run:
                box.store.projections.set_readable(name, operator, readable=readers == "on")
        _report("switch", name, f"readers {readers}", dry_run=dry_run, as_json=as_json)
        return
    with _projection(name, app, database, schema) as projection:
        live = None if dry_run else projection.switch(back=back, by=operator.by, why=operator.why).of("live")
    shown = "switch" if live is None else f"readers see {live.name}"
    _report("switch", name, shown, dry_run=dry_run, as_json=as_json)


@click.command("drop")
@_of_app
@click.option("--index", metavar="INDEX", help="The building or the kept index.")
@click.option("--all", "everything", is_flag=True, help="All indexes, and the projection itself.")
@act_options
@json_option
def _drop(
    *, database: str | None, schema: str | None, name: str, app: str | None, index: str | None, everything: bool,
    by: str | None, why: str | None, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Delete an index that readers do not see, or the whole projection.

    Waits until no worker writes it any more.
    """
    if (index is None) != everything:
        raise click.UsageError("Give --index INDEX, or --all.")
    with _projection(name, app, database, schema) as projection:
        operator = identify_operator(by, why, dry_run=dry_run)
        names = () if dry_run else projection.drop(index, by=operator.by, why=operator.why)
    _report("drop", name, f"dropped {', '.join(names) or index or name}", dry_run=dry_run, as_json=as_json)


@click.command("purge")
@_of_app
@click.option("--older-than", type=duration, default="7d", show_default=True, help="Deleted that long ago.")
@json_option
def _purge(
    *, database: str | None, schema: str | None, name: str, app: str | None, older_than: float, as_json: bool
) -> None:
    """Remove documents that were deleted long ago, and are only kept so that late events lose to them."""
    with _projection(name, app, database, schema) as projection:
        number = projection.purge(older_than=older_than)
    _report("purge", name, f"removed {number} deleted documents", dry_run=False, as_json=as_json)


def _report(act: str, name: str, done: str, *, dry_run: bool, as_json: bool) -> None:
    if as_json:
        print_json({"act": act, "projection": name, "done": done, "dry_run": dry_run})
    else:
        say(f"{'would: ' if dry_run else ''}{name}: {done}")


def _row(one: ProjectionStatus) -> tuple[object, ...]:
    names = {role: index.name if (index := one.row.of(role)) else None for role in ("live", "building", "kept")}
    return (
        one.row.name, one.row.kind, one.row.state, "on" if one.row.readable else "off", one.lag.events,
        round(one.lag.age, 3), names["live"], names["building"], names["kept"],
    )  # fmt: skip


def _index_row(index: IndexRow) -> tuple[object, ...]:
    return (
        index.name, index.role, index.generation, index.written, index.phase or None, index.copied, index.expected,
        index.rejected,
    )  # fmt: skip


COMMANDS = (_list, _show, _rebuild, _verify, _switch, _drop, _purge)

projection = click.Group(
    "projection", {command.name: command for command in COMMANDS if command.name is not None},
    help="Look at, rebuild, verify or switch projections: search indexes and chronicles.",
)  # fmt: skip
