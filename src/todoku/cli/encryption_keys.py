"""`todoku encryption-keys`: make master keys, look at data keys, rotate and shred them."""

from __future__ import annotations

import os
import sys
from datetime import date

import click

from todoku.cli.database_option import opened
from todoku.cli.options import act_options, database_option, json_option, signed
from todoku.cli.output import nothing, print_json, progress, say, show_rows
from todoku.core.master_keys import KEY_BYTES, written
from todoku.engine.encryption.key_rotation import days, reseal_schedules_and_groups, rotate, shred
from todoku.engine.encryption.sealer import utc_today
from todoku.engine.encryption.stored_secrets import reseal


@click.group("encryption-keys")
def encryption_keys() -> None:
    """Keys of what is encrypted at rest: master keys are a setting, data keys are in the database."""


def day(text: str) -> date:
    """A day as people write it: 2026-01-31."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no day; write 2026-01-31.") from None


@encryption_keys.command("generate")
@click.option("--id", "name", metavar="ID", help="What it is called for ever (default: today).")
def generate_key(name: str | None) -> None:
    """Print a new master key. Put it first in TODOKU_MASTER_KEYS, and keep the others behind it.

    It is printed once and stored nowhere: without it, what it protects cannot be read.
    """
    say(written(name or utc_today().isoformat(), os.urandom(KEY_BYTES)))


@encryption_keys.command("list")
@database_option
@json_option
def list_keys(database: str | None, schema: str | None, as_json: bool) -> None:
    """List data keys by day, and the master key they are wrapped by."""
    with opened(database, schema) as box:
        masters, found = box.settings.master_keys, box.store.data_keys.days()
    if not found and not as_json:
        nothing("there are no data keys: nothing was encrypted yet")
    columns = ("day", "master_key", "configured", "keys", "since")
    show_rows(
        columns,
        [
            (row.day, row.master_key_id, masters.get(row.master_key_id) is not None, row.number, row.since)
            for row in found
        ],
        as_json=as_json,
    )  # fmt: skip


@encryption_keys.command("rotate")
@database_option
@act_options
@json_option
def rotate_keys(
    *, database: str | None, schema: str | None, by: str | None, why: str | None, dry_run: bool, as_json: bool
) -> None:
    """Wrap every data key by the current master key, the first of TODOKU_MASTER_KEYS. No message is touched.

    When it has ended with exit code 0, older master keys may be taken away, once ledger_ttl has passed.
    """
    with opened(database, schema) as box:
        masters, who = box.settings.master_keys, signed(by, why, dry_run=dry_run)
        current = masters.current.id
        with progress("rotating", quiet=as_json) as tell:
            done = rotate(box.store.data_keys, masters, who, dry_run=dry_run, progress=tell)
        kept = [reseal(box.store.secrets, masters, who, dry_run=dry_run)]
        kept.append(reseal_schedules_and_groups(box.store, masters, who, dry_run=dry_run))
    secrets = sum(each.number for each in kept)
    strangers = sorted({*done.strangers, *(name for each in kept for name in each.strangers)})
    if as_json:
        print_json({
            "master_key": current, "keys": done.number, "secrets": secrets, "not_configured": strangers,
            "dry_run": dry_run,
        })  # fmt: skip
    else:
        say(f"rotate to {current}: {'would wrap' if dry_run else 'wrapped'} {done.number} data keys")
        if secrets:
            say(f"  {'would seal' if dry_run else 'sealed'} {secrets} secrets of todoku's own")
        for name in strangers:
            say(f"  some are wrapped by {name}, which is not in TODOKU_MASTER_KEYS (or has other bytes there)")
    if strangers:
        sys.exit(1)


@encryption_keys.command("shred")
@database_option
@click.option("--day", "day_", type=day, metavar="DAY", help="The keys of this day (UTC).")
@click.option("--before", type=day, metavar="DAY", help="The keys of every day before this one.")
@click.option("--force", is_flag=True, help="Even what is unfinished: it becomes dead letters (SHREDDED).")
@act_options
@json_option
def shred_keys(
    *, database: str | None, schema: str | None, day_: date | None, before: date | None, force: bool,
    by: str | None, why: str | None, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Delete data keys: what was encrypted on those days can never be read again."""
    with opened(database, schema) as box:
        chosen, who = days(day=day_, before=before, today=utc_today()), signed(by, why, dry_run=dry_run)
        if not dry_run and sys.stdin.isatty():
            click.confirm("What these keys have encrypted is lost for ever. Go on", abort=True, err=True)
        found = shred(box.store.data_keys, chosen, who, force=force, dry_run=dry_run)
    if as_json:
        print_json(
            {"keys": found.keys, "unfinished": found.unfinished, "dead_letters": found.dead, "dry_run": dry_run}
        )  # fmt: skip
    else:
        say(f"shred: {'would delete' if dry_run else 'deleted'} {found.keys} data keys")
        say(f"  unreadable: {found.unfinished} unfinished deliveries, {found.dead} dead letters")
    if found.keys == 0:
        sys.exit(1)
