"""`todoku spool-forward`: forwards the spool of a program that no longer runs."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from todoku.cli.options import duration, json_option
from todoku.cli.output import print_json, say
from todoku.client.connection import open_spool


@click.command("spool-forward")
@click.argument("spool", type=click.Path(exists=True, dir_okay=False), metavar="FILE")
@click.option("--queue-url", "url", metavar="URL", help="Queue the messages are for (QSTASH_URL).")
@click.option("--token", envvar="QSTASH_TOKEN", help="Token of the queue (QSTASH_TOKEN).")
@click.option("--for", "seconds", type=duration, default="60s", show_default=True, help="Give up after this time.")
@json_option
def spool_forward(*, spool: str, url: str | None, token: str | None, seconds: float, as_json: bool) -> None:
    """Send the messages in a spool file to their queue.

    A program spools messages while its queue is unavailable, and forwards them by itself while it runs. Use this
    command for the spool of a program that no longer runs. Exits 1 if messages are left.
    """
    messages = open_spool(url, token, str(Path(spool).resolve()))
    try:
        before, deadline = messages.number(), time.monotonic() + seconds
        while (left := messages.number()) and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        messages.close()
    if as_json:
        print_json({"forwarded": before - left, "left": left})
    else:
        say(f"forwarded {before - left}, {left} left")
    if left:
        sys.exit(1)
