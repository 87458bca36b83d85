"""`todoku`: the command line. Exit 0: done. 1: a problem, or nothing matched. 2: wrong usage."""

from __future__ import annotations

import sys
from typing import Final

import click

from todoku.cli.batches import batch, hooks
from todoku.cli.database import copy_command, doctor, migrate, verify
from todoku.cli.deliveries import explain, ledger, list_, reasons, show, stats, tail, workers
from todoku.cli.encryption_keys import encryption_keys
from todoku.cli.failed_events import dlq_rerun, dlq_sync
from todoku.cli.messages import enqueue, publish
from todoku.cli.operations import cancel, clear, replay, settle
from todoku.cli.output import say
from todoku.cli.queues import limit, limits, pause, release_expired, resume
from todoku.cli.run import dev, run, up
from todoku.cli.schedules import schedule, schedules
from todoku.cli.signing_keys import signing_keys
from todoku.cli.spool import spool_forward
from todoku.cli.tokens import tokens
from todoku.core.errors import TodokuError

COMMANDS: Final = (
    *(up, run, dev),
    *(migrate, copy_command, doctor, verify),
    *(stats, list_, show, explain, tail, reasons, workers, batch, hooks, ledger),
    *(publish, enqueue),
    *(replay, cancel, settle, clear),
    *(limit, limits, pause, resume, release_expired),
    *(schedules, schedule),
    *(tokens, signing_keys, encryption_keys),
    *(dlq_sync, dlq_rerun, spool_forward),
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="todoku", prog_name="todoku")
def cli() -> None:
    """Makes messages arrive: jobs, outbox events and webhooks, in the database you already have."""


for command in COMMANDS:
    cli.add_command(command)


def main() -> None:
    """Runs the program. Prints a todoku error as one line, without a traceback."""
    try:
        cli(prog_name="todoku")
    except TodokuError as error:
        say(f"todoku: {error}", err=True)
        sys.exit(1)
