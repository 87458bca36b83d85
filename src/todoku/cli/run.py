"""`todoku up`, `todoku run` and `todoku dev`: options for the daemon."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from todoku.cli.options import database_option
from todoku.cli.output import print_json, say
from todoku.daemon.dev import Dev
from todoku.daemon.dev import dev as dev_daemon
from todoku.daemon.single_pass import one_pass
from todoku.daemon.start import DaemonOptions
from todoku.daemon.start import run as run_daemon
from todoku.daemon.start import up as up_daemon


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
    sys.exit(dev_daemon(DaemonOptions(**given), Dev(rewrite=rewrite, receiver_port=receiver_port), say))


F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--db", "database", metavar="URL", help="Database URL (TODOKU_DATABASE)."),
    click.option("--schema", help="PostgreSQL schema (TODOKU_SCHEMA)."),
    click.option("--app", metavar="MODULE:ATTR", help="The App to run (TODOKU_APP, or [tool.todoku] app)."),
    click.option("--host", help="Where to serve HTTP (TODOKU_HOST, 127.0.0.1)."),
    click.option("--port", type=click.IntRange(0, 65_535), help="On which port (TODOKU_PORT, 8320); 0: any free one."),
    click.option("--workers", type=click.IntRange(1), metavar="N", help="Worker processes (TODOKU_PROCESSES)."),
    click.option("--log", type=click.Choice(["auto", "json", "text"]), default="auto", show_default=True,
                 help="How to log; auto: text on a terminal, else JSON."),
)  # fmt: skip


def daemon_options(command: F) -> F:
    """The options that `up` and `run` share."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command()
@daemon_options
def up(**given: Any) -> None:
    """Everything by one command: migrate, work, serve HTTP. Without an app, a small demonstration."""
    sys.exit(up_daemon(DaemonOptions(**given), say))


@click.command()
@daemon_options
@click.option("--no-http", is_flag=True, help="Serve nothing.")
@click.option("--once", is_flag=True, help="One pass in this process: take what is due, execute it, say so, exit.")
@click.option("--batch", type=click.IntRange(1), default=20, show_default=True, help="With --once: at most so many.")
@click.option("--json", "as_json", is_flag=True, help="With --once: one JSON object.")
def run(no_http: bool, once: bool, batch: int, as_json: bool, **given: Any) -> None:
    """Run an app's handlers until stopped (SIGTERM drains, a second one exits now)."""
    wanted = DaemonOptions(**given, http=not no_http)
    if not once:
        sys.exit(run_daemon(wanted))
    done = one_pass(wanted, batch)
    if as_json:
        print_json(done.as_dict())
    else:
        say(*done.as_lines())
