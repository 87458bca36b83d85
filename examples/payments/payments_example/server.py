"""`python -m payments_example.server`: the API, and in MODE=embedded the ingest. The work is `todoku run`'s."""

from __future__ import annotations

import os
import signal
import sys

import uvicorn

import todoku
from payments_example.api import make_api
from payments_example.application import Payments
from payments_example.settings import read_settings
from payments_example.watching import counted, log, watch


def main() -> int:
    """Serves until SIGINT or SIGTERM; requests that have begun are answered."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(0))
    try:
        log()
        watch(os.environ)
        settings = read_settings(os.environ)
        payments = Payments(settings)
        payments.prepare()
        with payments.queue() as queue, counted(payments.box, settings.daemon_url):
            api = make_api(payments, queue)
            uvicorn.run(api, host=settings.host, port=settings.port, log_config=None, access_log=False)
        payments.close()
    except todoku.TodokuError as error:
        sys.stderr.write(f"payments: {error}\n")
        return 2 if isinstance(error, todoku.InvalidSetting) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
