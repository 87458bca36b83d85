"""What a copy keeps in its target, and what it asks of both sides. Tables as such are in `table.py`."""

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
    "todoku_worker": "a lease is held in one database; what an ended one left is reclaimed in the target, too",
    "todoku_count": "a cache: it is counted again",
    "todoku_copy": "where an unfinished copy stands; gone when it has finished",
}
"""Tables that stay behind, and why. Every other table of todoku is copied, whichever migration made it."""

AT_ONCE: Final = ("todoku_audit", "todoku_lane", "todoku_delivery")
"""Tables that appear in the target with the last commit: without deliveries nothing there can run, so a copy that was
killed, or is found to differ, has done no harm. And an audit never loses a row again, not even to begin once more."""

_ROWS: Final = 5_000
_BYTES: Final = 8 << 20
_DAYS: Final = 1_000


class Progress(msgspec.Struct, frozen=True):
    """How far an unfinished copy has come: where it comes from, and the rows that are there, by table."""

    origin: str
    done: dict[str, int]


def origin(bulk: Bulk) -> str:
    """What tells this database from another one with the same schema: the moments of its migrations."""
    return ".".join(str(moment) for (moment,) in bulk.rows("migrated_at"))


def leases(bulk: Bulk) -> list[str]:
    """The names of workers whose lease has not ended."""
    return [str(name) for (name,) in bulk.rows("leases")]


def read_progress(bulk: Bulk) -> Progress | None:
    """Where the copy into this database stands; None: there is none, or it has finished."""
    if bulk.rows("copy_begun") == [(0,)]:
        return None
    done = {str(name): (int(str(rows)), str(came)) for name, rows, came in bulk.rows("copy_stand")}
    (came,) = {came for _, came in done.values()}
    return Progress(came, {name: rows for name, (rows, _) in done.items()})


def begin(bulk: Bulk, names: Iterable[str], source: str) -> Progress:
    """Note that a copy has begun."""
    bulk.rows("copy_begin")
    done = dict.fromkeys(names, 0)
    for name in done:
        record_progress(bulk, name, 0, source)
    return Progress(source, done)


def record_progress(bulk: Bulk, name: str, rows: int, source: str) -> None:
    """Note how many rows of a table are there, in the transaction that writes them."""
    bulk.rows("copy_note", name=name, rows=rows, origin=source)


def end(bulk: Bulk) -> None:
    """Note that the copy has finished."""
    bulk.rows("copy_end")


def identities(bulk: Bulk) -> dict[str, int]:
    """The last id that each table gave away, whether or not its row is still there."""
    return {str(name): int(str(last)) for name, last in bulk.rows("identities")}


def raise_identities(bulk: Bulk, wanted: dict[str, int]) -> None:
    """Let the next id of each table be past these: a token (id, epoch, worker) works once, so no id comes twice."""
    there = identities(bulk)
    for name, last in wanted.items():
        if last > there.get(name, 0):
            bulk.rows("set_identity", name=name, last=last)


def history_days(bulk: Bulk) -> tuple[date, ...]:
    """The days on which something succeeded, the latest thousand of them."""
    rows = bulk.rows("history_days", most=_DAYS)
    return tuple(EPOCH.date() + timedelta(days=int(str(day))) for (day,) in rows)


def batches(rows: Iterable[Row]) -> Iterator[Sequence[Row]]:
    """Rows by the transaction: not too many, and not too large, because a payload may have a megabyte."""
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
    """The tables that a copy is about, in its order: those of the last commit are last."""
    names = sorted(set(found) - set(NOT_COPIED) - set(AT_ONCE))
    return tuple(found[name] for name in (*names, *AT_ONCE))
