"""Moving up: copy, from one database into another."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from todoku.app import load_settings, open_database
from todoku.cli.database_option import refuse_missing
from todoku.cli.options import json_option
from todoku.cli.output import say, show_rows
from todoku.daemon.start import sqlite_file
from todoku.engine import copy as moving
from todoku.engine.copy import Step


@click.command("copy")
@click.argument("source", metavar="SOURCE-URL")
@click.argument("target", metavar="TARGET-URL")
@click.option("--source-schema", help="PostgreSQL schema of the source (TODOKU_SCHEMA).")
@click.option("--schema", help="PostgreSQL schema of the target (TODOKU_SCHEMA).")
@click.option("--restart", is_flag=True, help="Forget what an unfinished copy has brought, and begin again.")
@click.option("--dry-run", is_flag=True, help="Say what would be copied, and change nothing.")
@json_option
def copy_command(
    *, source: str, target: str, source_schema: str | None, schema: str | None, restart: bool, dry_run: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Copy everything from one database into another, empty one: sqlite:///a.db postgresql://host/name.

    No worker may run on either side. While it copies, nobody can write to the source; killed, it goes on where it was
    when the same command is run again. Nothing can run in the target before both sides were found equal.
    """
    refuse_missing(source)
    with ExitStack() as opened:
        old, new = (
            opened.enter_context(closing(open_database(load_settings(database=url, schema=inside))))
            for url, inside in ((source, source_schema), (target, schema))
        )
        if dry_run:
            parts = moving.plan(old, new if _is_there(target) else None)
            show_rows(
                ("table", "rows", "there"), [(part.table, part.rows, part.there) for part in parts], as_json=as_json
            )
            return
        with _shown(quiet=as_json) as tell:
            copied = moving.copy(old, new, restart=restart, tell=tell)
    rows = [(one.table, one.rows, one.brought, one.digest) for one in copied]
    if as_json:
        show_rows(("table", "rows", "brought", "digest"), rows, as_json=True)
        return
    number = sum(one.rows for one in copied)
    say(f"copied {number} rows of {len(copied)} tables: counts and digests are the same on both sides")


def _is_there(url: str) -> bool:
    file = sqlite_file(url)
    return file is None or file.exists()


@contextmanager
def _shown(*, quiet: bool) -> Iterator[Callable[[Step], None]]:
    """Progress: a bar on a terminal; elsewhere a line for each table, and one a second for a long one."""
    if quiet:
        yield lambda _: None
        return
    if not sys.stderr.isatty():
        yield _lines()
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("copying", total=None)
        yield lambda step: bar.update(
            task, description=f"{step.doing} {step.table}", completed=step.done, total=step.rows
        )


def _lines() -> Callable[[Step], None]:
    said = time.monotonic()

    def tell(step: Step) -> None:
        nonlocal said
        if (step.doing == "copying" and step.done == step.rows) or time.monotonic() >= said + 1:
            said = time.monotonic()
            say(f"{step.doing} {step.table}: {step.done} of {step.rows}", err=True)

    return tell
