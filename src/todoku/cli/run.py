"""`todoku up`, `todoku run` and `todoku dev` start the daemon; `todoku status` says where it is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from todoku.cli.options import database_option, json_option, open_app
from todoku.cli.output import print_document, print_json, say, wrap_labelled
from todoku.core.control_characters import escape_controls
from todoku.daemon.banner import Banner, banner, find_daemon, read_facts
from todoku.daemon.dev import DevOptions
from todoku.daemon.dev import dev as dev_daemon
from todoku.daemon.reload import up_reloading
from todoku.daemon.single_pass import run_single_pass
from todoku.daemon.start import DaemonOptions, sqlite_file
from todoku.daemon.start import run as run_daemon
from todoku.daemon.start import up as up_daemon


@click.command()
@database_option
@click.option("--app", metavar="MODULE:ATTR", help="App to run as well (TODOKU_APP, or [tool.todoku] app).")
@click.option("--host", help="Loopback address to listen on (default: 127.0.0.1).")
@click.option(
    "--port", type=click.IntRange(0, 65_535), help="Port (default: 8080, which QSTASH_DEV=1 uses); 0: any free port."
)
@click.option(
    "--receiver-port", type=click.IntRange(0, 65_535), help="Port of the test receiver (default: the next port)."
)
@click.option(
    "--rewrite",
    multiple=True,
    metavar="ORIGIN=ORIGIN",
    help="Send requests for one origin to another: https://host=http://127.0.0.1:3000. Repeatable.",
)
@click.option("--log", type=click.Choice(["auto", "json", "text"]), default="auto", show_default=True,
              help="Log format; auto: text on a terminal, else JSON.")  # fmt: skip
def dev(receiver_port: int | None, rewrite: tuple[str, ...], **given: Any) -> None:
    """Run a local QStash for development.

    It has public credentials and a test receiver, and prints one line per delivery.
    """
    sys.exit(dev_daemon(DaemonOptions(**given), DevOptions(rewrite=rewrite, receiver_port=receiver_port), say))


F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--db", "database", metavar="URL", help="Database URL (TODOKU_DATABASE)."),
    click.option("--schema", help="PostgreSQL schema (TODOKU_SCHEMA)."),
    click.option("--app", metavar="MODULE:ATTR", help="App to run (TODOKU_APP, or [tool.todoku] app)."),
    click.option("--host", help="HTTP address (TODOKU_HOST; default: 127.0.0.1)."),
    click.option("--port", type=click.IntRange(0, 65_535),
                 help="HTTP port (TODOKU_PORT; default: 8320); 0: any free port."),
    click.option("--workers", type=click.IntRange(1), metavar="N",
                 help="Number of worker processes (TODOKU_PROCESSES)."),
    click.option("--serve-workers", type=click.IntRange(1), metavar="N",
                 help="Number of processes that serve HTTP (TODOKU_SERVE_WORKERS; default: 1)."),
    click.option("--open", "is_open", is_flag=True,
                 help="Serve the dashboard without sign-in, to this machine only."),
    click.option("--log", type=click.Choice(["auto", "json", "text"]), default="auto", show_default=True,
                 help="Log format; auto: text on a terminal, else JSON."),
)  # fmt: skip


def daemon_options(command: F) -> F:
    """Adds the options that `up` and `run` share."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command()
@daemon_options
@click.option("--demo", is_flag=True, help="Run the demonstration, also if the database is not new.")
@click.option("--reload", is_flag=True, help="For development: start again when Python files of the App change.")
def up(demo: bool, reload: bool, **given: Any) -> None:
    """Migrate, run workers and serve HTTP, all in one.

    Without an App and a database it creates a SQLite file, and runs a small demonstration.
    """
    options = DaemonOptions(**given)
    if reload and demo:
        raise click.UsageError("--reload watches the files of your App, and --demo runs another: give one of them.")
    sys.exit(up_reloading(options) if reload else up_daemon(options, print_banner, demo=demo))


@click.command()
@database_option
@json_option
def status(database: str | None, schema: str | None, as_json: bool) -> None:
    """Say where todoku runs, how it is, and what to try.

    The same lines as `todoku up` prints when it starts.
    """
    with open_app(database, schema) as box:
        facts = read_facts(box, find_daemon(box, sqlite_file(box.settings.database)))
    if as_json:
        dead = None if facts.dead is None else facts.dead.id
        print_json({
            "address": facts.address, "database": facts.database, "detail": facts.detail, "workers": facts.workers,
            "serve_workers": facts.serving, **facts.counts, "exact": facts.exact, "dead_letter": dead,
        })  # fmt: skip
    else:
        print_banner(banner(facts, database=database, schema=schema))


def print_banner(shown: Banner, more: Sequence[str] = ()) -> None:
    """Prints a banner and more lines in one piece, so that lines of the log do not come in between."""
    lines = [wrap_labelled(f"  {label}", text, indent=15) for label, text in shown.lines]
    print_document("\n".join([wrap_labelled("", shown.title, indent=0), *lines, *map(escape_controls, more), ""]))


@click.command()
@daemon_options
@click.option("--no-http", is_flag=True, help="Do not serve HTTP.")
@click.option("--once", is_flag=True, help="Run what is due now in this process, print the results, exit.")
@click.option(
    "--batch", type=click.IntRange(1), default=20, show_default=True, help="With --once: run at most this many."
)
@click.option("--json", "as_json", is_flag=True, help="With --once: print one JSON object.")
def run(no_http: bool, once: bool, batch: int, as_json: bool, **given: Any) -> None:
    """Run the workers of an App until stopped.

    SIGTERM or Ctrl-C lets running attempts finish; a second one exits at once.
    """
    options = DaemonOptions(**given, http=not no_http)
    if no_http and options.serve_workers is not None:
        raise click.UsageError("--serve-workers is for HTTP, and --no-http serves none: give one of them.")
    if not once:
        sys.exit(run_daemon(options))
    done = run_single_pass(options, batch)
    if as_json:
        print_json(done.as_dict())
    else:
        say(*done.as_lines())
