"""Projections: their indexes, how far a rebuild is, which workers write which indexes, and how far behind they are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

import msgspec

from todoku.core.errors import InvalidAct, NotThere
from todoku.core.identity import lane_id
from todoku.core.projection import IndexRole
from todoku.store.audit import Signed
from todoku.store.columns import moment
from todoku.store.database import Database, Tx

State = Literal["running", "stopped"]
Phase = Literal["", "waiting", "filling", "catching_up", "comparing", "ready"]

_LANES: Final = 100_000
_DEEP: Final = 1_000
_NOBODY: Final = Signed("todoku", "")


class IndexRow(msgspec.Struct, frozen=True, kw_only=True):
    """An index of a projection. `generation` never changes. `written`: whether workers write events to it.

    `phase`, `position`, `step` and the counts are those of its back-fill; `step` is what two rebuilds compare.
    """

    name: str
    generation: int
    role: IndexRole
    written: bool
    phase: Phase
    position: str | None
    step: int
    copied: int
    expected: int
    rejected: int
    created_at: datetime


class ProjectionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A projection with its indexes. `readable`: the readers' flag. `why`: why it is stopped."""

    name: str
    kind: str
    state: State
    why: str | None
    revision: int
    readable: bool
    created_at: datetime
    updated_at: datetime
    indexes: tuple[IndexRow, ...] = ()

    def of(self, role: IndexRole) -> IndexRow | None:
        """Returns the newest index with this role; None: there is none."""
        return next((index for index in reversed(self.indexes) if index.role == role), None)

    def index(self, name: str) -> IndexRow | None:
        """Returns the index of that name, if there is one."""
        return next((index for index in self.indexes if index.name == name), None)

    @property
    def written(self) -> tuple[IndexRow, ...]:
        """The indexes that workers write, the one that decides about a change first: the live one, if it is written."""
        order = ("live", "building", "kept")
        return tuple(sorted((index for index in self.indexes if index.written), key=lambda one: order.index(one.role)))


class ProjectionLag(msgspec.Struct, frozen=True):
    """How far a projection is behind: its unfinished events, the age of the oldest, and the lowest of their numbers."""

    events: int
    age: float
    oldest: int | None
    complete: bool
    """False: there are more than were counted."""


class Dead(msgspec.Struct, frozen=True):
    """A dead letter of a key: the lowest number of its messages, and the id of the latest delivery."""

    sequence: int
    delivery: int


class DeadEvent(msgspec.Struct, frozen=True):
    """A dead letter of a projection."""

    delivery: int
    key: str
    sequence: int


class RebuildProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a back-fill is."""

    phase: Phase
    position: str | None
    copied: int
    expected: int
    rejected: int = 0
    """Documents rejected since the last call; they are added up."""


class ProjectionStore:
    """The projections of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def declare(self, name: str, kind: str, first: str | None) -> ProjectionRow:
        """Records a projection, once; `first`: its first index. InvalidAct: one of another kind has this name."""

        def work(tx: Tx) -> ProjectionRow:
            if tx.rows("declare_projection", name=name, kind=kind) and first is not None:
                tx.rows("add_projection_index", projection=name, name=first, generation=1, role="live", phase="waiting")
            return _checked(_locked(tx, name), kind)

        return self._database.write("declare_projection", work)

    def get(self, name: str) -> ProjectionRow | None:
        """Returns a projection; None: there is none."""
        return self._database.read(lambda tx: _get(tx, name))

    def list(self) -> tuple[ProjectionRow, ...]:
        """Returns every projection, by name."""
        return self._database.read(lambda tx: tuple(_filled(tx, row) for row in tx.rows("projections")))

    def created(self, name: str, index: str) -> ProjectionRow:
        """Records that the first index of a projection exists. From now on it is never created again."""

        def work(tx: Tx) -> ProjectionRow:
            if (row := _locked(tx, name).index(index)) is not None:
                _set_index(tx, name, row, phase="")
            return _locked(tx, name)

        return self._database.write("declare_projection", work)

    # ------------------------------------------------------------------------------------------ workers

    def admit(self, name: str, worker: UUID) -> ProjectionRow | None:
        """Records that a worker writes by the present revision, and returns the projection; None: there is none.

        A worker calls it before its first write (R22): from then on a rebuild waits for it.
        """

        def work(tx: Tx) -> ProjectionRow | None:
            if (found := _get(tx, name, "share_projection")) is not None:
                tx.rows("bury_projection_writers", projection=name)
                tx.rows("acknowledge_projection", projection=name, worker=worker, revision=found.revision)
            return found

        return self._database.write("admit_projection", work)

    def acknowledge(self, name: str, worker: UUID, revision: int) -> None:
        """Records that no write of this worker under an older revision is under way, and that none will begin."""
        self._database.write(
            "acknowledge_projection",
            lambda tx: tx.rows("acknowledge_projection", projection=name, worker=worker, revision=revision),
        )

    def late_writers(self, name: str, revision: int) -> tuple[str, ...]:
        """Returns the names of the workers that may still settle a write under a revision older than this one."""
        rows = self._database.read(lambda tx: tx.rows("late_projection_writers", projection=name, revision=revision))
        return tuple(worker for (worker,) in rows)

    def reject(self, name: str, index: str, number: int) -> None:
        """Counts documents that an index rejected which does not decide about their events."""
        self._database.write(
            "reject_projection",
            lambda tx: tx.rows("reject_projection_index", projection=name, name=index, number=number),
        )

    # ------------------------------------------------------------------------------------------ changes

    def stop(self, name: str, why: str) -> None:
        """Stops a projection and pauses its queue: nothing of it is claimed until an operator rebuilds it."""

        def work(tx: Tx) -> None:
            found = _get(tx, name, "lock_projection")
            if found is None or found.state == "stopped":
                return
            _set(tx, found, state="stopped", why=why)
            tx.rows("set_queue", name=name, paused=True)
            _audit(tx, msgspec.structs.replace(_NOBODY, why=why), "stop", name)

        self._database.write("stop_projection", work)

    def set_readable(self, name: str, signed: Signed, *, readable: bool) -> None:
        """Sets the readers' flag."""

        def work(tx: Tx) -> None:
            _set(tx, _locked(tx, name), readable=readable)
            _audit(tx, signed, "readers on" if readable else "readers off", name)

        self._database.write("set_projection", work)

    def begin_rebuild(self, name: str, name_index: Callable[[int], str], signed: Signed) -> ProjectionRow:
        """Adds an index that workers write from now on, and raises the revision. InvalidAct: one is being built.

        A stopped projection runs again: the index that is ahead of the database stays as it is, for readers only.
        """

        def work(tx: Tx) -> ProjectionRow:
            found = _locked(tx, name)
            _refuse_third(found)
            if found.state == "stopped":
                for index in found.indexes:
                    _set_index(tx, name, index, written=False)
                tx.rows("set_queue", name=name, paused=False)
            generation = 1 + max((index.generation for index in found.indexes), default=0)
            tx.rows(
                "add_projection_index", projection=name, name=name_index(generation), generation=generation,
                role="building", phase="waiting",
            )  # fmt: skip
            _set(tx, found, state="running", why=None, raised=True)
            _audit(tx, signed, "rebuild", name)
            return _locked(tx, name)

        return self._database.write("begin_rebuild", work)

    def advance(self, name: str, index: IndexRow, progress: RebuildProgress) -> IndexRow:
        """Stores how far a back-fill is. InvalidAct: another rebuild has gone on in the meantime."""

        def work(tx: Tx) -> IndexRow:
            values = msgspec.structs.asdict(progress)
            if not tx.rows("advance_projection_index", projection=name, name=index.name, step=index.step, **values):
                raise InvalidAct(
                    f"another process rebuilds {name}", hint="let it finish, or run the same command again later"
                )
            return next(_index(row) for row in tx.rows("projection_indexes", projection=name) if row[0] == index.name)

        return self._database.write("advance_rebuild", work)

    def switch(self, name: str, to: str, signed: Signed) -> ProjectionRow:
        """Makes an index the live one, and the live one kept. InvalidAct: it cannot be."""

        def work(tx: Tx) -> ProjectionRow:
            found = _locked(tx, name)
            for index in found.indexes:
                if index.name == to:
                    _set_index(tx, name, index, role="live", phase="")
                elif index.role == "live":
                    _set_index(tx, name, index, role="kept", phase="")
            _set(tx, found)
            _audit(tx, signed, f"switch to {to}", name)
            return _locked(tx, name)

        return self._database.write("switch_projection", work)

    def unwrite(self, name: str, index: str) -> ProjectionRow:
        """Lets workers write an index no more, and raises the revision."""

        def work(tx: Tx) -> ProjectionRow:
            found = _locked(tx, name)
            if (row := found.index(index)) is not None and row.written:
                _set_index(tx, name, row, written=False)
                _set(tx, found, raised=True)
            return _locked(tx, name)

        return self._database.write("drop_projection", work)

    def remove_index(self, name: str, index: str, signed: Signed) -> None:
        """Forgets an index."""

        def work(tx: Tx) -> None:
            _locked(tx, name)
            if tx.rows("remove_projection_index", projection=name, name=index):
                _audit(tx, signed, f"drop {index}", name)

        self._database.write("drop_projection", work)

    def remove(self, name: str, signed: Signed) -> None:
        """Forgets a projection."""

        def work(tx: Tx) -> None:
            _locked(tx, name)
            tx.rows("remove_projection", name=name)
            _audit(tx, signed, "drop", name)

        self._database.write("drop_projection", work)

    # ------------------------------------------------------------------------------------------ reading

    def newest(self) -> int:
        """Returns the highest number that a message of this database ever had, pruned or not."""
        return int(self._database.read(lambda tx: tx.rows("newest_seq"))[0][0])

    def lag(self, name: str, *, most: int = _LANES) -> ProjectionLag:
        """Returns how far a projection is behind; of more than `most` keys, a lower bound."""
        rows = self._database.read(lambda tx: tx.rows("projection_lag", name=name, most=most, deep=_DEEP))
        ((lanes, events, oldest, age),) = rows
        return ProjectionLag(int(events), max(0.0, float(age)), oldest, lanes < most)

    def unfinished(self, name: str, keys: Sequence[str]) -> frozenset[str]:
        """Returns those of these keys that have an unfinished delivery."""
        lanes = {lane_id(name, key): key for key in keys}
        rows = self._database.read(lambda tx: tx.rows("unfinished_lanes", lanes=list(lanes))) if lanes else []
        return frozenset(lanes[lane] for (lane,) in rows)

    def dead_letters(self, name: str, after: int, limit: int) -> tuple[DeadEvent, ...]:
        """Returns dead letters with a key by their number, those behind `after`."""
        rows = self._database.read(lambda tx: tx.rows("projection_dead_letters", name=name, after=after, most=limit))
        return tuple(DeadEvent(*row) for row in rows)

    def dead(self, name: str, keys: Sequence[str]) -> dict[str, Dead]:
        """Returns the dead letters of these keys."""
        rows = self._database.read(lambda tx: tx.rows("projection_dead", name=name, keys=list(keys))) if keys else []
        return {key: Dead(sequence, delivery) for key, sequence, delivery in rows}


def _get(tx: Tx, name: str, query: str = "projection") -> ProjectionRow | None:
    return next((_filled(tx, row) for row in tx.rows(query, name=name)), None)


def _filled(tx: Tx, row: Any) -> ProjectionRow:
    name, kind, state, why, revision, readable, created, updated = row
    return ProjectionRow(
        name=name, kind=kind, state=state, why=why, revision=revision, readable=bool(readable),
        created_at=moment(created), updated_at=moment(updated),
        indexes=tuple(_index(one) for one in tx.rows("projection_indexes", projection=name)),
    )  # fmt: skip


def _index(row: Any) -> IndexRow:
    name, generation, role, written, phase, position, step, copied, expected, rejected, created = row
    return IndexRow(
        name=name, generation=generation, role=role, written=bool(written), phase=phase, position=position, step=step,
        copied=copied, expected=expected, rejected=rejected, created_at=moment(created),
    )  # fmt: skip


def _locked(tx: Tx, name: str) -> ProjectionRow:
    if (found := _get(tx, name, "lock_projection")) is None:
        raise NotThere(f"there is no projection {name!r}", hint="`todoku projection list` names them")
    return found


def _checked(found: ProjectionRow, kind: str) -> ProjectionRow:
    if found.kind != kind:
        raise InvalidAct(
            f"the projection {found.name!r} is a {found.kind}, not a {kind}",
            hint=f"give the new one another name, or remove the old one: `todoku projection drop {found.name} --all`",
        )
    return found


def _refuse_third(found: ProjectionRow) -> None:
    if (building := found.of("building")) is not None:
        raise InvalidAct(f"{building.name} is being built already", hint="`todoku projection rebuild` goes on with it")
    if (kept := found.of("kept")) is not None:
        raise InvalidAct(
            f"{kept.name} is still kept for `switch --back`",
            hint=f"drop it first: `todoku projection drop {found.name} --index {kept.name}`",
        )


def _set(tx: Tx, found: ProjectionRow, *, raised: bool = False, **changed: Any) -> None:
    values = {"state": found.state, "why": found.why, "readable": found.readable, **changed}
    tx.rows("set_projection", name=found.name, raised=int(raised), **values)


def _set_index(tx: Tx, name: str, index: IndexRow, **changed: Any) -> None:
    values = {"role": index.role, "written": index.written, "phase": index.phase, **changed}
    tx.rows("set_projection_index", projection=name, name=index.name, **values)


def _audit(tx: Tx, signed: Signed, action: str, name: str) -> None:
    tx.rows("audit", by=signed.by, why=signed.why, action=action, targets=[f"projection:{name}"])
