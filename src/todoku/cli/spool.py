"""Forwarding a spool whose program does not run any more: spool-forward."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from todoku.cli.options import duration, json_option
from todoku.cli.output import print_json, say
from todoku.client.connection import spool_of


@click.command("spool-forward")
@click.argument("spool", type=click.Path(exists=True, dir_okay=False), metavar="FILE")
@click.option("--queue-url", "url", metavar="URL", help="The queue it was spooled for (QSTASH_URL).")
@click.option("--token", envvar="QSTASH_TOKEN", help="Its token (QSTASH_TOKEN).")
@click.option("--for", "lasts", type=duration, default="60s", show_default=True, help="Give up after so long.")
@json_option
def spool_forward(*, spool: str, url: str | None, token: str | None, lasts: float, as_json: bool) -> None:
    """Forward what a program spooled while its queue was away. Exit 1 if something is left.

    The program itself does this whenever it runs; this is for a spool that was left behind.
    """
    kept = spool_of(url, token, str(Path(spool).resolve()))
    try:
        before, deadline = kept.number(), time.monotonic() + lasts
        while (left := kept.number()) and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        kept.close()
    if as_json:
        print_json({"forwarded": before - left, "left": left})
    else:
        say(f"forwarded {before - left}, {left} left")
    if left:
        sys.exit(1)
