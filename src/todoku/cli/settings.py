"""`todoku settings`: the settings in force, and where each comes from."""

from __future__ import annotations

import click

from todoku.app import load_settings
from todoku.cli.options import database_option, json_option
from todoku.cli.output import show_rows
from todoku.engine.diagnostics.settings_in_force import describe_settings


@click.command()
@database_option
@click.option("--changed", is_flag=True, help="Only those that do not have their default.")
@json_option
def settings(database: str | None, schema: str | None, changed: bool, as_json: bool) -> None:
    """Show the settings and where each comes from.

    They are those of a command that is started here. Secrets are shown as "set" or "not set". Opens no database.
    """
    found = describe_settings(load_settings(database=database, schema=schema))
    rows = [(one.name, one.value, one.default, one.origin) for one in found if not changed or one.origin != "default"]
    show_rows(("name", "value", "default", "origin"), rows, as_json=as_json)
