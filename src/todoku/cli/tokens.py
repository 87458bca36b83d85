"""`todoku tokens`: create, list and revoke tokens of the HTTP API."""

from __future__ import annotations

from typing import get_args

import click

from todoku.cli.options import (
    act_options,
    database_option,
    duration,
    identify_operator,
    json_option,
    open_app,
    utc_option,
)
from todoku.cli.output import exit_not_found, print_json, say, show_rows
from todoku.core.scope import Scope
from todoku.engine.http import api_tokens as engine


@click.group()
def tokens() -> None:
    """Manage the tokens of the HTTP API.

    The first admin token is the setting TODOKU_TOKEN; without it, the first daemon creates and prints one.
    """


@tokens.command("create")
@database_option
@click.option(
    "--scope",
    "scopes",
    multiple=True,
    required=True,
    type=click.Choice(get_args(Scope)),
    help="What the token may do. Repeatable.",
)
@click.option("--name", default="token", show_default=True, help="Name of the token.")
@click.option("--expires", type=duration, metavar="DURATION", help="Time until it expires: 30d.")
@click.option("--upstash", is_flag=True, help="In the form of QStash's tokens: webhooks of @upstash/workflow need it.")
@act_options
@json_option
def create_token(
    *, database: str | None, schema: str | None, scopes: tuple[str, ...], name: str, expires: float | None,
    upstash: bool, by: str | None, why: str | None, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Create a token and print it.

    Copy it now: only its hash is stored, so it cannot be shown again.
    """
    with open_app(database, schema) as box:
        operator = identify_operator(by, why, dry_run=dry_run)
        engine.check_name(name)
        if dry_run:
            say(f"would create {name}: {', '.join(scopes)}", err=True)
            return
        created, text = engine.create(box.store, operator, name=name, scopes=scopes, lasts=expires, upstash=upstash)
    if as_json:
        print_json(_fields(created) | {"token": text})
        return
    say(text)
    say(f"token {created.prefix} ({', '.join(created.scopes)}): copy it now, it is not shown again", err=True)


COLUMNS = ("prefix", "name", "scopes", "created_at", "expires_at", "last_used_at", "revoked_at", "alive")


@tokens.command("list")
@database_option
@utc_option
@json_option
def list_tokens(*, database: str | None, schema: str | None, as_json: bool) -> None:
    """List tokens by prefix and name, also revoked ones."""
    with open_app(database, schema) as box:
        found = engine.list_tokens(box.store)
    if not found and not as_json:
        exit_not_found("there are no tokens in the database")
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
    """Revoke a token, effective within five seconds."""
    with open_app(database, schema) as box:
        operator, found = identify_operator(by, why, dry_run=dry_run), engine.find(box.store, token)
        if not dry_run and found.id is not None:
            found = engine.revoke(box.store, found.id, operator)
    if as_json:
        print_json({"act": "revoke", **_fields(found), "dry_run": dry_run})
        return
    say(f"{'would revoke' if dry_run else 'revoked'} {found.prefix} ({found.name})")


def _fields(token: engine.Token) -> dict[str, object]:
    return {name: getattr(token, name) if name != "scopes" else " ".join(token.scopes) for name in COLUMNS}
