"""The command that runs a delivery again with an edited payload."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import click
from msgspec import UNSET

from todoku.cli.deliveries import id_argument
from todoku.cli.messages import usage_errors
from todoku.cli.options import act_options, database_option, identify_operator, json_option, json_text, open_named_app
from todoku.cli.output import print_json, say
from todoku.core.errors import InvalidAct
from todoku.engine.deliveries import resolve
from todoku.engine.edit import Edit, EditResult
from todoku.engine.edit import edit as run_edited


@click.command()
@database_option
@click.argument("id", type=id_argument, metavar="ID")
@click.option("--payload", metavar="JSON|@FILE", help="The new payload; @- reads it from standard input.")
@click.option("--key", help="Another key; empty: none.")
@click.option("--purge", is_flag=True, help="Remove the dead letter afterwards.")
@click.option("--app", metavar="MODULE:ATTR", help="Your App (TODOKU_APP, or [tool.todoku] app).")
@act_options
@json_option
def edit(
    *, database: str | None, schema: str | None, id: UUID | int, payload: str | None, key: str | None, purge: bool,
    app: str | None, by: str | None, why: str | None, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Run a delivery again with another payload.

    It is a new message, which goes to that destination alone, without its idempotency key, and with the label
    todoku.edited_of:ID. Your App checks it. *** in a masked field keeps the value that is there. With --dry-run, show
    the difference only.
    """
    if payload is None and key is None:
        raise click.UsageError("Say what to change: --payload or --key.")
    new: Any = UNSET if payload is None else _read(payload)
    change = Edit(payload=new, key=UNSET if key is None else key or None)
    with usage_errors(), open_named_app(app, database, schema) as box:
        numbers = resolve(box.store, [id])
        if len(numbers) != 1:
            hint = "give the number of one, as `todoku show` lists them"
            raise InvalidAct(f"{id} has {len(numbers)} deliveries", hint=hint)
        operator = identify_operator(by, why, dry_run=dry_run)
        done = run_edited(
            box.outbox, box.declarations, numbers[0], change, operator, purge=purge, dry_run=dry_run
        )  # fmt: skip
    if as_json:
        print_json({
            "delivery": done.delivery_id, "diff": done.diff, "hidden": done.hidden, "problems": done.problems,
            "message": done.message_id, "purged": done.purged, "dry_run": dry_run,
        })  # fmt: skip
    else:
        _report(done)
    if done.problems:
        sys.exit(1)


def _read(text: str) -> Any:
    if text.startswith("@"):
        try:
            text = sys.stdin.read() if text == "@-" else Path(text[1:]).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise click.BadParameter(f"{text[1:]} cannot be read: {error}.") from None
    return json.loads(json_text(text))


def _report(done: EditResult) -> None:
    if done.diff:
        say(*done.diff.split("\n"))
    for name in done.hidden:
        say(f"{name}: changed, and masked")
    for where, what in done.problems.items():
        say(f"{where or 'payload'}: {what}")
    if done.message_id is not None:
        say(f"new message {done.message_id}" + ("; the dead letter is removed" if done.purged else ""))
