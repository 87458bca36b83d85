"""`todoku signing-keys`: show and rotate the keys that sign HTTP deliveries."""

from __future__ import annotations

import click

from todoku.cli.options import act_options, database_option, identify_operator, json_option, open_app
from todoku.cli.output import print_json, say
from todoku.core.signature import SigningKeys
from todoku.engine.http import signing_keys as engine


@click.group("signing-keys", invoke_without_command=True)
@click.pass_context
def signing_keys(context: click.Context) -> None:
    """Show or rotate the keys that sign HTTP deliveries.

    They come from the setting TODOKU_SIGNING_KEYS, or are stored in the database.
    """
    if context.invoked_subcommand is None:
        context.invoke(show_keys)


@signing_keys.command("show")
@database_option
@json_option
def show_keys(*, database: str | None, schema: str | None, as_json: bool) -> None:
    """Print both keys, for a receiver's environment.

    Creates them if there are none.
    """
    with open_app(database, schema) as box:
        found = engine.signing_keys(box.store, box.settings)
    _print(found, as_json=as_json)


@signing_keys.command("rotate")
@database_option
@act_options
@json_option
def rotate_keys(
    *, database: str | None, schema: str | None, by: str | None, why: str | None, dry_run: bool, as_json: bool
) -> None:
    """Sign with the next key and create a new next one.

    Then give both keys to the receivers. Workers switch within ten seconds; a receiver that knows both keys accepts
    requests before and after the switch.
    """
    with open_app(database, schema) as box:
        found = engine.rotate(box.store, box.settings, identify_operator(by, why, dry_run=dry_run), dry_run=dry_run)
    if dry_run:
        say("would sign with the next key and create a new one", err=True)
        return
    _print(found, as_json=as_json)


def _print(keys: SigningKeys, *, as_json: bool) -> None:
    if as_json:
        print_json({"current": keys.current, "next": keys.next})
        return
    say(f"QSTASH_CURRENT_SIGNING_KEY={keys.current}")
    say(f"QSTASH_NEXT_SIGNING_KEY={keys.next}")
