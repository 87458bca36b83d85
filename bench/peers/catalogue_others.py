"""The peers on Node, Go, Redis and SQLite. Versions and settings are the best that were found: see each program.

What a Redis that is killed or loses its power still has depends on how it is set: the frame's servers have that beside
their names in RESULTS.md. No Redis peer can enqueue in the caller's transaction on PostgreSQL.
"""

from __future__ import annotations

from types import MappingProxyType

from bench.peers.peer import USUAL, Go, Node, Peer, Row, Server, Venv

ON_POSTGRES = USUAL | {Row.CALLER, Row.SNAPSHOT, Row.FUTURE}
SOON = "< now() + interval '1 hour'"

GRAPHILE = Node(("graphile-worker", "pg"))
RIVER = Go("river")
CELERY = Venv(("celery==5.7.0", "redis==8.1.0", "packaging==26.3"))
DRAMATIQ = Venv(("dramatiq==2.2.1", "redis==8.1.0"))
TASKIQ = Venv(("taskiq==0.13.0", "taskiq-redis==1.2.4", "uvloop==0.23.0"))
HUEY = Venv(("huey==3.5.4", "redis==8.1.0"))

_GRAPHILE_UNFINISHED = f"select count(*) from graphile_worker.jobs where run_at {SOON}"
_GRAPHILE_NEVER = "kill: jobs of a dead worker stay locked for 4 hours, and no setting changes that"
_RIVER_UNFINISHED = f"select count(*) from river_job where finalized_at is null and scheduled_at {SOON}"

_ON_NODE: tuple[Peer, ...] = (
    Peer(
        name="graphile",
        quick=True,
        title="Graphile Worker, fastest",
        server=Server.POSTGRES,
        install=GRAPHILE,
        program="graphile.mjs",
        settings=(
            "concurrentJobs 24, localQueue 500, completeJobBatchDelay and failJobBatchDelay 0, no log; warmed on 2,000 "
            f"jobs in a schema of their own; fill: addJobs by 1,000; {_GRAPHILE_NEVER}"
        ),
        unfinished=_GRAPHILE_UNFINISHED,
        rows=ON_POSTGRES,
        home="node",
        environ=MappingProxyType({"BENCH_SETTING": "fastest"}),
    ),
    Peer(
        name="graphile-default",
        title="Graphile Worker, default",
        server=Server.POSTGRES,
        install=GRAPHILE,
        program="graphile.mjs",
        settings=(
            "no localQueue, no batches, concurrentJobs 10 (its default is 1), no log; warmed as the fastest; "
            f"{_GRAPHILE_NEVER}"
        ),
        unfinished=_GRAPHILE_UNFINISHED,
        rows=frozenset({Row.DRAIN, Row.BULK, Row.LATENCY, Row.HANDLERS, Row.SNAPSHOT, Row.KILL}),
        home="node",
        jobs=6_000,
        bulk_jobs=100_000,
    ),
    Peer(
        name="pgboss",
        title="pg-boss",
        server=Server.POSTGRES,
        install=Node(("pg-boss", "pg")),
        program="pgboss.mjs",
        settings=(
            "batchSize 1000, burstWhenBatchFull, LISTEN/NOTIFY; 10 ms handlers: batches of a quarter of the slots, "
            "four at once; warmed on 2,000 jobs in a queue of their own; fill: insert by 1,000; kill: heartbeatSeconds "
            "10 (its lowest), supervised every second"
        ),
        unfinished=(
            f"select count(*) from pgboss.job where name = 'bench' and state < 'completed' and start_after {SOON}"
        ),
        rows=ON_POSTGRES,
        home="node",
    ),
)

_ON_GO: tuple[Peer, ...] = (
    Peer(
        name="river",
        quick=True,
        title="River, fastest",
        server=Server.POSTGRES,
        install=RIVER,
        program="river",
        settings=(
            "MaxWorkers 2000, FetchCooldown 2 ms, 8 connections; it runs before `go`, which gives it the queue; "
            "fill: InsertManyFast (COPY) by 10,000; kill: the default (it knows a job of a dead process by its age "
            "only: an hour, or RescueStuckJobsAfter, which no job may then exceed)"
        ),
        unfinished=_RIVER_UNFINISHED,
        rows=ON_POSTGRES,
        home="river",
    ),
    Peer(
        name="river-default",
        title="River, default",
        server=Server.POSTGRES,
        install=RIVER,
        program="river",
        settings="MaxWorkers 100, FetchCooldown 100 ms (its default)",
        unfinished=_RIVER_UNFINISHED,
        rows=frozenset({Row.DRAIN, Row.BULK, Row.LATENCY}),
        home="river",
        jobs=6_000,
        bulk_jobs=100_000,
        environ=MappingProxyType({"BENCH_SETTING": "default"}),
    ),
)

_TASKIQ_UNFINISHED = """
local group = redis.call('xinfo', 'groups', 'bench')[1]
local found = {}
for place = 1, #group, 2 do found[group[place]] = group[place + 1] end
return found['pending'] + (found['lag'] or redis.call('xlen', 'bench'))
"""
_HUEY = "one thread a process (as many as slots where handlers take time), no results, no bulk call: fill is a loop"
_HUEY_LOSES = "kill: a job is removed before it runs, and lost with its process"

_ON_REDIS: tuple[Peer, ...] = (
    Peer(
        name="celery",
        title="Celery",
        server=Server.REDIS,
        install=CELERY,
        program="celery_program.py",
        settings=(
            "pool solo (threads where handlers take time), prefetch 64, results ignored, no gossip, mingle or events; "
            "it runs before `go`, which gives it the queue; no bulk call: fill is a loop on one connection; kill: "
            "acks_late, visibility_timeout one hour (its default, which no job may exceed)"
        ),
        unfinished="return redis.call('llen', 'bench') + redis.call('hlen', 'unacked')",
        jobs=2_000,
    ),
    Peer(
        name="dramatiq",
        title="Dramatiq",
        server=Server.REDIS,
        install=DRAMATIQ,
        program="dramatiq_program.py",
        settings=(
            "8 threads a process (as many as slots where handlers take time), prefetch 200, only the middleware for "
            "retries, no results; no bulk call: fill is a loop; kill: heartbeat_timeout 2 s, looked at by every command"
        ),
        unfinished="return redis.call('hlen', 'dramatiq:bench.msgs')",
        jobs=8_000,
        environ=MappingProxyType({"dramatiq_queue_prefetch": "200"}),
    ),
    Peer(
        name="taskiq",
        title="taskiq",
        server=Server.REDIS,
        install=TASKIQ,
        program="taskiq_program.py",
        settings=(
            "a stream (with acknowledgement), 200 tasks at once, prefetch 200, uvloop, no results; no bulk call: fill "
            "sends 50 at once; kill: idle_timeout ten minutes (its default, which no job may exceed)"
        ),
        unfinished=_TASKIQ_UNFINISHED,
        jobs=6_000,
    ),
    Peer(
        name="huey-redis",
        title="Huey on Redis",
        server=Server.REDIS,
        install=HUEY,
        program="huey_program.py",
        settings=f"{_HUEY}; {_HUEY_LOSES}",
        unfinished="return redis.call('llen', 'huey.redis.bench')",
        home="huey",
        jobs=3_000,
    ),
)

_ON_SQLITE: tuple[Peer, ...] = (
    Peer(
        name="huey-sqlite",
        quick=True,
        title="Huey on SQLite",
        server=Server.SQLITE,
        install=HUEY,
        program="huey_program.py",
        settings=f"synchronous=FULL, WAL, asked every 10 ms; {_HUEY}; {_HUEY_LOSES}",
        unfinished="select count(*) from task",
        rows=frozenset({Row.SQLITE}),
        home="huey",
        jobs=10_000,
        processes=1,
    ),
)

PEERS: tuple[Peer, ...] = (*_ON_NODE, *_ON_GO, *_ON_REDIS, *_ON_SQLITE)
