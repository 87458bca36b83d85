"""`todoku encryption-keys`: generate master keys; list, rotate and shred data keys."""

from __future__ import annotations

import os
import sys
from datetime import date

import click

from todoku.cli.options import act_options, database_option, identify_operator, json_option, open_app, utc_option
from todoku.cli.output import exit_not_found, print_json, progress, say, show_rows
from todoku.core.sealed import KEY_BYTES, format_master_key
from todoku.engine.encryption.key_rotation import days, reseal_schedules_and_groups, rotate, shred
from todoku.engine.encryption.sealer import utc_today
from todoku.engine.encryption.stored_secrets import reseal


@click.group("encryption-keys")
def encryption_keys() -> None:
    """Manage the keys of data encrypted at rest.

    Master keys are a setting (TODOKU_MASTER_KEYS). Data keys are stored in the database, each wrapped by a master key.
    """


def day(text: str) -> date:
    """Parses a day: 2026-01-31."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a day; write it as 2026-01-31.") from None


@encryption_keys.command("generate")
@click.option("--id", "name", metavar="ID", help="Permanent id of the key (default: today's date).")
def generate_key(name: str | None) -> None:
    """Print a new master key.

    Put it first in TODOKU_MASTER_KEYS and keep the older keys after it. todoku does not store it: store it safely,
    because the data that it protects cannot be read without it.
    """
    say(format_master_key(name or utc_today().isoformat(), os.urandom(KEY_BYTES)))


@encryption_keys.command("list")
@database_option
@utc_option
@json_option
def list_keys(database: str | None, schema: str | None, as_json: bool) -> None:
    """List data keys by day, with their master key."""
    with open_app(database, schema) as box:
        masters, found = box.settings.master_keys, box.store.data_keys.days()
    if not found and not as_json:
        exit_not_found("there are no data keys: nothing has been encrypted yet")
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
    """Wrap all data keys with the current master key.

    The current key is the first of TODOKU_MASTER_KEYS. Messages are not changed. After exit status 0, and once
    ledger_ttl has passed, you can remove the older master keys.
    """
    with open_app(database, schema) as box:
        masters, operator = box.settings.master_keys, identify_operator(by, why, dry_run=dry_run)
        current = masters.current.id
        keys = box.store.data_keys
        with progress(
            "rotating", total=lambda: rotate(keys, masters, operator, dry_run=True).number, quiet=as_json
        ) as report:
            done = rotate(keys, masters, operator, dry_run=dry_run, progress=report)
        resealed = [reseal(box.store.secrets, masters, operator, dry_run=dry_run)]
        resealed.append(reseal_schedules_and_groups(box.store, masters, operator, dry_run=dry_run))
    secrets = sum(each.number for each in resealed)
    strangers = sorted({*done.strangers, *(name for each in resealed for name in each.strangers)})
    if as_json:
        print_json({
            "master_key": current, "keys": done.number, "secrets": secrets, "not_configured": strangers,
            "dry_run": dry_run,
        })  # fmt: skip
    else:
        say(f"rotate to {current}: {'would wrap' if dry_run else 'wrapped'} {done.number} data keys")
        if secrets:
            say(f"  {'would encrypt' if dry_run else 'encrypted'} {secrets} stored secrets with it")
        for name in strangers:
            say(f"  some need {name}, which TODOKU_MASTER_KEYS does not contain (or contains with other bytes)")
    if strangers:
        sys.exit(1)


@encryption_keys.command("shred")
@database_option
@click.option("--day", "day_", type=day, metavar="DAY", help="Delete the keys of this day (UTC).")
@click.option("--before", type=day, metavar="DAY", help="Delete the keys of all days before this one.")
@click.option("--force", is_flag=True, help="Also if deliveries are unfinished: they become dead letters (SHREDDED).")
@act_options
@json_option
def shred_keys(
    *, database: str | None, schema: str | None, day_: date | None, before: date | None, force: bool,
    by: str | None, why: str | None, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Delete data keys, and so all data they encrypted.

    What was encrypted on those days can never be read again.
    """
    with open_app(database, schema) as box:
        chosen, operator = days(day=day_, before=before, today=utc_today()), identify_operator(by, why, dry_run=dry_run)
        if not dry_run and sys.stdin.isatty():
            click.confirm("The data encrypted with these keys will be lost for ever. Continue?", abort=True, err=True)
        found = shred(box.store.data_keys, chosen, operator, force=force, dry_run=dry_run)
    if as_json:
        print_json({
            "keys": found.keys, "unfinished": found.unfinished, "dead_letters": found.dead, "steps": found.steps,
            "signals": found.signals, "dry_run": dry_run,
        })  # fmt: skip
    else:
        say(f"shred: {'would delete' if dry_run else 'deleted'} {found.keys} data keys")
        say(f"  unreadable: {found.unfinished} unfinished deliveries, {found.dead} dead letters")
        if found.steps or found.signals:
            say(f"  and of runs of workflows: {found.steps} steps, {found.signals} signals")
    if found.keys == 0:
        sys.exit(1)
