"""The Python peers on PostgreSQL. Versions and settings are the best that were found: see each program."""

from __future__ import annotations

from bench.peers.peer import USUAL, Peer, Row, Server, Venv

ALSO_CALLER = USUAL | {Row.CALLER}
PSYCOPG = "psycopg[binary,pool]==3.3.9"

PEERS: tuple[Peer, ...] = (
    Peer(
        name="pgqueuer",
        quick=True,
        title="PgQueuer",
        server=Server.POSTGRES,
        install=Venv(("pgqueuer==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0")),
        program="pgqueuer_program.py",
        settings="batch_size 1000 (default 10), uvloop, durable tables (default); "
        "kill: heartbeat_timeout 2 s, dequeue_timeout 1 s (defaults 30 s)",
        unfinished="select count(*) from pgqueuer where execute_after < now() + interval '1 hour'",
        rows=ALSO_CALLER | {Row.SNAPSHOT, Row.FUTURE},
    ),
    Peer(
        name="procrastinate",
        title="Procrastinate",
        server=Server.POSTGRES,
        install=Venv(("procrastinate==3.10.0", PSYCOPG)),
        program="procrastinate_program.py",
        settings="concurrency 20 (default 1; 50 was no faster), LISTEN/NOTIFY; kill: its defaults (no retry by itself)",
        unfinished="select count(*) from procrastinate_jobs where status in ('todo', 'doing')",
        rows=ALSO_CALLER,
        jobs=2_000,
    ),
    Peer(
        name="oban",
        title="Oban for Python",
        server=Server.POSTGRES,
        install=Venv(("oban==0.7.0", "uvloop==0.23.0"), python=(3, 12)),
        program="oban_program.py",
        settings="limit 200, uvloop; kill: lifeline interval 1 s, refresher max_age 2 s (defaults 60 s)",
        unfinished="select count(*) from oban_jobs where state in ('available', 'executing', 'retryable')",
        rows=ALSO_CALLER,
        jobs=8_000,
    ),
    Peer(
        name="awa",
        title="awa",
        server=Server.POSTGRES,
        install=Venv(("awa-pg==0.6.9",)),
        program="awa_program.py",
        settings="500 workers a process, polls every 10 ms, enqueue_many_copy; "
        "kill: heartbeat 0.5 s, stale after 2 s, rescue every 0.5 s",
        unfinished="select count(*) from awa.jobs where state not in ('completed', 'failed', 'cancelled')",
        rows=ALSO_CALLER,
        jobs=20_000,
        starts_on_go=True,
    ),
    Peer(
        name="dbos",
        title="DBOS",
        server=Server.POSTGRES,
        install=Venv(("dbos==3.3.0", "psycopg[binary]==3.3.9")),
        program="dbos_program.py",
        settings="polls every 10 ms (default 1 s), worker_concurrency 100; bulk: 500 statements a transaction",
        unfinished="select count(*) from dbos.workflow_status where status in ('ENQUEUED', 'PENDING')",
        rows=ALSO_CALLER,
        jobs=2_000,
        starts_on_go=True,
    ),
    Peer(
        name="absurd",
        title="Absurd",
        server=Server.POSTGRES,
        install=Venv(("absurd-sdk==0.5.1", "absurdctl==0.5.1", "psycopg[binary]==3.3.9")),
        program="absurd_program.py",
        settings="4 workers a process (each has one connection), batches of 50, polls every 10 ms (default 250); "
        "bulk: 1,000 statements a transaction; kill: claim_timeout 2 s (default 120)",
        unfinished="select count(*) from absurd.t_bench where state not in ('completed', 'failed', 'cancelled')",
        rows=ALSO_CALLER,
        jobs=3_000,
    ),
)
