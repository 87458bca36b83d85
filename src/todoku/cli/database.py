"""Commands about the database itself: migrate, doctor, verify, copy."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import click
import msgspec

from todoku.app import load_settings, open_database, printed_migrations
from todoku.cli.options import database_option, json_option, open_app, open_named_app, refuse_missing_file
from todoku.cli.output import print_document, print_json, progress, progress_bar, say, say_wrapped, show_rows
from todoku.core.errors import TodokuError
from todoku.daemon.app_loader import find_app_name, load_app
from todoku.daemon.start import sqlite_file
from todoku.engine import copy as database_copy
from todoku.engine.copy import CopyProgress
from todoku.engine.diagnostics.doctor import Finding, examine
from todoku.engine.diagnostics.verification import CHECKS
from todoku.engine.diagnostics.verification import verify as check_invariants


@click.command("copy")
@click.argument("source", metavar="SOURCE-URL")
@click.argument("target", metavar="TARGET-URL")
@click.option("--source-schema", help="PostgreSQL schema of the source (TODOKU_SCHEMA).")
@click.option("--schema", help="PostgreSQL schema of the target (TODOKU_SCHEMA).")
@click.option("--restart", is_flag=True, help="Discard an unfinished copy and start over.")
@click.option("--dry-run", is_flag=True, help="Show what would be copied; change nothing.")
@json_option
def copy_command(
    *, source: str, target: str, source_schema: str | None, schema: str | None, restart: bool, dry_run: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Copy a whole database into an empty one.

    Example: todoku copy sqlite:///todoku.db postgresql://host/name

    Stop the workers of both databases first. The source cannot be written to while the copy runs. If it is
    interrupted, run the same command again: it continues where it stopped. Workers can use the target only after both
    sides were compared and are equal.
    """
    refuse_missing_file(source)
    with ExitStack() as stack:
        old, new = (
            stack.enter_context(closing(open_database(load_settings(database=url, schema=in_schema))))
            for url, in_schema in ((source, source_schema), (target, schema))
        )
        if dry_run:
            parts = database_copy.plan(old, new if _exists(target) else None)
            show_rows(
                ("table", "rows", "there"), [(part.table, part.rows, part.there) for part in parts], as_json=as_json
            )
            return
        with _progress_reporter(quiet=as_json) as report:
            copied = database_copy.copy(old, new, restart=restart, on_progress=report)
    rows = [(one.table, one.rows, one.brought, one.digest) for one in copied]
    if as_json:
        show_rows(("table", "rows", "brought", "digest"), rows, as_json=True)
        return
    number = sum(one.rows for one in copied)
    say(f"copied {number} rows of {len(copied)} tables: counts and digests are equal on both sides")


def _exists(url: str) -> bool:
    file = sqlite_file(url)
    return file is None or file.exists()


@contextmanager
def _progress_reporter(*, quiet: bool) -> Iterator[Callable[[CopyProgress], None]]:
    """Yields the progress callback: a bar on a terminal; elsewhere one line per table, and one per second."""
    if quiet:
        yield lambda _: None
        return
    if not sys.stderr.isatty():
        yield _line_reporter()
        return
    with progress_bar("copying", None) as (bar, task):
        yield lambda step: bar.update(
            task, description=f"{step.doing} {step.table}", completed=step.done, total=step.rows
        )


def _line_reporter() -> Callable[[CopyProgress], None]:
    reported_at = time.monotonic()

    def report(step: CopyProgress) -> None:
        nonlocal reported_at
        if (step.doing == "copying" and step.done == step.rows) or time.monotonic() >= reported_at + 1:
            reported_at = time.monotonic()
            say(f"{step.doing} {step.table}: {step.done} of {step.rows}", err=True)

    return report


@click.command()
@database_option
@click.option("--app", metavar="MODULE:ATTR", help="Your App (TODOKU_APP, or [tool.todoku] app).")
@click.option("--print", "only_print", is_flag=True, help="Print the SQL instead of applying it.")
@json_option
def migrate(database: str | None, schema: str | None, app: str | None, only_print: bool, as_json: bool) -> None:
    """Create or update todoku's tables.

    With an App, its projections, schedules and hooks are recorded, too.
    """
    if only_print:
        print_document(printed_migrations(database, schema))
        return
    with open_named_app(app, database, schema, may_create=True) as box:
        done = box.migrate()
    if as_json:
        print_json(msgspec.to_builtins(done))
    elif done.applied:
        say(f"migrated to version {done.version} (applied: {', '.join(map(str, done.applied))})")
    else:
        say(f"up to date at version {done.version}")


@click.command()
@database_option
@json_option
def verify(database: str | None, schema: str | None, as_json: bool) -> None:
    """Check the invariants in the live database.

    Exits 1 and names the broken ones, with examples.
    """
    with open_app(database, schema) as box, progress("verifying", total=lambda: len(CHECKS), quiet=as_json) as checked:
        verdicts = check_invariants(
            box.store, history_ttl=box.settings.history_ttl, ledger_ttl=box.settings.ledger_ttl,
            patience=3 * box.settings.reclaim_interval_sec, progress=checked,
        )  # fmt: skip
    for verdict in verdicts:
        check, examples = verdict.check, verdict.examples
        if as_json:
            print_json({
                "invariant": check.invariant, "name": check.name, "holds": not examples,
                "sentence": check.sentence, "examples": examples,
            })  # fmt: skip
        elif examples:
            text = f"{check.invariant:<4} {check.name}: {check.sentence}; violated by {', '.join(examples)}"
            say_wrapped(text, indent=8, label="broken", meaning="broken")
        else:
            text = f"{check.invariant:<4} {check.name}: {check.sentence}"
            say_wrapped(text, indent=8, label="holds", meaning="holds")
    if any(verdict.examples for verdict in verdicts):
        sys.exit(1)


@click.command()
@database_option
@click.option("--app", metavar="MODULE:ATTR", help="App to check (TODOKU_APP, or [tool.todoku] app).")
@json_option
def doctor(database: str | None, schema: str | None, app: str | None, as_json: bool) -> None:
    """Check the setup and say how to fix problems.

    Exits 1 if there is a problem.
    """
    worst = 0
    for finding in _findings(database, schema, app):
        worst = max(worst, finding.level == "problem")
        if as_json:
            print_json({
                "level": finding.level, "what": finding.what, "text": finding.text, "todo": finding.todo,
            })  # fmt: skip
        else:
            label = f"{finding.level:<8} {finding.what}"
            say_wrapped(finding.text, indent=23, label=label, meaning=finding.level)
            if finding.todo:
                say_wrapped(f"→ {finding.todo}", indent=23)
    sys.exit(worst)


def _findings(database: str | None, schema: str | None, app: str | None) -> Iterator[Finding]:
    yield _check_app(app)
    try:
        with open_app(database, schema) as box:
            yield from examine(box.store, box.settings)
    except TodokuError as error:
        yield Finding("problem", "database", str(error))


def _check_app(given: str | None) -> Finding:
    try:
        if (name := find_app_name(given)) is None:
            return Finding("ok", "app", "no App is named (by --app, TODOKU_APP or [tool.todoku] app)")
        box = load_app(name)
        box.close()
    except TodokuError as error:
        return Finding("problem", "app", str(error))
    return Finding("ok", "app", f"{name} has {len(box.jobs)} jobs and {len(box.routes)} routes")
