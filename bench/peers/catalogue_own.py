"""todoku itself, as peers are: the same programs, the same counting."""

from __future__ import annotations

from bench.peers.peer import USUAL, Own, Peer, Row, Server

UNFINISHED = "select count(*) from todoku_delivery where next_run_at < now() + interval '1 hour'"
UNFINISHED_SQLITE = "select count(*) from todoku_delivery"
HISTORY = "select count(*) from todoku_history"
MORE = frozenset({Row.CALLER, Row.SNAPSHOT, Row.FUTURE, Row.LANES})

PEERS: tuple[Peer, ...] = (
    Peer(
        name="todoku",
        title="todoku",
        server=Server.POSTGRES,
        install=Own(),
        quick=True,
        program="todoku_program.py",
        settings="box.drain (drains), box.worker().run() (others), concurrency 64, or the row's slots; history kept; "
        "publishers without a transaction of the caller share commits, each waits for its own; a caller's transaction "
        "is asyncpg's, on uvloop; "
        "for the kill: lease_sec 2, reclaim_interval_sec 0.5",
        unfinished=UNFINISHED,
        history=HISTORY,
        rows=USUAL | MORE,
    ),
    Peer(
        name="todoku-daemon",
        title="todoku run",
        server=Server.POSTGRES,
        install=Own(),
        quick=True,
        program="todoku_program.py",
        settings="the daemon with two worker processes, logs on, concurrency 64; for the kill: one of its workers",
        unfinished=UNFINISHED,
        history=HISTORY,
        rows=frozenset({Row.DAEMON, Row.KILL}),
        environ={"BENCH_DAEMON": "1", "BENCH_PROCESSES": "2"},
        recovers_itself=True,
        processes=1,
    ),
    Peer(
        name="todoku-sqlite",
        title="todoku, SQLite FULL",
        server=Server.SQLITE,
        install=Own(),
        quick=True,
        program="todoku_program.py",
        settings="box.drain, concurrency 64, synchronous=FULL (its default); history kept",
        unfinished=UNFINISHED_SQLITE,
        history=HISTORY,
        rows=frozenset({Row.SQLITE}),
        processes=1,
    ),
)
