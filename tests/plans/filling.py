"""100,000 deliveries of every kind, made by the database itself.

| deliveries        | what they are                                                       |
|-------------------|---------------------------------------------------------------------|
| 1 … 75,000        | waiting and due, in 4 queues and 3 priorities; every tenth has a key |
| 75,001 … 80,000   | at 500 gates, half of which are full                                |
| 80,001 … 85,000   | waiting for tomorrow                                                |
| 85,001 … 95,000   | in 1,000 lanes                                                      |
| 95,001 … 96,000   | suspects: an owner died                                             |
| 96,001 … 98,000   | dead letters                                                        |
| 98,001 … 100,000  | owned by a worker that is gone                                      |

Beside them: a row of history for each message (it had a second delivery), 20,000 failed attempts, and the ledger
entries of the keys.
"""

from __future__ import annotations

import sqlite3
from typing import Any

import psycopg

from todoku.store.sqlite.database import file_path

ROWS = 100_000
GONE = "00000000-0000-4000-8000-000000000000"

_MESSAGE = """
insert into todoku_message (id, topic, type, key, payload, content_type, scope, key_hash, digest, created_at)
select {id}, 'order.created', 'order.created', 'k' || (n % 1000), '{{"n": 1}}', 'application/json',
       case when n % 10 = 0 then 'publish:order.created' end, case when n % 10 = 0 then 'hash-' || n end,
       case when n % 10 = 0 then 'digest' end, {now}
  from {numbers} where true
"""
_DELIVERY = """
insert into todoku_delivery (message_seq, destination, queue, lane, gate, priority, status, attempts, max_attempts,
                             lost, worker_id, next_run_at, updated_at)
select {first} + place, 'd' || (n % 4), 'd' || (n % 4), case when n between 85001 and 95000 then n % 1000 + 1 end,
       case when n between 75001 and 80000 then n % 500 + 1 end, n % 3,
       case when n <= 96000 then 'pending' when n <= 98000 then 'aborted' else 'sending' end,
       case when n > 98000 then 1 else 0 end, 6, case when n between 95001 and 96000 then 1 else 0 end,
       case when n > 98000 then {gone} end,
       case when n between 80001 and 85000 then {tomorrow} else {earlier} end, {now}
  from {numbers} where true
"""
_LANE = """
insert into todoku_lane (id, queue, destination, ready_at)
select n % 1000 + 1, 'd' || (n % 4), 'd' || (n % 4), {earlier} from {numbers} where n <= 1000
"""
_GATE = """
insert into todoku_gate (id, queue, destination, key, "limit", running, ready_at)
select n % 500 + 1, 'd' || (n % 4), 'd' || (n % 4), 'k', 2, case when n % 8 < 4 then 2 else 0 end, {earlier}
  from {numbers} where n between 75001 and 75499 or n = 76000
"""
_CALL = """
insert into todoku_gate_call (queue, destination, gate, key)
select 'd' || (n % 4), 'd' || (n % 4), n % 500 + 1, 'k' from {numbers} where n % 1000 = 0
"""
_LEDGER = """
insert into todoku_ledger (scope, key_hash, digest, state, created_at, updated_at)
select {scope}, 'hash-' || n, 'digest', 'accepted', {now}, {now} from {numbers} where n % 10 = 0
"""
_HISTORY = """
insert into todoku_history (finished_at, delivery_id, epoch, message_seq, destination, queue, attempts, replay_count,
                            worker_id)
select {now}, -n, 1, {first} + place, 'd' || (n % 4), 'd' || (n % 4), 1, 0, {gone} from {numbers} where true
"""
_ATTEMPT = """
insert into todoku_attempt (delivery_id, replay, number, epoch, ended_at, reason, worker_id)
select -n, 0, 1, 1, {now}, 'TIMEOUT', {gone} from {numbers} where n <= 20000
"""
_SCRIPT = (
    _MESSAGE,
    _DELIVERY,
    _LANE,
    _GATE,
    _CALL,
    _LEDGER.replace("{scope}", "'publish:order.created'"),
    _LEDGER.replace("{scope}", "'effect:d' || (n % 4)"),
    _HISTORY,
    _ATTEMPT,
)
_POSTGRES = {
    "id": "gen_random_uuid()",
    "now": "todoku_now()",
    "earlier": "todoku_now() - make_interval(secs => 1 + n % 1000)",
    "tomorrow": "todoku_now() + interval '1 day'",
    "gone": f"'{GONE}'::uuid",
}
_SQLITE = {
    "id": "lower(hex(randomblob(16)))",
    "now": "(cast(strftime('%s', 'now') as integer) * 1000000)",
    "earlier": "((cast(strftime('%s', 'now') as integer) - 1 - n % 1000) * 1000000)",
    "tomorrow": "((cast(strftime('%s', 'now') as integer) + 86400) * 1000000)",
    "gone": f"'{GONE}'",
    "numbers": "numbers",
}


def without_autovacuum(connection: psycopg.Connection[Any]) -> None:
    """From here on statistics change only when a test says so."""
    tables = "select relname from pg_class where relkind = 'r' and starts_with(relname, 'todoku_')"
    for (name,) in connection.execute(tables).fetchall():
        connection.execute(f"alter table {name} set (autovacuum_enabled = off)")


def fill_postgres(connection: psycopg.Connection[Any], *, every: int = 1) -> None:
    """100,000 deliveries more; or of these every n-th."""
    ((first,),) = connection.execute("select coalesce(max(seq), 0) from todoku_message").fetchall()
    numbers = f"(select place, place * {every} as n from generate_series(1, {ROWS // every}) place) numbers"
    for statement in _SCRIPT:
        text = statement.format(**_POSTGRES, first=first, numbers=numbers) + " on conflict do nothing"
        connection.execute(text)


def claim_all_postgres(connection: psycopg.Connection[Any]) -> None:
    """Whatever waits runs at once: what ANALYZE sees in the middle of a rush."""
    connection.execute(f"update todoku_delivery set status = 'sending', worker_id = '{GONE}' where status = 'pending'")


def finish_postgres(connection: psycopg.Connection[Any]) -> None:
    """Every delivery succeeds."""
    connection.execute("""
        with gone as (delete from todoku_delivery returning *)
        insert into todoku_history (finished_at, delivery_id, epoch, message_seq, destination, queue, attempts,
                                    replay_count, worker_id)
        select todoku_now(), id, epoch, message_seq, destination, queue, attempts, replay_count, worker_id from gone
    """)
    connection.execute("delete from todoku_lane")
    connection.execute("delete from todoku_gate")


def fill_sqlite(url: str) -> None:
    """100,000 deliveries in a SQLite file."""
    numbers = f"""with recursive numbers(n, place) as (
        select 1, 1 union all select n + 1, place + 1 from numbers where n < {ROWS})"""
    connection = sqlite3.connect(file_path(url))
    with connection:
        for statement in _SCRIPT:
            connection.execute(numbers + statement.format(**_SQLITE, first=0))
    connection.close()


def change_sqlite(url: str, *statements: str) -> None:
    """Statements of a test's own."""
    connection = sqlite3.connect(file_path(url))
    with connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()
