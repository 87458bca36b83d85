"""The bare readers that `bench.capture` compares with: pgoutput over psycopg, and nothing of todoku.

One only decodes: each row becomes a dict of Python values, by the names and types that the server announced. The other
stores as well what todoku stores of a row: a message and a delivery, and the position, in one commit for up to 2,000
rows. It has no fence, no keys of known rows, no lanes, no routes and no schemas. Neither may be weakened to make a
ratio look better.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import psycopg
from psycopg.pq import ExecStatus

Decoded = tuple[str, dict[str, Any]]
"""The operation and the row."""

PORTION = 2_000
STORE = """
with message as (
    insert into todoku_message (id, topic, type, key, payload, content_type, headers, created_at)
    select id, topic, topic, key, payload::json, 'application/json', headers::json, statement_timestamp()
      from unnest(%s::uuid[], %s::text[], %s::text[], %s::text[], %s::text[]) as s(id, topic, key, payload, headers)
    returning seq
)
insert into todoku_delivery (message_seq, destination, queue, priority, status, max_attempts, next_run_at, updated_at)
select seq, 'bench', 'bench', 0, 'pending', 6, statement_timestamp(), statement_timestamp() from message"""
POSITION = "create table bare_position (lsn bigint not null)"
_INT, _SHORT = struct.Struct("!i"), struct.Struct("!h")
_TYPES: dict[int, Callable[[bytes], Any]] = {
    16: lambda text: text == b"t", 20: int, 21: int, 23: int, 700: float, 701: float,
}  # fmt: skip


class Decoder:
    """What it has learned of the tables from Relation messages."""

    def __init__(self) -> None:
        self._columns: dict[int, list[tuple[str, Callable[[bytes], Any]]]] = {}
        self.lsn = 0

    def take(self, data: bytes) -> Decoded | None:
        """A row, if this frame has one."""
        match data[25:26]:
            case b"I":
                return "insert", self._row(data, 31)
            case b"U":
                return "update", self._row(data, 31 if data[30:31] == b"N" else self._behind(data, 31) + 1)
            case b"D":
                return "delete", self._row(data, 31)
            case b"C":
                (self.lsn,) = struct.unpack_from("!q", data, 35)
            case b"R":
                self._learn(data)
            case _:
                pass
        return None

    def _row(self, data: bytes, place: int) -> dict[str, Any]:
        columns = self._columns[_INT.unpack_from(data, 26)[0]]
        (number,) = _SHORT.unpack_from(data, place)
        place += 2
        row: dict[str, Any] = {}
        for name, read in columns[:number]:
            kind = data[place]
            place += 1
            if kind == 0x74:  # t: text
                (size,) = _INT.unpack_from(data, place)
                place += 4
                row[name] = read(data[place : place + size])
                place += size
            else:
                row[name] = None
        return row

    def _behind(self, data: bytes, place: int) -> int:
        (number,) = _SHORT.unpack_from(data, place)
        place += 2
        for _ in range(number):
            place += 5 + _INT.unpack_from(data, place + 1)[0] if data[place] == 0x74 else 1
        return place

    def _learn(self, data: bytes) -> None:
        (oid,) = _INT.unpack_from(data, 26)
        place = data.index(b"\0", data.index(b"\0", 30) + 1) + 2
        (number,) = _SHORT.unpack_from(data, place)
        place += 2
        columns = []
        for _ in range(number):
            end = data.index(b"\0", place + 1)
            (kind,) = _INT.unpack_from(data, end + 1)
            columns.append((data[place + 1 : end].decode(), _TYPES.get(kind, bytes.decode)))
            place = end + 9
        self._columns[oid] = columns


def frames(source: str, slot: str) -> Iterator[bytes]:
    """What the server streams of a slot, whose publication has the same name."""
    connection = psycopg.connect(source, autocommit=True, replication="database")
    pgconn = connection.pgconn
    command = f"START_REPLICATION SLOT {slot} LOGICAL 0/0 (proto_version '1', publication_names '{slot}')"
    if pgconn.exec_(command.encode()).status != ExecStatus.COPY_BOTH:
        raise RuntimeError("the server does not stream")
    try:
        while True:
            data = bytes(pgconn.get_copy_data(0)[1])
            if data[:1] == b"w":
                yield data
    finally:
        connection.close()


def decode_all(source: str, slot: str, number: int) -> float:
    """Decode until every row was seen; how many a second, from the first frame on."""
    decoder, rows, began, amounts = Decoder(), 0, 0.0, 0
    for data in frames(source, slot):
        began = began or time.perf_counter()
        if (decoded := decoder.take(data)) is not None:
            rows += 1
            amounts += len(decoded[1])
            if rows == number:
                break
    took = time.perf_counter() - began
    if amounts != 4 * number:
        raise RuntimeError(f"{amounts:,} values of {number:,} rows")
    return number / took


def store_all(source: str, slot: str, number: int, url: str) -> float:
    """Decode and store; how many a second, from the first frame to the last commit."""
    decoder, rows, began = Decoder(), 0, 0.0
    portion: list[Decoded] = []
    with psycopg.connect(url) as connection:
        connection.execute(POSITION)
        connection.execute("insert into bare_position values (0)")
        connection.commit()
        for data in frames(source, slot):
            began = began or time.perf_counter()
            if (decoded := decoder.take(data)) is not None:
                portion.append(decoded)
                rows += 1
            elif len(portion) >= PORTION or (rows == number and portion):
                _store(connection, portion, decoder.lsn)
                portion = []
            if rows == number and not portion:
                break
        return number / (time.perf_counter() - began)


def _store(connection: psycopg.Connection, portion: list[Decoded], lsn: int) -> None:
    """One commit."""
    headers = json.dumps({"capture": "bare", "capture-lsn": f"{lsn:X}"})
    payloads = [json.dumps({"op": op, "table": "public.orders", "row": row}) for op, row in portion]
    connection.execute(
        STORE,
        (
            [uuid4() for _ in portion],
            [f"orders.{op}" for op, _ in portion],
            [str(row["id"]) for _, row in portion],
            payloads,
            [headers] * len(portion),
        ),
    )
    connection.execute("update bare_position set lsn = %s", (lsn,))
    connection.commit()
