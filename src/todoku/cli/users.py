"""`todoku users`: people who sign in to the dashboard with a password."""

from __future__ import annotations

import sys

import click

from todoku.cli.options import act_options, database_option, identify_operator, json_option, open_app, utc_option
from todoku.cli.output import exit_not_found, print_json, say, show_rows
from todoku.core.role import ROLES
from todoku.engine.sign_in import users as engine
from todoku.engine.sign_in.passwords import check_password

COLUMNS = ("name", "role", "disabled", "created_at", "changed_at")


@click.group()
def users() -> None:
    """Manage who may sign in to the dashboard with a password.

    Tokens (`todoku tokens`) and an OpenID provider (the settings TODOKU_OIDC_…) work without users.
    """


@users.command("create")
@database_option
@click.argument("name")
@click.option("--role", type=click.Choice(ROLES), default="viewer", show_default=True,
              help="viewer reads, operator also acts, admin does everything.")  # fmt: skip
@act_options
@json_option
def create_user(
    *, database: str | None, schema: str | None, name: str, role: str, by: str | None, why: str | None, dry_run: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Create a user, with a password that is asked for or read from standard input."""
    with open_app(database, schema) as box:
        operator, named = identify_operator(by, why, dry_run=dry_run), engine.clean_name(name)
        if dry_run:
            say(f"would create {named}: {role}", err=True)
            return
        password = _read_password(named)
        created = engine.create_user(box.store, operator, name=named, password=password, role_name=role)
    _report("created", created, as_json=as_json)


@users.command("list")
@database_option
@utc_option
@json_option
def list_users(*, database: str | None, schema: str | None, as_json: bool) -> None:
    """List users, also disabled ones."""
    with open_app(database, schema) as box:
        found = engine.list_users(box.store)
    if not found and not as_json:
        exit_not_found("there are no users in the database")
    show_rows(COLUMNS, [tuple(_fields(each).values()) for each in found], as_json=as_json)


@users.command("password")
@database_option
@click.argument("name")
@act_options
@json_option
def change_password(
    *, database: str | None, schema: str | None, name: str, by: str | None, why: str | None, dry_run: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Give a user another password, which signs the user out everywhere."""
    with open_app(database, schema) as box:
        operator = identify_operator(by, why, dry_run=dry_run)
        if dry_run:
            say(f"would change the password of {engine.find_user(box.store, name).name}", err=True)
            return
        found = engine.find_user(box.store, name)
        changed = engine.set_password(box.store, operator, name=found.name, password=_read_password(found.name))
    _report("changed the password of", changed, as_json=as_json)


@users.command("role")
@database_option
@click.argument("name")
@click.argument("role", type=click.Choice(ROLES))
@act_options
@json_option
def change_role(
    *, database: str | None, schema: str | None, name: str, role: str, by: str | None, why: str | None, dry_run: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Give a user another role."""
    with open_app(database, schema) as box:
        operator, found = identify_operator(by, why, dry_run=dry_run), engine.find_user(box.store, name)
        if not dry_run:
            found = engine.set_role(box.store, operator, name=found.name, role_name=role)
    _report(f"{'would make' if dry_run else 'made'} {role}:", found, as_json=as_json)


def _switch(word: str, past: str, *, disabled: bool) -> click.Command:
    @database_option
    @click.argument("name")
    @act_options
    @json_option
    def switch(
        *, database: str | None, schema: str | None, name: str, by: str | None, why: str | None, dry_run: bool,
        as_json: bool,
    ) -> None:  # fmt: skip
        with open_app(database, schema) as box:
            operator, found = identify_operator(by, why, dry_run=dry_run), engine.find_user(box.store, name)
            if not dry_run:
                found = engine.set_disabled(box.store, operator, name=found.name, disabled=disabled)
        _report(f"would {word}" if dry_run else past, found, as_json=as_json)

    switch.__doc__ = (
        "Sign a user out everywhere, and refuse to sign the user in." if disabled else "Let a disabled user sign in."
    )
    return click.command(word)(switch)


users.add_command(_switch("disable", "disabled", disabled=True))
users.add_command(_switch("enable", "enabled", disabled=False))


def _read_password(name: str) -> str:
    """The password, asked for twice on a terminal, else the first line of standard input: never an argument."""
    if sys.stdin.isatty():
        password: str = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    check_password(password, name)
    return password


def _report(act: str, user: engine.User, *, as_json: bool) -> None:
    if as_json:
        print_json({"act": act, **_fields(user)})
    else:
        say(f"{act} {user.name} ({user.role}{', disabled' if user.disabled else ''})")


def _fields(user: engine.User) -> dict[str, object]:
    return {name: getattr(user, name) for name in COLUMNS}
