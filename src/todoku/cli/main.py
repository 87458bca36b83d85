"""`todoku`: the command line. Exit 0: done. 1: a problem, or nothing matched. 2: wrong usage."""

from __future__ import annotations

import sys
from typing import Final

import click

from todoku.cli.batches import batch, hooks
from todoku.cli.captures import capture
from todoku.cli.database import copy_command, doctor, migrate, verify
from todoku.cli.debezium import debezium_config
from todoku.cli.deliveries import explain, ledger, list_, reasons, search, stats, tail
from todoku.cli.edit import edit
from todoku.cli.encryption_keys import encryption_keys
from todoku.cli.failed_events import dlq_rerun, dlq_sync
from todoku.cli.flows import flow
from todoku.cli.messages import enqueue, publish, show
from todoku.cli.operations import cancel, clear, replay, settle
from todoku.cli.output import say
from todoku.cli.projections import projection
from todoku.cli.queues import limit, limits, pause, release_expired, resume
from todoku.cli.run import dev, run, status, up
from todoku.cli.schedules import schedule, schedules
from todoku.cli.settings import settings
from todoku.cli.signing_keys import signing_keys
from todoku.cli.spool import spool_forward
from todoku.cli.tokens import tokens
from todoku.cli.users import users
from todoku.cli.workers import workers
from todoku.core.errors import TodokuError

SECTIONS: Final = {
    "Look; nothing is changed": (
        *(status, stats, list_, search, show, explain, tail, reasons, workers),
        *(schedules, limits, batch, hooks, ledger, settings, doctor, verify),
    ),
    "Act; what you change is audited, with your name and reason": (
        *(publish, enqueue, replay, edit, cancel, settle, clear),
        *(limit, pause, resume, release_expired, schedule, flow, projection, capture),
        *(dlq_sync, dlq_rerun, spool_forward),
    ),
    "Run": (up, run, dev),
    "Set up": (migrate, copy_command, tokens, users, signing_keys, encryption_keys, debezium_config),
}
"""Every command, in the order of `todoku --help`."""


class Program(click.Group):
    """The program, whose help has its commands in sections."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's form
        """Writes the sections, each command with the first sentence of its help."""
        widest = max(len(name) for name in self.commands)
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                rows = [(f"{one.name or '':<{widest}}", one.get_short_help_str(limit=120)) for one in commands]
                formatter.write_dl(rows)


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="todoku", prog_name="todoku")
def cli() -> None:
    """Makes messages arrive: jobs, outbox events and webhooks, in the database you already have.

    `todoku COMMAND --help` says more about a command.
    """


for command in (one for commands in SECTIONS.values() for one in commands):
    cli.add_command(command)


def main() -> None:
    """Runs the program. Prints a todoku error as one line, without a traceback."""
    try:
        cli(prog_name="todoku")
    except TodokuError as error:
        say(f"todoku: {error}", err=True)
        sys.exit(1)
