"""HTTP in figures, for `python -m bench.http` and `make bench`: each contender's rate, latency and processor time.

`ingest_rates`: `POST /ingest/stripe` of a daemon in turns with the hand-written endpoint. `delivery_rates`: a worker in
turns with a bare aiohttp client. Both return one `Figure` a contender, todoku first, and print each round.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.http import delivery, handwritten, ingest
from bench.http.costs import family_seconds, server_process
from bench.peers.peer import NotInstalled
from todoku.store.sqlite.writer import wal_is_safe

CONNECTIONS = 64
TODOKU = "todoku"
WITH_WAL = "todoku with a write-ahead log"
"""As the hand-written endpoints have it. Where this SQLite can lose writes in that mode, it is not todoku's default."""
BARE = "a bare aiohttp client"
POSTGRES_WAYS = ("asyncpg",)
SQLITE_WAYS = ("sqlite3", "aiosqlite")


@dataclass(slots=True)
class Figure:
    """A contender's rounds. Processor time is in microseconds a request."""

    name: str
    rates: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    """Seconds; of all rounds together."""
    process_us: list[float] = field(default_factory=list)
    """In the process that serves, and in those it has started: of todoku also the worker beside it."""
    server_us: list[float] = field(default_factory=list)
    """In PostgreSQL."""

    @property
    def rate(self) -> float:
        """The median a second."""
        return statistics.median(self.rates)

    def percentile(self, share: float) -> float:
        """Milliseconds within which this share was answered."""
        ordered = sorted(self.latencies)
        return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def __str__(self) -> str:
        spread = f"{self.rate:,.0f}/s ({min(self.rates):,.0f} to {max(self.rates):,.0f})"
        if not self.process_us:
            return f"{self.name}: {spread}"
        process, server = statistics.median(self.process_us), statistics.median(self.server_us)
        return (
            f"{self.name}: {spread}, p50 {self.percentile(0.5):.1f} ms, p99 {self.percentile(0.99):.1f} ms, "
            f"{process:.0f} µs a request in its processes, {server:.0f} µs in the server"
        )


def ingest_rates(
    url: str,
    *,
    number: int,
    rounds: int,
    connections: int = CONNECTIONS,
    serve_workers: int = 1,
    show: Callable[[str], None] = print,
) -> list[Figure]:
    """Ingest beside the hand-written endpoint, on a PostgreSQL database, or on SQLite files if `url` is empty.

    Without the packages of the endpoint, `show` is given the reason, and todoku is measured alone. On PostgreSQL a
    daemon with `serve_workers` serving processes takes turns with the others.
    """
    with ExitStack() as stack:
        daemon = stack.enter_context(ingest.serving(url))
        contenders = {TODOKU: (daemon.port, daemon.process.pid)}
        if not url and not wal_is_safe():
            daemon = stack.enter_context(ingest.serving(url, TODOKU_SQLITE_WAL="1"))
            contenders[WITH_WAL] = (daemon.port, daemon.process.pid)
        if url and serve_workers > 1:
            daemon = stack.enter_context(ingest.serving(url, serve_workers))
            contenders[f"{TODOKU} in {serve_workers} processes"] = (daemon.port, daemon.process.pid)
        for way in POSTGRES_WAYS if url else SQLITE_WAYS:
            try:
                database = url or f"{stack.enter_context(tempfile.TemporaryDirectory(dir='/tmp'))}/events.db"
                contenders[f"FastAPI and {way}"] = stack.enter_context(handwritten.serving(way, database))
            except NotInstalled as reason:
                show(f"  FastAPI and {way} is left out: {reason}")
        server = server_process(url) if url else None
        figures = [Figure(name) for name in contenders]
        run = time.time_ns()  # events of an earlier call, or of another contender, would be repetitions
        for place, figure in enumerate(figures):
            warm = ingest.requests(min(number, 500), "kept", f"{run}_warm_{place}")
            _measure(Figure("warm"), contenders[figure.name], server, warm, connections)
        for turn in range(rounds):
            for place, figure in enumerate(figures):
                wanted = ingest.requests(number, "kept", f"{run}_{turn}_{place}")
                _measure(figure, contenders[figure.name], server, wanted, connections)
                show(f"  ingest, round {turn + 1} of {rounds}: {figure.name} {figure.rates[-1]:,.0f}/s")
    return figures


def _measure(
    figure: Figure, contender: tuple[int, int], server: int | None, wanted: list[bytes], connections: int
) -> None:
    (port, pid), number = contender, len(wanted)
    before, before_server = family_seconds(pid), family_seconds(server) if server else 0.0
    result = ingest.sent(port, wanted, connections=connections)
    figure.rates.append(result.rate)
    figure.latencies += result.latencies
    figure.process_us.append(1e6 * (family_seconds(pid) - before) / number)
    figure.server_us.append(1e6 * ((family_seconds(server) if server else 0.0) - before_server) / number)


def delivery_rates(url: str, *, number: int, rounds: int, show: Callable[[str], None] = print) -> list[Figure]:
    """Requests of a worker beside those of a bare client, on a PostgreSQL database, or on SQLite if `url` is empty."""
    figures = [Figure(TODOKU), Figure(BARE)]
    with delivery.receiving() as receiver, delivery.settings(), tempfile.TemporaryDirectory(dir="/tmp") as folder:
        urls = delivery.spread(receiver, number)
        for turn in range(rounds):
            database = url or f"sqlite:///{Path(folder) / str(turn)}.db"
            figures[0].rates.append(delivery.through(database, receiver, urls))
            figures[1].rates.append(delivery.bare(receiver, urls))
            for figure in figures:
                show(f"  delivery, round {turn + 1} of {rounds}: {figure.name} {figure.rates[-1]:,.0f}/s")
    return figures
