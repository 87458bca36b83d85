"""A database as it looks after a busy week: a long history, many dead letters, failed attempts. Made by SQL itself."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import psycopg

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
        _fill(connection, history, dead, _postgres_words(now, history + dead), "generate_series({0}, {1}) n")
        for table, column in (("message", "seq"), ("delivery", "id")):
            connection.execute(
                f"select setval(pg_get_serial_sequence('todoku_{table}', '{column}'), {history + dead})"  # type: ignore[arg-type]
            )
        connection.execute("vacuum analyze")


def fill_sqlite(url: str, history: int, dead: int) -> None:
    """So many succeeded deliveries and dead letters of the last week."""
    connection = sqlite3.connect(file_path(url), isolation_level=None)
    connection.execute("pragma synchronous = off")
    numbers = (
        "(with recursive numbers(n) as (select {0} union all select n + 1 from numbers where n < {1}) select n"
        " from numbers)"
    )
    _fill(connection, history, dead, _sqlite_words(datetime.now(UTC), history + dead), numbers)
    connection.execute("analyze")
    connection.close()


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
