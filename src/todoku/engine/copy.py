"""Copies everything in one database into another, empty one, and compares both.

The source is frozen while it is read: writers wait, or get an error. History and the other finished rows are written in
many small commits, so a copy that was killed resumes; the deliveries come with the last commit, after both sides were
compared. Until then no worker can run on the target, and the source stays authoritative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal

import msgspec

from todoku.core.errors import InvalidAct, SchemaError, StoreError
from todoku.store import table as kept
from todoku.store import table as whole
from todoku.store.database import Database
from todoku.store.sql import Row
from todoku.store.table import Bulk, Measure, Table

_TICK: Final = 5_000


class CopyProgress(msgspec.Struct, frozen=True):
    """The progress of a copy within one table."""

    doing: Literal["copying", "comparing"]
    table: str
    done: int
    rows: int


class Part(msgspec.Struct, frozen=True):
    """A table of the source: its rows, and how many of them an unfinished copy has already copied."""

    table: str
    rows: int
    there: int = 0


class Copied(msgspec.Struct, frozen=True):
    """A table as it now is on both sides. `brought`: the rows copied in this run."""

    table: str
    rows: int
    brought: int
    digest: str


OnProgress = Callable[[CopyProgress], None]


def plan(source: Database, target: Database | None) -> tuple[Part, ...]:
    """Returns what `copy` would do, by table; raises as `copy` would. `target` None: it does not exist yet."""
    with source.bulk() as old:
        found = kept.select_tables(_check_source(old, source))
        counted = {table.name: whole.count(old, table) for table in found}
        origin = kept.origin(old)
        present: dict[str, int] = {}
        if target is not None:
            _refuse_same(old, target)
            if _version(target) is not None:
                with target.bulk() as new:
                    present = _check_target(new, target, origin, found, restart=False).done
    return tuple(Part(table.name, counted[table.name], present.get(table.name, 0)) for table in found)


def copy(
    source: Database, target: Database, *, restart: bool = False, on_progress: OnProgress = lambda _: None
) -> tuple[Copied, ...]:
    """Copies every table, compares both sides, and only then lets workers run on the target.

    A killed copy resumes when it is called again; `restart` discards an unfinished copy first. Raises InvalidAct, and
    changes nothing, if a worker holds a lease on either side, the target has other rows, or it is the source. Raises
    StoreError if the sides differ at the end, which means that the source was changed between two runs.
    """
    with source.bulk() as old, old.freeze():
        found = kept.select_tables(_check_source(old, source))
        _refuse_same(old, target)
        if _version(target) is None:
            target.migrate()
        with target.bulk() as new:
            return _Copy(old, new, found, on_progress).run(target, restart=restart)


class _Copy:
    """One run of a copy."""

    def __init__(self, old: Bulk, new: Bulk, found: tuple[Table, ...], on_progress: OnProgress) -> None:
        self._old = old
        self._new = new
        self._found = found
        self._on_progress = on_progress
        self._rows = {table.name: whole.count(old, table) for table in found}

    def run(self, target: Database, *, restart: bool) -> tuple[Copied, ...]:
        origin = kept.origin(self._old)
        stand = _check_target(self._new, target, origin, self._found, restart=restart)
        present = whole.tables(self._new)
        last = kept.identities(self._old)
        if restart or not stand.done:
            stand = self._begin(origin, last)
        pairs = [(table, present[table.name].like(table)) for table in self._found]
        for mine, theirs in pairs:
            if mine.name not in kept.AT_ONCE:
                self._copy_table(mine, theirs, stand)
        with self._new.write():
            for mine, theirs in pairs:
                if mine.name in kept.AT_ONCE:
                    self._copy_last_table(mine, theirs, 0)
            kept.raise_identities(self._new, last)
            measures = [self._compare(mine, theirs) for mine, theirs in pairs]
            kept.end(self._new)
        return tuple(
            Copied(mine.name, found.rows, found.rows - stand.done.get(mine.name, 0), found.digest)
            for (mine, _), found in zip(pairs, measures, strict=True)
        )

    def _begin(self, origin: str, last: dict[str, int]) -> kept.Progress:
        with self._new.write():
            if kept.read_progress(self._new) is not None:
                for table in self._found:
                    if table.name not in kept.AT_ONCE:  # those are still empty
                        whole.clear(self._new, table)
                kept.end(self._new)
            # Already now, so that a message published on the target too early does not take an id of the source.
            kept.raise_identities(self._new, last)
            self._new.add_history_days(kept.history_days(self._old))
            return kept.begin(self._new, self._rows, origin)

    def _copy_table(self, mine: Table, theirs: Table, stand: kept.Progress) -> None:
        done = stand.done.get(mine.name, 0)
        for batch in kept.batches(whole.read(self._old, mine, skip=done)):
            with self._new.write():
                self._new.insert(theirs, batch)
                done += len(batch)
                kept.record_progress(self._new, mine.name, done, stand.origin)
            self._on_progress(CopyProgress("copying", mine.name, done, self._rows[mine.name]))

    def _copy_last_table(self, mine: Table, theirs: Table, done: int) -> None:
        for batch in kept.batches(whole.read(self._old, mine)):
            self._new.insert(theirs, batch)
            done += len(batch)
            self._on_progress(CopyProgress("copying", mine.name, done, self._rows[mine.name]))

    def _compare(self, mine: Table, theirs: Table) -> Measure:
        one, other = self._measure(self._old, mine), self._measure(self._new, theirs)
        if one != other:
            number = f"{one.rows} rows against {other.rows}" if one.rows != other.rows else "a row differs"
            raise StoreError(
                f"{mine.name} is not the same on both sides: {number}; no worker can run on the target yet",
                hint="the source was changed between two runs: run the same command again with --restart",
            )
        return one

    def _measure(self, bulk: Bulk, table: Table) -> Measure:
        return whole.measure(self._with_progress(table.name, whole.read(bulk, table)))

    def _with_progress(self, name: str, rows: Iterable[Row]) -> Iterator[Row]:
        for number, row in enumerate(rows, 1):
            if number % _TICK == 0:
                self._on_progress(CopyProgress("comparing", name, number, self._rows[name]))
            yield row


# -------------------------------------------------------------------------------------------------- preconditions


def _version(database: Database) -> int | None:
    try:
        ((version,),) = database.read(lambda tx: tx.rows("schema_version"))
    except SchemaError:
        return None
    return int(version) if version is not None else None


def _refuse_other_version(database: Database, side: str) -> None:
    version, latest = _version(database), database.facts().latest
    if version != latest:
        raise SchemaError(
            f"the {side} has schema version {version or 0}, this todoku has {latest}",
            hint=f"run `todoku migrate --db` with the URL of the {side}, with the todoku version that will use it",
        )


def _refuse_leases(bulk: Bulk, side: str) -> None:
    if names := kept.leases(bulk):
        raise InvalidAct(
            f"a worker holds a lease on the {side}: {', '.join(names)}",
            hint="stop the workers, which ends their leases; the lease of a killed worker expires by itself",
        )


def _refuse_same(old: Bulk, target: Database) -> None:
    with target.bulk() as new:
        if new.dialect == old.dialect and new.place() == old.place():
            raise InvalidAct("source and target are the same database", hint="pass another target")


def _check_source(old: Bulk, source: Database) -> dict[str, Table]:
    """Returns the tables of a source. InvalidAct or SchemaError if it cannot be copied now."""
    _refuse_other_version(source, "source")
    _refuse_leases(old, "source")
    if kept.read_progress(old) is not None:
        raise InvalidAct("the source is itself an unfinished copy", hint="finish that copy first, or copy its source")
    return whole.tables(old)


def _check_target(
    new: Bulk, target: Database, origin: str, found: tuple[Table, ...], *, restart: bool
) -> kept.Progress:
    """Returns the progress of the copy into this target. InvalidAct if the target is used otherwise."""
    _refuse_other_version(target, "target")
    _refuse_leases(new, "target")
    present = whole.tables(new)
    if names := {table.name for table in found} ^ (set(present) - set(kept.NOT_COPIED)):
        raise SchemaError(
            f"only one side has {', '.join(sorted(names))}", hint="was a table created or dropped by hand?"
        )
    stand = kept.read_progress(new) or kept.Progress(origin, {})
    if stand.origin != origin and not restart:
        raise InvalidAct(
            "the target holds an unfinished copy of another database",
            hint="pass the source it came from, or start again with --restart",
        )
    for table in found:
        rows, ours = whole.count(new, present[table.name]), stand.done.get(table.name, 0)
        if rows != ours:
            raise InvalidAct(
                f"the target has other rows: {rows} in {table.name}, of which a copy has written {ours}",
                hint="copy into an empty database; a finished copy cannot be repeated",
            )
    return stand
