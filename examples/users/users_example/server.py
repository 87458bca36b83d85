"""`python -m users_example.server [database_path]`: the seed's cmd/server."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from collections.abc import Sequence

import uvicorn

import todoku
from users_example.api import make_api
from users_example.application import opened
from users_example.settings import read_settings
from users_example.telling import log_to_stderr

PORT = "8330"


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until SIGINT or SIGTERM; requests that have begun are answered."""
    parser = argparse.ArgumentParser(prog="python -m users_example.server")
    parser.add_argument("database_path", nargs="?")
    given = parser.parse_args(arguments)
    # uvicorn has handlers of its own while it serves, and raises the signal again when it is done.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    log_to_stderr()
    logging.getLogger("todoku").setLevel(logging.WARNING)  # ENQUEUE_FAILED is one of them
    try:
        settings = read_settings(os.environ, given.database_path)
        host, port = os.environ.get("HOST", "127.0.0.1"), os.environ.get("PORT") or PORT
        if not port.isdecimal() or int(port) > 65_535:
            raise todoku.InvalidSetting(f"PORT cannot be {port!r}", hint="0 to 65535")
        with opened(settings) as application:
            uvicorn.run(make_api(application), host=host, port=int(port), log_level="warning", access_log=False)
    except todoku.TodokuError as error:
        sys.stderr.write(f"server: {error}\n")
        return 2 if isinstance(error, todoku.InvalidSetting) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
