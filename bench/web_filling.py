"""A database as it looks after a busy week: a long history, many dead letters, failed attempts. Made by SQL itself."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import psycopg

from bench.engine import TEXT, app
from todoku.store.sqlite.database import file_path

DAYS: Final = 7
CHUNK: Final = 500_000
_GONE: Final = "00000000-0000-4000-8000-000000000000"

# One row for each n: a message, and how it ended. `{at}` spreads them evenly over the days, the last one is now.
_MESSAGE: Final = """
insert into todoku_message (seq, id, topic, type, key, payload, content_type, headers, labels, created_at)
select n, {id}, 'order.' || (n % 5), 'order.' || (n % 5), 'customer-' || (n % 20000),
       ('{{"order_id": ' || n || ', "amount": ' || (n % 997) || ', "currency": "EUR", "note": "{note}"}}'){json},
       'application/json', ('{{"correlation_id": "c-' || n || '"}}'){json}, null, {at}
  from {numbers}
"""
_HISTORY: Final = """
insert into todoku_history (finished_at, delivery_id, epoch, message_seq, destination, queue, attempts, replay_count,
                            worker_id, run_ms)
select {ended}, n, 1, n, 'ship-' || (n % 8), 'queue-' || (n % 4), 1, 0, '{gone}'{uuid}, n % 200 from {numbers}
"""
_DEAD: Final = """
insert into todoku_delivery (id, message_seq, destination, queue, priority, status, attempts, max_attempts, epoch,
                             next_run_at, claimed_at, updated_at, reason, error, fingerprint)
select n, n, 'ship-' || (n % 8), 'queue-' || (n % 4), 0, 'aborted', 3, 3, 6, {at}, {at}, {ended},
       case n % 4 when 0 then 'HTTP_5XX' when 1 then 'TIMEOUT' when 2 then 'BAD_PAYLOAD' else 'EXCEPTION' end,
       'the warehouse did not take order ' || n || ': shelf ' || (n % 50) || ' is full', 'print-' || (n % 40)
  from {numbers}
"""
_ATTEMPT: Final = """
insert into todoku_attempt (delivery_id, replay, number, epoch, started_at, ended_at, reason, error, worker_id,
                            message_seq, fingerprint, run_ms, final)
select n, 0, 3, 5, {at}, {ended},
       case n % 4 when 0 then 'HTTP_5XX' when 1 then 'TIMEOUT' when 2 then 'BAD_PAYLOAD' else 'EXCEPTION' end,
       'the warehouse did not take order ' || n || ': shelf ' || (n % 50) || ' is full', '{gone}'{uuid}, n,
       'print-' || (n % 40), n % 900, {true} from {numbers}
"""
_COPIED_MESSAGE: Final = """
insert into todoku_message (seq, id, topic, type, payload, content_type, created_at)
select n, {id}, m.topic, m.type, m.payload, m.content_type, {at} from {numbers}, todoku_message m where m.seq = {one}
"""
_COPIED_DELIVERY: Final = """
insert into todoku_delivery (id, message_seq, destination, queue, priority, status, max_attempts, next_run_at,
                             updated_at)
select n, n, d.destination, d.queue, d.priority, 'pending', d.max_attempts, d.next_run_at, d.updated_at
  from {numbers}, todoku_delivery d where d.id = {one}
"""
_POSTGRES_NUMBERS: Final = "generate_series({0}, {1}) n"
_SQLITE_NUMBERS: Final = """
(with recursive s(n) as (select {0} union all select n + 1 from s where n < {1}) select n from s)
"""
_NOTE: Final = "a parcel like any other, with a note of usual length"


def fill_postgres(url: str, history: int, dead: int) -> None:
    """So many succeeded deliveries and dead letters of the last week."""
    now = datetime.now(UTC)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("set synchronous_commit = off")
        for back in range(DAYS + 1):
            day = (now - timedelta(days=back)).date()
            bounds = f"from ('{day} 00:00Z') to ('{day + timedelta(days=1)} 00:00Z')"
            partition = f"todoku_history_{day:%Y%m%d} partition of todoku_history for values {bounds}"
            connection.execute(f"create table if not exists {partition}")  # type: ignore[arg-type]
        _fill(connection, history, dead, _postgres_words(now, history + dead), _POSTGRES_NUMBERS)
        _advance(connection, history + dead)
        connection.execute("vacuum analyze")


def fill_sqlite(url: str, history: int, dead: int) -> None:
    """So many succeeded deliveries and dead letters of the last week."""
    connection = sqlite3.connect(file_path(url), isolation_level=None)
    connection.execute("pragma synchronous = off")
    _fill(connection, history, dead, _sqlite_words(datetime.now(UTC), history + dead), _SQLITE_NUMBERS)
    connection.execute("analyze")
    connection.close()


def multiply_postgres(url: str, number: int) -> None:
    """Enqueues one job, as everyone does, and copies it so often."""
    last = _enqueue_one(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("set synchronous_commit = off")
        _multiply(connection, last, number, _postgres_words(datetime.now(UTC), last + number), _POSTGRES_NUMBERS)
        _advance(connection, last + number)
        connection.execute("vacuum analyze todoku_delivery, todoku_message")


def multiply_sqlite(url: str, number: int) -> None:
    """Enqueues one job, as everyone does, and copies it so often."""
    last = _enqueue_one(url)
    connection = sqlite3.connect(file_path(url), isolation_level=None)
    connection.execute("pragma synchronous = off")
    _multiply(connection, last, number, _sqlite_words(datetime.now(UTC), last + number), _SQLITE_NUMBERS)
    connection.close()


def _enqueue_one(url: str) -> int:
    """Returns the number of the delivery, which is also that of its message: the filled tables are as long."""
    box, job = app(url)
    job.enqueue(TEXT)
    (found,) = box.deliveries.find(queue="bench", limit=1).items
    box.close()
    return int(found.id)


def _multiply(connection: Any, last: int, number: int, words: dict[str, str], numbers: str) -> None:
    for first in range(last + 1, last + number + 1, CHUNK):
        of = numbers.format(first, min(first + CHUNK - 1, last + number))
        for statement in (_COPIED_MESSAGE, _COPIED_DELIVERY):
            connection.execute(statement.format(**words, numbers=of, one=last))


def _advance(connection: psycopg.Connection[Any], last: int) -> None:
    """Moves the sequences on, behind the rows that were written with their numbers."""
    for table, column in (("message", "seq"), ("delivery", "id")):
        connection.execute(
            f"select setval(pg_get_serial_sequence('todoku_{table}', '{column}'), {last})"  # type: ignore[arg-type]
        )


def _fill(connection: Any, history: int, dead: int, words: dict[str, str], numbers: str) -> None:
    """Every (history + dead) / dead-th is a dead letter, so that both are of the whole week."""
    every = max(2, (history + dead) // max(1, dead))
    for first in range(1, history + dead + 1, CHUNK):
        last = min(first + CHUNK - 1, history + dead)
        of = numbers.format(first, last)
        for statement, which in (
            (_MESSAGE, "true"),
            (_HISTORY, f"n % {every} <> 0"),
            (_DEAD, f"n % {every} = 0"),
            (_ATTEMPT, f"n % {every} = 0"),
        ):
            connection.execute(statement.format(**words, numbers=of) + f" where {which}")


def _postgres_words(now: datetime, number: int) -> dict[str, str]:
    at = f"timestamptz '{now.isoformat()}' - ({number} - n) * interval '{DAYS * 86400 / number:.9f} seconds'"
    ms = f"lpad(to_hex((date_part('epoch', {at}) * 1000)::bigint), 12, '0')"
    rest = "'7' || substr(md5(n::text), 1, 3) || '8' || substr(md5(n::text), 4, 15)"
    return {
        "id": f"({ms} || {rest})::uuid", "at": at, "ended": f"{at} + interval '0.3 seconds' * (n % 7)",
        "json": "::json", "uuid": "::uuid", "gone": _GONE, "note": _NOTE, "true": "true",
    }  # fmt: skip


def _sqlite_words(now: datetime, number: int) -> dict[str, str]:
    at = f"({round(now.timestamp() * 1e6)} - ({number} - n) * {round(DAYS * 86400e6 / number)})"
    ms = f"printf('%012x', {at} / 1000)"
    random = "lower(hex(randomblob(8)))"
    id = "(select substr(ms, 1, 8) || '-' || substr(ms, 9) || '-7' || substr(r, 1, 3) || '-8' || substr(r, 4, 3) || '-'"
    id += f" || substr(r || '000000', 5, 12) from (select {ms} as ms, {random} as r))"
    return {
        "id": id, "at": at, "ended": f"{at} + 300000 * (n % 7)",
        "json": "", "uuid": "", "gone": _GONE, "note": _NOTE, "true": "1",
    }  # fmt: skip
