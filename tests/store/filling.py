"""Rows with every kind of value in every table, whichever migration made it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from tests.support.world import World
from todoku.store.columns import EPOCH
from todoku.store.table import MINUS_INFINITY, NEVER, NOT_COPIED, Column, Table

MOMENT = 1_799_999_999_123_457
"""A time whose microseconds would not survive a float."""
JSON = '{"big": 123456789012345678901234567890, "real": 1.10, "e": 1E+5, "text": "\\u0000 é 😀", "a": 1,  "a": 2}'
TEXT = "ünïcødé 😀 'quoted' \"twice\" \\ back\nline\ttab %s ? :name {brace}"

CHECKED: dict[tuple[str, str], tuple[Any, Any, Any]] = {
    ("todoku_delivery", "status"): ("pending", "aborted", "sending"),
    ("todoku_delivery", "worker_id"): (None, None, str(UUID(int=7))),
    ("todoku_delivery", "priority"): (0, 7, 15),
    ("todoku_ledger", "state"): ("accepted", "succeeded", "failed"),
    ("todoku_destination", "on_abort"): ("block", "skip", "block"),
    ("todoku_hook", "event"): ("succeeded", "aborted", "succeeded"),
    ("todoku_batch", "on"): ("finished", "succeeded", "finished"),
    ("todoku_schedule", "source"): ("code", "stored", "code"),
    ("todoku_projection", "state"): ("running", "stopped", "running"),
    ("todoku_projection_index", "role"): ("live", "building", "kept"),
    ("todoku_projection_index", "phase"): ("", "filling", "ready"),
    ("todoku_capture", "state"): ("starting", "away", "stopped"),
    ("todoku_capture_table", "phase"): ("waiting", "reading", "done"),
    ("todoku_http_run", "state"): ("started", "success", "canceled"),
    ("todoku_http_run_step", "call_type"): ("step", "toCallback", "step"),
    ("todoku_step", "kind"): ("step", "wait", "children"),
    ("todoku_step", "state"): ("open", "done", "fatal"),
}
"""Columns that do not take everything."""


def fill(world: World, shape: dict[str, Table], nullable: set[tuple[str, str]]) -> None:
    """Three rows in every table that is copied: the extremes, what may be absent, the usual.

    `shape` is that of PostgreSQL, whose types say more.
    """
    for name in sorted(set(shape) - set(NOT_COPIED)):
        table = shape[name]
        for number in range(3):
            _insert(world, table, [_value(table, column, number, nullable) for column in table.columns])


def _value(table: Table, column: Column, number: int, nullable: set[tuple[str, str]]) -> Any:
    place = (table.name, column.name)
    if place in CHECKED:
        return CHECKED[place][number]
    if number == 1 and place in nullable:
        return None
    usual = {
        "smallint": 2**15 - 1 - number,
        "integer": 2**31 - 1 - number,
        "bigint": 2**62 - number,
        "double precision": (0.1, 1e-300, 1e300)[number],
        "text": f"{number} {TEXT}",
        "json": JSON,
        "bytea": bytes(range(256)),
        "boolean": number % 2,
        "uuid": str(UUID(int=2**127 + number)),
        "timestamp with time zone": (NEVER, 0 if place in MINUS_INFINITY else MOMENT - 1, MOMENT)[number],
    }
    return usual[column.type]


def _insert(world: World, table: Table, row: list[Any]) -> None:
    """In the test's own words, not in those under test."""
    names = ", ".join(f'"{column.name}"' for column in table.columns)
    if world.backend == "postgres":
        row = [_of_postgres(column, item) for column, item in zip(table.columns, row, strict=True)]
    world.sql(f"insert into {table.name} ({names}) values ({', '.join('?' for _ in row)})", *row)


def _of_postgres(column: Column, item: Any) -> Any:
    match column.type, item:
        case "boolean", int():
            return bool(item)
        case "timestamp with time zone", int():
            special = {NEVER: "infinity", 0: "-infinity"}
            return special.get(item) or (EPOCH + timedelta(microseconds=item)).isoformat()
        case _:
            return item
