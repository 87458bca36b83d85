"""Commands about what follows the end of a delivery: batch, hooks."""

from __future__ import annotations

from uuid import UUID

import click

from todoku.cli.options import database_option, json_option, open_app, utc_option
from todoku.cli.output import exit_not_found, say, show_rows


@click.command()
@database_option
@click.argument("id", type=click.UUID)
@utc_option
@json_option
def batch(database: str | None, schema: str | None, id: UUID, as_json: bool) -> None:
    """Show the progress of a batch: open, succeeded, aborted."""
    with open_app(database, schema) as box:
        found = box.store.batch(id)
    if found is None:
        exit_not_found()
    else:
        columns = ("id", "on", "total", "open", "succeeded", "aborted", "done", "created_at", "done_at")
        show_rows(columns, [tuple(getattr(found, column) for column in columns)], as_json=as_json)


@click.command()
@database_option
@json_option
def hooks(database: str | None, schema: str | None, as_json: bool) -> None:
    """List the hooks: what runs when a delivery ends."""
    with open_app(database, schema) as box:
        found = box.store.hooks()
    columns = ("name", "event", "topic", "destination", "from_queue", "queue", "max_attempts", "timeout")
    if not found and not as_json:
        say("no hooks")
        return
    show_rows(columns, [tuple(getattr(hook, column) for column in columns) for hook in found], as_json=as_json)
