"""`todoku signing-keys`: what HTTP deliveries are signed with, and the change to the next key."""

from __future__ import annotations

import click

from todoku.cli.database_option import opened
from todoku.cli.options import act_options, database_option, json_option, signed
from todoku.cli.output import print_json, say
from todoku.core.signing_keys import SigningKeys
from todoku.engine.http import signing_keys as engine


@click.group("signing-keys", invoke_without_command=True)
@click.pass_context
def signing_keys(context: click.Context) -> None:
    """Keys that HTTP deliveries are signed with: a setting (TODOKU_SIGNING_KEYS), or kept in the database."""
    if context.invoked_subcommand is None:
        context.invoke(show_keys)


@signing_keys.command("show")
@database_option
@json_option
def show_keys(*, database: str | None, schema: str | None, as_json: bool) -> None:
    """Print both keys, for the environment of a receiver. If there are none yet, they are made."""
    with opened(database, schema) as box:
        found = engine.signing_keys(box.store, box.settings)
    _print(found, as_json=as_json)


@signing_keys.command("rotate")
@database_option
@act_options
@json_option
def rotate_keys(
    *, database: str | None, schema: str | None, by: str | None, why: str | None, dry_run: bool, as_json: bool
) -> None:
    """Sign with the next key from now on, and make a new next one. Then give receivers both.

    Receivers that know both keys verify before and after: workers change over within ten seconds.
    """
    with opened(database, schema) as box:
        found = engine.rotate(box.store, box.settings, signed(by, why, dry_run=dry_run), dry_run=dry_run)
    if dry_run:
        say("would sign with the next key, and make a new one", err=True)
        return
    _print(found, as_json=as_json)


def _print(keys: SigningKeys, *, as_json: bool) -> None:
    if as_json:
        print_json({"current": keys.current, "next": keys.next})
        return
    say(f"QSTASH_CURRENT_SIGNING_KEY={keys.current}")
    say(f"QSTASH_NEXT_SIGNING_KEY={keys.next}")
