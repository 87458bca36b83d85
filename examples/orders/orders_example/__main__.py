"""`make example NAME=orders`: the broker, the API and the worker, until Ctrl-C, and what to try."""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from pathlib import Path

import todoku
from orders_example.broker.server import PORT as BROKER_PORT
from orders_example.running import running, start_all
from orders_example.server import PORT
from orders_example.settings import read_settings, whole

WORKER_PORT = 8332


def greeting(url: str, worker: str, database: str) -> str:
    """What to try."""
    shown = database.rpartition("@")[2] if "@" in database else database  # not the password
    order = (
        '{"idempotency_key": "first-order-1", "order_id": "o-1", "instrument": "AAPL", "side": "BUY", "qty": 3,'
        ' "price": 187.5, "requested_at": "2026-11-16T00:00:00Z", "trace_id": "t-1"}'
    )
    return f"""\
orders is running on {url} (database {shown}); the broker writes broker.jsonl

  curl {url}/do/order -H 'Idempotency-Key: first-order-1' \\
       -d '{order}'

The first time it is accepted (201); the same again is answered with its result. In another terminal, in the directory
examples/orders:

  ../../.venv/bin/todoku ledger first-order-1 --scope once:orders --db {shown}
  cat broker.jsonl
  curl {worker}/metrics

Ctrl-C stops all.
"""


def main() -> int:
    """Returns 0 once all have stopped because somebody asked; 1 if one of them ended by itself; 2 wrong usage."""
    asked: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _frame: asked.append(number))
    try:
        settings = read_settings(os.environ)
        port = whole(os.environ, "PORT", PORT)
        broker_port = whole(os.environ, "BROKER_PORT", port + 1 if port != PORT else BROKER_PORT)
        worker_port = whole(os.environ, "TODOKU_PORT", port + 2 if port != PORT else WORKER_PORT)
    except todoku.InvalidSetting as error:
        sys.stderr.write(f"orders: {error}\n")
        return 2
    url, broker, worker = (f"http://127.0.0.1:{number}" for number in (port, broker_port, worker_port))
    environ = {
        "TODOKU_DATABASE": settings.database,
        "PORT": str(port),
        "BROKER_PORT": str(broker_port),
        "TODOKU_PORT": str(worker_port),
        "BROKER_URL": settings.broker_url or broker,
        "BROKER_TOKEN": os.environ.get("BROKER_TOKEN") or secrets.token_hex(16),  # both sides of it are here
    }
    with running(Path.cwd(), environ, logs=False) as processes:
        start_all(processes, url, broker, worker, lambda: not asked)
        if not asked and processes.alive:
            sys.stdout.write(greeting(url, worker, settings.database))
            sys.stdout.flush()
        while not asked and processes.alive:
            time.sleep(0.1)
        codes = {*processes.close()}
    return 0 if asked and codes <= {0, -signal.SIGTERM, -signal.SIGINT} else 1


if __name__ == "__main__":
    sys.exit(main())
