"""Commands that look at what follows: a batch, the hooks."""

from __future__ import annotations

from uuid import UUID

import click

from todoku.cli.database_option import opened
from todoku.cli.options import database_option, json_option
from todoku.cli.output import nothing, say, show_rows


@click.command()
@database_option
@click.argument("id", type=click.UUID)
@json_option
def batch(database: str | None, schema: str | None, id: UUID, as_json: bool) -> None:
    """Say how far a batch is: its members that are open, succeeded or aborted, and whether it is done."""
    with opened(database, schema) as box:
        found = box.store.batch(id)
    if found is None:
        nothing()
    else:
        columns = ("id", "on", "total", "open", "succeeded", "aborted", "done", "created_at", "done_at")
        show_rows(columns, [tuple(getattr(found, column) for column in columns)], as_json=as_json)


@click.command()
@database_option
@json_option
def hooks(database: str | None, schema: str | None, as_json: bool) -> None:
    """List the hooks: who is told of which ends of deliveries."""
    with opened(database, schema) as box:
        known = box.store.hooks()
    columns = ("name", "event", "topic", "destination", "from_queue", "queue", "max_attempts", "timeout")
    if not known and not as_json:
        say("no hooks")
        return
    show_rows(columns, [tuple(getattr(hook, column) for column in columns) for hook in known], as_json=as_json)
