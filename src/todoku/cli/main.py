"""`todoku`: commands, each a few lines over the App. Exit 0 done, 1 found a problem or nothing, 2 wrong usage."""

from __future__ import annotations

import sys

import click

from todoku.cli import batches, database, deliveries, messages, operations, queues, run, schedules
from todoku.cli.encryption_keys import encryption_keys
from todoku.cli.failed_events import dlq_rerun, dlq_sync
from todoku.cli.output import say
from todoku.cli.run import dev
from todoku.cli.signing_keys import signing_keys
from todoku.cli.spool import spool_forward
from todoku.cli.tokens import tokens
from todoku.core.errors import TodokuError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="todoku", prog_name="todoku")
def cli() -> None:
    """Makes messages arrive: jobs, outbox events and webhooks, in the database you already have."""


for module in (run, database, deliveries, messages, operations, queues, schedules, batches):
    found = [command for command in vars(module).values() if isinstance(command, click.Command)]
    grouped = [command for group in found if isinstance(group, click.Group) for command in group.commands.values()]
    for command in found:
        if command not in grouped:  # `todoku schedule run` is not `todoku run`
            cli.add_command(command)
cli.add_command(encryption_keys)
cli.add_command(signing_keys)
cli.add_command(tokens)
for command in (dlq_sync, dlq_rerun, spool_forward):
    cli.add_command(command)
cli.add_command(dev)


def main() -> None:
    """The program: errors of todoku are one line, without a traceback."""
    try:
        cli(prog_name="todoku")
    except TodokuError as error:
        say(f"todoku: {error}", err=True)
        sys.exit(1)
