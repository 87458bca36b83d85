"""The progress of a copy, stored in its target, and the queries it runs on both sides. See `table.py` for tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import date, timedelta
from typing import Final

import msgspec

from todoku.store.columns import EPOCH
from todoku.store.statements import Row
from todoku.store.table import Bulk, Table

NOT_COPIED: Final = {
    "todoku_migration": "each database has its own",
    "todoku_worker": "a lease is valid in one database; deliveries of ended leases are reclaimed in the target, too",
    "todoku_count": "a cache: counted again",
    "todoku_copy": "the progress of an unfinished copy; removed when it has finished",
}
"""Tables that are not copied, and why. Every other table of todoku is copied, of later migrations, too."""

AT_ONCE: Final = ("todoku_audit", "todoku_lane", "todoku_delivery")
"""Tables that are written by the last commit. Without deliveries nothing can run in the target, so a copy that was
killed, or found to differ, does no harm. Audit rows are never deleted, so they must not be there if a copy restarts."""

_ROWS: Final = 5_000
_BYTES: Final = 8 << 20
_DAYS: Final = 1_000


class Progress(msgspec.Struct, frozen=True):
    """The progress of an unfinished copy: its source, and the number of copied rows by table."""

    origin: str
    done: dict[str, int]


def origin(bulk: Bulk) -> str:
    """Identifies a database among others with the same schema: the times of its migrations."""
    return ".".join(str(moment) for (moment,) in bulk.rows("migrated_at"))


def leases(bulk: Bulk) -> list[str]:
    """The names of workers whose lease has not ended."""
    return [str(name) for (name,) in bulk.rows("leases")]


def read_progress(bulk: Bulk) -> Progress | None:
    """Returns the progress of the copy into this database; None: there is none, or it has finished."""
    if bulk.rows("copy_begun") == [(0,)]:
        return None
    done = {str(name): (int(str(rows)), str(came)) for name, rows, came in bulk.rows("copy_stand")}
    (came,) = {came for _, came in done.values()}
    return Progress(came, {name: rows for name, (rows, _) in done.items()})


def begin(bulk: Bulk, names: Iterable[str], source: str) -> Progress:
    """Records the start of a copy."""
    bulk.rows("copy_begin")
    done = dict.fromkeys(names, 0)
    for name in done:
        record_progress(bulk, name, 0, source)
    return Progress(source, done)


def record_progress(bulk: Bulk, name: str, rows: int, source: str) -> None:
    """Records the number of copied rows of a table, in the transaction that writes them."""
    bulk.rows("copy_note", name=name, rows=rows, origin=source)


def end(bulk: Bulk) -> None:
    """Records the end of the copy."""
    bulk.rows("copy_end")


def identities(bulk: Bulk) -> dict[str, int]:
    """The last id each table assigned, even if its row was deleted since."""
    return {str(name): int(str(last)) for name, last in bulk.rows("identities")}


def raise_identities(bulk: Bulk, wanted: dict[str, int]) -> None:
    """Raises the id counters past these values: a token (id, epoch, worker) works once, so no id may be reused."""
    present = identities(bulk)
    for name, last in wanted.items():
        if last > present.get(name, 0):
            bulk.rows("set_identity", name=name, last=last)


def history_days(bulk: Bulk) -> tuple[date, ...]:
    """The days of the history, the latest thousand."""
    rows = bulk.rows("history_days", most=_DAYS)
    return tuple(EPOCH.date() + timedelta(days=int(str(day))) for (day,) in rows)


def batches(rows: Iterable[Row]) -> Iterator[Sequence[Row]]:
    """Yields rows in batches of one transaction each, limited in rows and in bytes: a payload may have a megabyte."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += sum(len(value) for value in row if isinstance(value, str | bytes))
        if len(batch) >= _ROWS or size >= _BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def select_tables(found: dict[str, Table]) -> tuple[Table, ...]:
    """The tables to copy, in order: those of the last commit come last."""
    names = sorted(set(found) - set(NOT_COPIED) - set(AT_ONCE))
    return tuple(found[name] for name in (*names, *AT_ONCE))
