"""`todoku dev`: thin words over the daemon of that name."""

from __future__ import annotations

import sys
from typing import Any

import click

from todoku.cli.options import database_option
from todoku.cli.output import say
from todoku.daemon.dev import Dev
from todoku.daemon.dev import dev as dev_daemon
from todoku.daemon.start import Wanted


@click.command()
@database_option
@click.option("--app", metavar="MODULE:ATTR", help="The App to run as well (TODOKU_APP, or [tool.todoku] app).")
@click.option("--host", help="127.0.0.1; only an address of this machine alone is taken.")
@click.option("--port", type=click.IntRange(0, 65_535), help="8080, where QSTASH_DEV=1 looks; 0: any free one.")
@click.option(
    "--receiver-port", type=click.IntRange(0, 65_535), help="Of the scripted receiver; default: the next one."
)
@click.option(
    "--rewrite",
    multiple=True,
    metavar="ORIGIN=ORIGIN",
    help="https://host=http://127.0.0.1:3000: send there what is for the host. May be repeated.",
)
@click.option("--log", type=click.Choice(["auto", "json", "text"]), default="auto", show_default=True,
              help="How to log; auto: text on a terminal, else JSON.")  # fmt: skip
def dev(receiver_port: int | None, rewrite: tuple[str, ...], **given: Any) -> None:
    """A QStash of your own on this machine: public credentials, a receiver to send to, a line for each delivery."""
    sys.exit(dev_daemon(Wanted(**given), Dev(rewrite=rewrite, receiver_port=receiver_port), say))
