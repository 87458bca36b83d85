"""The bare loops: what the same work costs without todoku, by somebody who knows the database well.

They run on the product's own schema, commit as durably, fence by (id, epoch, worker) and write the same history. They
have no ledger, no lanes, no pauses, no retries, no leases. They may not be weakened to make a ratio look better.
"""

from __future__ import annotations

import json
import sqlite3
from typing import Any
from uuid import uuid4

import psycopg

PAYLOAD = '{"order": "' + "x" * 180 + '"}'

PG_PLANS = (
    "set enable_seqscan = off; set enable_bitmapscan = off; set plan_cache_mode = force_generic_plan; set jit = off"
)
"""The index that serves the claim, whatever the statistics of a table that fills and empties say."""

PG_CLAIM = """
with due as materialized (
    select ctid as place from todoku_delivery
     where queue = 'bench' and destination = 'bench' and priority = 0 and status in ('pending', 'failed')
       and lane is null and lost = 0 and gate is null and next_run_at <= statement_timestamp()
       and (next_run_at, id) > (%(at)s, %(id)s)
     order by next_run_at, id limit 500 for update skip locked
), taken as (
    update todoku_delivery set status = 'sending', worker_id = %(worker)s, claimed_at = statement_timestamp(),
           updated_at = statement_timestamp(), attempts = attempts + 1, epoch = epoch + 1
     where ctid = any (array(select place from due)) returning id, epoch, message_seq, next_run_at
)
select t.id, t.epoch, t.next_run_at, m.id, m.topic, m.payload::text
  from (select * from taken order by next_run_at, id) t join todoku_message m on m.seq = t.message_seq
 order by t.next_run_at, t.id"""

PG_SETTLE = """
with gone as (
    delete from todoku_delivery
     where id = any (%(ids)s::bigint[]) and worker_id = %(worker)s
       and epoch = (%(epochs)s::bigint[])[width_bucket(id, %(ids)s::bigint[])]
    returning id, epoch, message_seq, destination, queue, attempts, replay_count
)
insert into todoku_history (finished_at, delivery_id, epoch, message_seq, destination, queue, attempts,
                            replay_count, worker_id)
select statement_timestamp(), id, epoch, message_seq, destination, queue, attempts, replay_count, %(worker)s
  from gone returning delivery_id"""

PG_LIST = """
with due as materialized (
    select id, message_seq, next_run_at from todoku_delivery
     where queue = 'bench' and destination = 'bench' and priority = 0 and status in ('pending', 'failed')
       and lane is null and lost = 0 and gate is null and epoch = 0 and next_run_at <= statement_timestamp()
       and (next_run_at, id) > (%(at)s, %(id)s)
       and id not in (select unnest(ids) from todoku_claim_list)
     order by next_run_at, id limit 500 for update skip locked
), listed as materialized (
    select todoku_listed(array(select id from due)) as ids
), list as (
    insert into todoku_claim_list (worker_id, ids, first_id, last_id, claimed_at)
    select %(worker)s, array_agg(id), min(id), max(id), statement_timestamp()
      from due where id <> all ((select ids from listed)::bigint[]) having count(*) > 0 returning id
)
select l.id, d.id, d.next_run_at, m.id, m.topic, m.payload::text
  from list l cross join due d join todoku_message m on m.seq = d.message_seq
 where d.id <> all ((select ids from listed)::bigint[])"""

PG_SETTLE_LIST = """
with owned as materialized (
    delete from todoku_claim_list where id = %(list)s and worker_id = %(worker)s returning id
), gone as (
    delete from todoku_delivery
     where id = any (%(ids)s::bigint[]) and epoch = 0 and worker_id is null and exists (select from owned)
    returning id, epoch, message_seq, destination, queue, attempts, replay_count
)
insert into todoku_history (finished_at, delivery_id, epoch, message_seq, destination, queue, attempts,
                            replay_count, worker_id)
select statement_timestamp(), id, epoch, message_seq, destination, queue, attempts + 1, replay_count, %(worker)s
  from gone returning delivery_id"""

PG_PUBLISH = """
with message as (
    insert into todoku_message (id, topic, type, payload, content_type, created_at)
    select id, 'bench.done', 'bench.done', payload::json, 'application/json', statement_timestamp()
      from unnest(%s::uuid[], %s::text[]) as s(id, payload) returning seq
)
insert into todoku_delivery (message_seq, destination, queue, priority, status, max_attempts, next_run_at, updated_at)
select seq, 'bench', 'bench', 0, 'pending', 6, statement_timestamp(), statement_timestamp() from message"""


_IN_VAIN = 3
"""Claims in a row that find nothing before a loop ends: one may have met only what another loop listed meanwhile."""


def drain_postgres(url: str) -> int:
    """Claim 500 by list, as a worker with a backlog does, and settle them, until nothing is left."""
    worker, done, at, last, in_vain = uuid4(), 0, "-infinity", 0, 0
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(PG_PLANS)
        connection.prepare_threshold = 0  # like the product: planned once, not five times
        while True:
            claim = {"worker": worker, "at": at, "id": last}
            rows = connection.execute(PG_LIST, claim, binary=True).fetchall()
            if not rows:
                in_vain += 1
                if in_vain == _IN_VAIN:
                    return done
                continue
            in_vain = 0
            at, last = max((row[2], row[1]) for row in rows)
            settle = {"list": rows[0][0], "worker": worker, "ids": sorted(row[1] for row in rows)}
            done += len(connection.execute(PG_SETTLE_LIST, settle).fetchall())


def publish_postgres(url: str, number: int, batch: int) -> int:
    """Insert messages and deliveries, so many a statement and commit."""
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(number // batch):
            connection.execute(PG_PUBLISH, ([uuid4() for _ in range(batch)], [PAYLOAD] * batch))
    return number


LITE_DUE = """select id from todoku_delivery
 where queue = 'bench' and destination = 'bench' and priority = 0 and status in ('pending', 'failed')
   and lane is null and lost = 0 and gate is null and next_run_at <= :now and next_run_at >= :at
   and (next_run_at > :at or id > :id)
 order by next_run_at, id limit 500"""
LITE_ROWS = f"""select d.id, d.epoch + 1, d.next_run_at, m.id, m.topic, m.payload
  from todoku_delivery d join todoku_message m on m.seq = d.message_seq where d.id in ({LITE_DUE})
 order by d.next_run_at, d.id"""
LITE_TAKE = """update todoku_delivery set status = 'sending', worker_id = :worker, claimed_at = :now,
       updated_at = :now, attempts = attempts + 1, epoch = epoch + 1
 where id in (select value from json_each(:ids))"""
LITE_HISTORY = """insert into todoku_history (finished_at, delivery_id, epoch, message_seq, destination, queue,
                            attempts, replay_count, worker_id)
select :now, d.id, d.epoch, d.message_seq, d.destination, d.queue, d.attempts, d.replay_count, :worker
  from json_each(:tokens) s cross join todoku_delivery d
    on d.id = cast(s.key as integer) and d.epoch = s.value and d.worker_id = :worker"""
LITE_GONE = """delete from todoku_delivery where id in (
    select d.id from json_each(:tokens) s cross join todoku_delivery d
        on d.id = cast(s.key as integer) and d.epoch = s.value and d.worker_id = :worker)"""


def drain_sqlite(path: str, now: int) -> int:
    """Claim 500 and settle them, each in BEGIN IMMEDIATE, until nothing is left."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("pragma synchronous = full")
    bound: dict[str, Any] = {"worker": str(uuid4()), "now": now, "at": 0, "id": 0}
    done = 0
    while True:
        connection.execute("begin immediate")
        rows = connection.execute(LITE_ROWS, bound).fetchall()
        connection.execute(LITE_TAKE, {**bound, "ids": json.dumps([row[0] for row in rows])})
        connection.execute("commit")
        if not rows:
            connection.close()
            return done
        bound |= {"id": rows[-1][0], "at": rows[-1][2], "tokens": json.dumps({row[0]: row[1] for row in rows})}
        connection.execute("begin immediate")
        connection.execute(LITE_HISTORY, bound)
        done += connection.execute(LITE_GONE, bound).rowcount
        connection.execute("commit")


def publish_sqlite(path: str, number: int, batch: int, now: int) -> int:
    """Insert messages and deliveries with executemany, so many a commit."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("pragma synchronous = full")
    for _ in range(number // batch):
        ids = [str(uuid4()) for _ in range(batch)]
        connection.execute("begin immediate")
        connection.executemany(
            "insert into todoku_message (id, topic, type, payload, content_type, created_at)"
            " values (?, 'bench.done', 'bench.done', ?, 'application/json', ?)",
            [(id, PAYLOAD, now) for id in ids],
        )
        connection.executemany(
            "insert into todoku_delivery (message_seq, destination, queue, priority, status, max_attempts,"
            " next_run_at, updated_at)"
            " select seq, 'bench', 'bench', 0, 'pending', 6, ?, ? from todoku_message where id = ?",
            [(now, now, id) for id in ids],
        )
        connection.execute("commit")
    connection.close()
    return number
