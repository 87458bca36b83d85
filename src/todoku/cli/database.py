"""Commands about the database itself: migrate, doctor, verify."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import click
import msgspec

from todoku.app import App, printed_migrations
from todoku.cli.database_option import opened
from todoku.cli.options import database_option, json_option
from todoku.cli.output import print_document, print_json, progress, say
from todoku.core.errors import TodokuError
from todoku.daemon.app_loader import load_app, named_app
from todoku.engine.diagnostics.doctor import Finding, examine
from todoku.engine.diagnostics.verification import verify as verified


@click.command()
@database_option
@click.option("--print", "only_print", is_flag=True, help="Print the SQL instead of applying it.")
@json_option
def migrate(database: str | None, schema: str | None, only_print: bool, as_json: bool) -> None:
    """Create or update todoku's tables."""
    if only_print:
        print_document(printed_migrations(database, schema))
        return
    box = App(database, schema=schema)
    try:
        done = box.migrate()
    finally:
        box.close()
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
    """Check the invariants in the live database; exit 1 and name the broken ones."""
    with opened(database, schema) as box, progress("verifying", quiet=as_json):
        verdicts = verified(
            box.store, history_ttl=box.settings.history_ttl, ledger_ttl=box.settings.ledger_ttl,
            patience=3 * box.settings.reclaim_interval_sec,
        )  # fmt: skip
    for verdict in verdicts:
        check, examples = verdict.check, verdict.examples
        if as_json:
            print_json({
                "invariant": check.invariant, "name": check.name, "holds": not examples,
                "sentence": check.sentence, "examples": examples,
            })  # fmt: skip
        elif examples:
            say(f"broken  {check.invariant:<4} {check.name}: {check.sentence}, but not {', '.join(examples)}")
        else:
            say(f"holds   {check.invariant:<4} {check.name}: {check.sentence}")
    if any(verdict.examples for verdict in verdicts):
        sys.exit(1)


@click.command()
@database_option
@click.option("--app", metavar="MODULE:ATTR", help="Also import this App (TODOKU_APP, or [tool.todoku] app).")
@json_option
def doctor(database: str | None, schema: str | None, app: str | None, as_json: bool) -> None:
    """Check the set-up and say what to do; exit 1 if something is wrong."""
    worst = 0
    for finding in _findings(database, schema, app):
        worst = max(worst, finding.level == "problem")
        if as_json:
            print_json({
                "level": finding.level, "what": finding.what, "text": finding.text, "todo": finding.todo,
            })  # fmt: skip
        else:
            say(f"{finding.level:<8} {finding.what:<13} {finding.text}")
            if finding.todo:
                say(f"{'':<22} → {finding.todo}")
    sys.exit(worst)


def _findings(database: str | None, schema: str | None, app: str | None) -> Iterator[Finding]:
    yield _app(app)
    try:
        with opened(database, schema) as box:
            yield from examine(box.store, box.settings)
    except TodokuError as error:
        yield Finding("problem", "database", str(error))


def _app(given: str | None) -> Finding:
    try:
        if (name := named_app(given)) is None:
            return Finding("ok", "app", "none is named: --app, TODOKU_APP or [tool.todoku] app would")
        box = load_app(name)
        box.close()
    except TodokuError as error:
        return Finding("problem", "app", str(error))
    return Finding("ok", "app", f"{name} has {len(box.jobs)} jobs and {len(box.routes)} routes")
