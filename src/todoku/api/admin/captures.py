"""Captures: list them, look at one, publish the rows of its tables anew."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from todoku.api.admin.operation import operation
from todoku.api.admin.parameters import ByName, Reasoned, Text, signed
from todoku.api.request_context import RequestContext
from todoku.capture.captures import read_status
from todoku.core.capture import State, format_lsn
from todoku.core.msgspec_warmup import warm_up
from todoku.store.capture_portions import Phase
from todoku.store.captures import CaptureRow, TableState, tables_to_restart


class ListedTable(msgspec.Struct, frozen=True, kw_only=True):
    """A captured table, and how far its snapshot is. `snapshot`: whether its rows are wanted from the start."""

    table: str
    topic: str
    key: tuple[str, ...]
    snapshot: bool
    phase: Phase
    copied: int
    expected: int
    generation: int


class ListedCapture(msgspec.Struct, frozen=True, kw_only=True):
    """A capture. `reason` and `why`: of a capture that is away or stopped. `reader`: the worker that reads it now.

    `down`: it is stopped, or its source has been away for a minute. `lsn`: the position in the source's log up to which
    everything is stored; null: it has never started. `retained_bytes`: what the source keeps of its log for it.
    """

    name: str
    state: State
    reason: str | None
    why: str | None
    since: datetime
    down: bool
    reader: str | None
    lsn: str | None
    behind_bytes: int | None
    retained_bytes: int | None
    measured_at: datetime | None
    changes: int
    committed_at: datetime | None
    generation: int
    slot: str
    publication: str
    warnings: tuple[str, ...]
    tables: tuple[ListedTable, ...]


class ListedCaptures(msgspec.Struct, frozen=True):
    """Captures by name."""

    items: tuple[ListedCapture, ...]


class SnapshotBody(Reasoned, frozen=True, kw_only=True):
    """`tables`: those whose rows are read; left out: all that were declared with a snapshot."""

    tables: Annotated[list[Text], Meta(min_length=1, max_length=1000)] | None = None


warm_up(SnapshotBody)


class Restarted(msgspec.Struct, frozen=True, kw_only=True):
    """The tables that a worker will read. `new_slot`: the capture was stopped, and gets a new slot first."""

    name: str
    tables: tuple[str, ...]
    new_slot: bool


@operation("GET", "/captures", access="read")
def list_captures(context: RequestContext) -> ListedCaptures:
    """Lists captures: their states, how far they are behind, and how far their snapshots are."""
    return ListedCaptures(tuple(_listed(row) for row in context.store.captures.list()))


@operation("GET", "/captures/{name:path}", access="read")
def get_capture(context: RequestContext, where: ByName) -> ListedCapture:
    """Returns one capture."""
    return _listed(read_status(context.store.captures, where.name))


@operation("POST", "/captures/{name:path}/snapshot", access="operate")
def snapshot_capture(context: RequestContext, where: ByName, body: SnapshotBody, by: str) -> Restarted:
    """Publishes the rows of a capture's tables anew; of a stopped capture also makes a new slot."""
    before = read_status(context.store.captures, where.name)
    wanted = tables_to_restart(before, body.tables)
    context.store.captures.restart(where.name, body.tables, signed(by, body))
    return Restarted(name=where.name, tables=wanted, new_slot=before.state == "stopped")


def _listed(row: CaptureRow) -> ListedCapture:
    return ListedCapture(
        name=row.name, state=row.state, reason=row.reason, why=row.why, since=row.state_at, down=row.is_down,
        reader=row.reader, lsn=format_lsn(row.lsn) if row.lsn else None, behind_bytes=row.behind_bytes,
        retained_bytes=row.retained_bytes, measured_at=row.measured_at, changes=row.changes,
        committed_at=row.committed_at, generation=row.generation, slot=row.slot, publication=row.publication,
        warnings=row.warnings, tables=tuple(_table(table) for table in row.tables),
    )  # fmt: skip


def _table(table: TableState) -> ListedTable:
    return ListedTable(
        table=table.table, topic=table.topic, key=table.key, snapshot=table.snapshot, phase=table.phase,
        copied=table.copied, expected=table.expected, generation=table.generation,
    )  # fmt: skip


OPERATIONS: Final = (list_captures, get_capture, snapshot_capture)
