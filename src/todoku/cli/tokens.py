"""`todoku tokens`: make, list and revoke the tokens of the HTTP API."""

from __future__ import annotations

from typing import get_args

import click

from todoku.cli.database_option import opened
from todoku.cli.options import act_options, database_option, duration, json_option, signed
from todoku.cli.output import nothing, print_json, say, show_rows
from todoku.core.scope import Scope
from todoku.engine.http import api_tokens as engine


@click.group()
def tokens() -> None:
    """Tokens of the HTTP API. The first admin token is a setting (TODOKU_TOKEN), or is made by the first daemon."""


@tokens.command("create")
@database_option
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    required=True,
    type=click.Choice(get_args(Scope)),
    help="What it may do; again for more.",
)
@click.option("--name", default="token", show_default=True, help="What people call it.")
@click.option("--expires", type=duration, metavar="DURATION", help="It ends by itself after so long: 30d.")
@act_options
@json_option
def create_token(
    *, database: str | None, schema: str | None, scopes: tuple[str, ...], name: str, expires: float | None,
    by: str | None, why: str | None, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Make a token and print it. It is shown this once: only its hash is stored."""
    with opened(database, schema) as box:
        who = signed(by, why, dry_run=dry_run)
        engine.check_name(name)
        if dry_run:
            say(f"would create {name}: {', '.join(scopes)}", err=True)
            return
        made, text = engine.create(box.store, who, name=name, scopes=scopes, lasts=expires)
    if as_json:
        print_json(_fields(made) | {"token": text})
        return
    say(text)
    say(f"token {made.prefix} ({', '.join(made.scopes)}): it is shown this once", err=True)


COLUMNS = ("prefix", "name", "scopes", "created_at", "expires_at", "last_used_at", "revoked_at", "alive")


@tokens.command("list")
@database_option
@json_option
def list_tokens(*, database: str | None, schema: str | None, as_json: bool) -> None:
    """List tokens, revoked ones too; never what they are."""
    with opened(database, schema) as box:
        found = engine.listed(box.store)
    if not found and not as_json:
        nothing("there are no tokens in the database")
    show_rows(COLUMNS, [tuple(_fields(each).values()) for each in found], as_json=as_json)


@tokens.command("revoke")
@database_option
@click.argument("token", metavar="PREFIX|NAME")
@act_options
@json_option
def revoke_token(
    *, database: str | None, schema: str | None, token: str, by: str | None, why: str | None, dry_run: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Let a token open nothing any more, within five seconds."""
    with opened(database, schema) as box:
        who, found = signed(by, why, dry_run=dry_run), engine.find(box.store, token)
        if not dry_run and found.id is not None:
            found = engine.revoke(box.store, found.id, who)
    if as_json:
        print_json({"act": "revoke", **_fields(found), "dry_run": dry_run})
        return
    say(f"{'would revoke' if dry_run else 'revoked'} {found.prefix} ({found.name})")


def _fields(token: engine.Token) -> dict[str, object]:
    return {name: getattr(token, name) if name != "scopes" else " ".join(token.scopes) for name in COLUMNS}
