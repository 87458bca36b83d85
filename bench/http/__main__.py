"""`make bench-http`: ingest and delivery, on both databases.

Ingest is measured twice: beside the framework's empty endpoint, and beside the endpoint that a user would write.
`--quick`: a few seconds each; `--only`: one database; `--part`: one of the three; `--serve-workers`: on PostgreSQL,
how many processes of the daemon serve the ingest part, and beside a daemon with one the second part.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from bench.bars import Bar, report
from bench.http import beside, delivery, ingest
from bench.peers.peer import NotInstalled
from bench.running import ROUNDS, SERVER
from tests.support.postgres import fresh_database, server_dsn, stop_server


def main() -> None:
    """Measure, and report the bars."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the work")
    parser.add_argument("--only", choices=("sqlite", "postgres"), help="one database")
    parser.add_argument("--part", choices=("ingest", "beside", "delivery"), help="one of the three")
    parser.add_argument("--serve-workers", type=int, default=1, metavar="N", help="processes that serve HTTP")
    options = parser.parse_args()
    parts = [part for part in (ingest, beside, delivery) if options.part in (None, part.__name__.rpartition(".")[2])]
    work = (
        {"seconds": 3.0, "number": 4_000, "rounds": 1}
        if options.quick
        else {"seconds": 20.0, "number": 20_000, "rounds": ROUNDS}
    )
    work["serve_workers"] = options.serve_workers
    bars: list[Bar] = []
    if options.only != "postgres":
        for part in parts:
            bars += measured(part, "", "sqlite", work)
    if options.only != "sqlite":
        home = Path(tempfile.mkdtemp(prefix="todoku-bench-", dir="/tmp"))
        try:
            with fresh_database(server_dsn(home, SERVER)) as url:
                for part in parts:
                    bars += measured(part, url, "postgres", work)
        finally:
            stop_server(home)
    report(bars)


def measured(part: ModuleType, url: str, name: str, work: dict[str, Any]) -> list[Bar]:
    """The bars of one part on one database; none if what it is compared with cannot be had."""
    try:
        found: list[Bar] = part.bars(url, name, **work)
    except NotInstalled as reason:
        print(f"  {name}: passed over: {reason}", flush=True)
        return []
    return found


if __name__ == "__main__":
    main()
