"""How a benchmark is started: which databases, how much of the work, and a server of its own for PostgreSQL.

`BENCH_POSTGRES=dsn` names another server, such as Debian's with its JIT; the role may create databases.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench.bars import Bar, report
from tests.support.postgres import server_dsn, stop_server

SERVER = "-c fsync=on -c shared_buffers=1GB -c max_wal_size=4GB -c max_connections=100"
ROUNDS = 3


def run(
    about: str | None,
    of_sqlite: Callable[[int, int], list[Bar]] | None,
    of_postgres: Callable[[str, int, int, int], list[Bar]],
) -> None:
    """Measure on both databases, and report the bars: `(number, rounds)` and `(dsn, number, rounds, scale)`."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument("--only", choices=("sqlite", "postgres"), help="one database")
    options = parser.parse_args()
    scale = 10 if options.quick else 1
    number = 100_000 // scale
    bars: list[Bar] = []
    if options.only != "postgres" and of_sqlite is not None:
        bars += of_sqlite(number, ROUNDS)
    if options.only != "sqlite" and (given := os.environ.get("BENCH_POSTGRES")):
        bars += of_postgres(given, number, ROUNDS, scale)
    elif options.only != "sqlite":
        home = Path(tempfile.mkdtemp(prefix="todoku-bench-", dir="/tmp"))
        try:
            bars += of_postgres(server_dsn(home, SERVER), number, ROUNDS, scale)
        finally:
            stop_server(home)
    report(bars)
