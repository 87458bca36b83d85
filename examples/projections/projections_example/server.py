"""`python -m projections_example.server`: the API, on PORT."""

from __future__ import annotations

import logging
import os
import sys

import uvicorn

import todoku
from projections_example.api import make_api
from projections_example.application import opened
from projections_example.settings import PORT, read_port, read_settings

GRACE = 10
"""Seconds that requests in progress have after SIGTERM: a client that sends half a body must not keep it alive."""


def main() -> int:
    """Serves until SIGINT or SIGTERM; requests that have begun are answered, for GRACE seconds."""
    logging.getLogger("todoku").setLevel(logging.WARNING)
    try:
        settings, port = read_settings(os.environ), read_port(os.environ, "PORT", PORT)
        with opened(settings) as application:
            host = os.environ.get("HOST", "127.0.0.1")
            uvicorn.run(
                make_api(application),
                host=host,
                port=port,
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=GRACE,
            )
    except todoku.TodokuError as error:
        sys.stderr.write(f"server: {error}\n")
        return 2 if isinstance(error, todoku.InvalidSetting) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
