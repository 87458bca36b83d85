"""Copy: everything that is in one database into another, empty one, and the proof that it is there.

The source is frozen while it is read: whoever writes to it waits, or is told so. The target gets what is finished or
remembered in many small commits, so a copy that was killed goes on where it was; the deliveries come with the last
commit, after both sides were compared. Until then nothing can run there, and the source is what counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal

import msgspec

from todoku.core.errors import InvalidAct, SchemaError, StoreError
from todoku.store import copy as kept
from todoku.store import table as whole
from todoku.store.database import Database
from todoku.store.statements import Row
from todoku.store.table import Bulk, Measure, Table

_TICK: Final = 5_000


class CopyProgress(msgspec.Struct, frozen=True):
    """How far a copy has come with one table."""

    doing: Literal["copying", "comparing"]
    table: str
    done: int
    rows: int


class Part(msgspec.Struct, frozen=True):
    """A table of the source: its rows, and how many of them an unfinished copy has already brought over."""

    table: str
    rows: int
    there: int = 0


class Copied(msgspec.Struct, frozen=True):
    """A table as it now is on both sides. `brought`: so many rows of it in this run."""

    table: str
    rows: int
    brought: int
    digest: str


Tell = Callable[[CopyProgress], None]


def plan(source: Database, target: Database | None) -> tuple[Part, ...]:
    """What `copy` would do, by table; raises what `copy` would refuse. `target` None: it is not made yet."""
    with source.bulk() as old:
        found = kept.copied(_readable(old, source))
        counted = {table.name: whole.count(old, table) for table in found}
        came = kept.origin(old)
        there: dict[str, int] = {}
        if target is not None:
            _refuse_same(old, target)
            if _version(target) is not None:
                with target.bulk() as new:
                    there = _stand(new, target, came, found, restart=False).done
    return tuple(Part(table.name, counted[table.name], there.get(table.name, 0)) for table in found)


def copy(
    source: Database, target: Database, *, restart: bool = False, tell: Tell = lambda _: None
) -> tuple[Copied, ...]:
    """Copy every table, compare both sides, and only then let the target run.

    Killed, it goes on where it was when it is called again. InvalidAct, and nothing is changed: a worker holds a lease
    on either side, the target has rows of its own, or it is the source. StoreError: the sides differ at the end, which
    means that the source was changed between two runs; `restart` forgets what an unfinished copy brought.
    """
    with source.bulk() as old, old.frozen():
        found = kept.copied(_readable(old, source))
        _refuse_same(old, target)
        if _version(target) is None:
            target.migrate()
        with target.bulk() as new:
            return _Copy(old, new, found, tell).run(target, restart=restart)


class _Copy:
    """One run of a copy."""

    def __init__(self, old: Bulk, new: Bulk, found: tuple[Table, ...], tell: Tell) -> None:
        self._old = old
        self._new = new
        self._found = found
        self._tell = tell
        self._rows = {table.name: whole.count(old, table) for table in found}

    def run(self, target: Database, *, restart: bool) -> tuple[Copied, ...]:
        came = kept.origin(self._old)
        stand = _stand(self._new, target, came, self._found, restart=restart)
        there = whole.tables(self._new)
        last = kept.identities(self._old)
        if restart or not stand.done:
            stand = self._begun(came, last)
        pairs = [(table, there[table.name].like(table)) for table in self._found]
        for mine, theirs in pairs:
            if mine.name not in kept.AT_ONCE:
                self._bring(mine, theirs, stand)
        with self._new.writing():
            for mine, theirs in pairs:
                if mine.name in kept.AT_ONCE:
                    self._write(mine, theirs, 0)
            kept.raise_identities(self._new, last)
            measures = [self._compared(mine, theirs) for mine, theirs in pairs]
            kept.end(self._new)
        return tuple(
            Copied(mine.name, found.rows, found.rows - stand.done.get(mine.name, 0), found.digest)
            for (mine, _), found in zip(pairs, measures, strict=True)
        )

    def _begun(self, came: str, last: dict[str, int]) -> kept.Stand:
        with self._new.writing():
            if kept.stand(self._new) is not None:
                for table in self._found:
                    if table.name not in kept.AT_ONCE:  # they are empty
                        whole.clear(self._new, table)
                kept.end(self._new)
            # Now already, so that who publishes there too early does not take an id that is still to come.
            kept.raise_identities(self._new, last)
            self._new.make_room(kept.history_days(self._old))
            return kept.begin(self._new, self._rows, came)

    def _bring(self, mine: Table, theirs: Table, stand: kept.Stand) -> None:
        done = stand.done.get(mine.name, 0)
        for batch in kept.batches(whole.read(self._old, mine, skip=done)):
            with self._new.writing():
                self._new.insert(theirs, batch)
                done += len(batch)
                kept.note(self._new, mine.name, done, stand.origin)
            self._tell(CopyProgress("copying", mine.name, done, self._rows[mine.name]))

    def _write(self, mine: Table, theirs: Table, done: int) -> None:
        for batch in kept.batches(whole.read(self._old, mine)):
            self._new.insert(theirs, batch)
            done += len(batch)
            self._tell(CopyProgress("copying", mine.name, done, self._rows[mine.name]))

    def _compared(self, mine: Table, theirs: Table) -> Measure:
        one, other = self._measured(self._old, mine), self._measured(self._new, theirs)
        if one != other:
            number = f"{one.rows} rows against {other.rows}" if one.rows != other.rows else "a row is another one"
            raise StoreError(
                f"{mine.name} is not the same on both sides: {number}; nothing can run in the target yet",
                hint="the source was changed between two runs: run the same command again with --restart",
            )
        return one

    def _measured(self, bulk: Bulk, table: Table) -> Measure:
        return whole.measure(self._ticking(table.name, whole.read(bulk, table)))

    def _ticking(self, name: str, rows: Iterable[Row]) -> Iterator[Row]:
        for number, row in enumerate(rows, 1):
            if number % _TICK == 0:
                self._tell(CopyProgress("comparing", name, number, self._rows[name]))
            yield row


# ------------------------------------------------------------------------------------------------------ refusing


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
            hint=f"run `todoku migrate --db` with the URL of the {side}, by the todoku that is to run it",
        )


def _refuse_leases(bulk: Bulk, side: str) -> None:
    if names := kept.leases(bulk):
        raise InvalidAct(
            f"a worker holds a lease on the {side}: {', '.join(names)}",
            hint="stop the workers (they end their leases); the lease of one that was killed ends by itself",
        )


def _refuse_same(old: Bulk, target: Database) -> None:
    with target.bulk() as new:
        if new.dialect == old.dialect and new.place() == old.place():
            raise InvalidAct("source and target are the same database", hint="name another target")


def _readable(old: Bulk, source: Database) -> dict[str, Table]:
    """The tables of a source that may be copied now."""
    _refuse_other_version(source, "source")
    _refuse_leases(old, "source")
    if kept.stand(old) is not None:
        raise InvalidAct("the source is itself an unfinished copy", hint="finish that one first, or name its source")
    return whole.tables(old)


def _stand(new: Bulk, target: Database, came: str, found: tuple[Table, ...], *, restart: bool) -> kept.Stand:
    """How far a copy into this target is; InvalidAct if the target is somebody's."""
    _refuse_other_version(target, "target")
    _refuse_leases(new, "target")
    there = whole.tables(new)
    if names := {table.name for table in found} ^ (set(there) - set(kept.NOT_COPIED)):
        raise SchemaError(f"only one side has {', '.join(sorted(names))}", hint="was a table made or dropped by hand?")
    stand = kept.stand(new) or kept.Stand(came, {})
    if stand.origin != came and not restart:
        raise InvalidAct(
            "the target holds an unfinished copy of another database",
            hint="name the source it came from, or begin again with --restart",
        )
    for table in found:
        rows, ours = whole.count(new, there[table.name]), stand.done.get(table.name, 0)
        if rows != ours:
            raise InvalidAct(
                f"the target has rows of its own: {rows} in {table.name}, where a copy has brought {ours}",
                hint="copy into an empty database; one that was copied before is finished",
            )
    return stand
