"""`todoku`: commands, each a few lines over the App. Exit 0 done, 1 found a problem, 2 wrong usage."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click
import msgspec

from todoku.app import App, printed_migrations
from todoku.core.errors import TodokuError
from todoku.store.failpoint import arm_from

F = TypeVar("F", bound=Callable[..., Any])


def database_option(command: F) -> F:
    """The options every command has that opens a database."""
    command = click.option("--schema", help="PostgreSQL schema (TODOKU_SCHEMA).")(command)
    return click.option("--db", "database", metavar="URL", help="Database URL (TODOKU_DATABASE).")(command)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="todoku", prog_name="todoku")
def cli() -> None:
    """Makes messages arrive: jobs, outbox events and webhooks, in the database you already have."""


@cli.command()
@database_option
@click.option("--print", "only_print", is_flag=True, help="Print the SQL instead of applying it.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def migrate(database: str | None, schema: str | None, only_print: bool, as_json: bool) -> None:
    """Create or update todoku's tables."""
    if only_print:
        click.echo(printed_migrations(database, schema), nl=False)
        return
    box = App(database, schema=schema)
    try:
        done = box.migrate()
    finally:
        box.close()
    if as_json:
        click.echo(json.dumps(msgspec.to_builtins(done)))
    elif done.applied:
        click.echo(f"migrated to version {done.version} (applied: {', '.join(map(str, done.applied))})")
    else:
        click.echo(f"up to date at version {done.version}")


@cli.command()
@database_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def up(database: str | None, schema: str | None, as_json: bool) -> None:
    """Make the database ready and say what is in it."""
    box = App(database, schema=schema)
    try:
        box.migrate()
        about = box.about()
    finally:
        box.close()
    if as_json:
        click.echo(json.dumps(about.as_dict()))
    else:
        click.echo("\n".join(about.as_lines()))


def main() -> None:
    """The program: errors of todoku are one line, without a traceback."""
    try:
        arm_from(os.environ)
        cli(prog_name="todoku")
    except TodokuError as error:
        click.echo(f"todoku: {error}", err=True)
        sys.exit(1)
