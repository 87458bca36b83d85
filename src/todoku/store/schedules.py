"""Stored schedules. The messages of a slot and the advance to the next slot are one commit (I2), so each slot fires
once, however many workers check the schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Literal
from uuid import UUID

import msgspec

from todoku.core.errors import NotThere
from todoku.core.message import Draft, Message
from todoku.store.audit import Signed
from todoku.store.columns import moment, moment_or_none, uuid_or_none
from todoku.store.database import Database, Tx, run_steps
from todoku.store.publish import Publishing, publish
from todoku.store.url_groups import GroupRow, read_groups

Source = Literal["code", "stored"]


class ScheduleRow(msgspec.Struct, frozen=True, kw_only=True):
    """A stored schedule; `spec` is the JSON text of its plan, `now` the database's clock."""

    name: str
    spec: str
    next_run_at: datetime | None
    paused: bool
    source: Source
    seen_at: datetime | None
    last_run_at: datetime | None
    last_message_id: UUID | None
    error: str | None
    updated_at: datetime
    now: datetime
    missed_slots: int = 0
    """How many slots its policy has not fired, in all; `missed_last` of them at `missed_at`."""
    missed_last: int = 0
    missed_at: datetime | None = None

    def is_served(self, after: float) -> bool:
        """Whether it fires: it is stored by an operator, or a worker announced it in the last `after` seconds."""
        return self.source == "stored" or (
            self.seen_at is not None and (self.now - self.seen_at).total_seconds() < after
        )


class NextSlot(msgspec.Struct, frozen=True):
    """The database's clock, the earliest slot of all schedules (None: no slot), and whether any schedule exists."""

    now: float
    next: float | None
    any: bool


class Firing(msgspec.Struct, frozen=True):
    """The messages a schedule publishes for `slots`, the number of missed slots, and the slot after them."""

    drafts: tuple[Draft, ...]
    slots: tuple[datetime, ...]
    passed: int
    next: datetime


class Fired(msgspec.Struct, frozen=True):
    """A firing and the messages it published."""

    name: str
    firing: Firing
    messages: tuple[Message, ...]


class Put(msgspec.Struct, frozen=True):
    """The new definition of a schedule."""

    spec: str
    next_run_at: datetime
    source: Source


ReadGroups = Callable[[Sequence[str]], tuple[GroupRow, ...]]
"""Reads URL groups by name, in the transaction that fires the schedule."""


class ScheduleStore:
    """The schedules of one database. Callbacks are called inside the transaction, with the row locked."""

    def __init__(self, database: Database) -> None:
        self._database = database

    # ------------------------------------------------------------------------------------------- firing

    def read_next_slot(self, *, after: float) -> NextSlot:
        """Returns the next slot. Declared schedules that no worker announced for `after` seconds do not count."""
        ((now, following, some),) = self._database.read(lambda tx: tx.rows("next_schedule", after=after))
        return NextSlot(now, following, bool(some))

    def fire(
        self,
        make: Callable[[ScheduleRow, ReadGroups], Firing],
        *,
        after: float,
        notify: bool,
        skip: Sequence[str] = (),
    ) -> Fired | None:
        """Fires the schedule that has been due longest, except those in `skip`. None: none is due or unlocked."""

        def work(tx: Tx) -> Fired | None:
            for row in tx.rows("due_schedule", after=after, but=list(skip)):
                found = _row(row)
                firing = make(found, partial(read_groups, tx))
                messages = self._publish(tx, firing.drafts, notify=notify)
                tx.rows(
                    "advance_schedule",
                    name=found.name,
                    next=firing.next,
                    slot=firing.slots[-1] if firing.slots else None,
                    message_id=messages[-1].id if messages else None,
                    missed=firing.passed,
                )
                return Fired(found.name, firing, tuple(messages))
            return None

        return self._database.write("fire", work)

    def record_failure(self, name: str, error: str) -> None:
        """Records why a schedule could not be fired; its slot stays due."""
        self._database.write("fail_schedule", lambda tx: tx.rows("fail_schedule", name=name, error=error))

    # ---------------------------------------------------------------------------------------- declaring

    def declare(self, makes: Mapping[str, Callable[[ScheduleRow | None, datetime], Put | None]]) -> None:
        """Stores the schedules an App declares, and announces them.

        Each callback gets the stored row and the time, and returns the new definition; None: unchanged.
        """

        def work(tx: Tx) -> None:
            for name, make in sorted(makes.items()):
                _put(tx, name, make)
            tx.rows("announce_schedules", names=sorted(makes))

        if makes:
            self._database.write("declare_schedules", work)

    def announce(self, names: Sequence[str]) -> None:
        """Records that a worker still declares these schedules."""
        if names:
            self._database.write("announce", lambda tx: tx.rows("announce_schedules", names=sorted(names)))

    # ------------------------------------------------------------------------------- acts of operators

    def put(
        self, name: str, make: Callable[[ScheduleRow | None, datetime], Put | None], signed: Signed, *, action: str
    ) -> None:
        """Creates or changes a schedule."""

        def work(tx: Tx) -> None:
            _put(tx, name, make)
            _audit(tx, name, signed, action)

        self._database.write("put_schedule", work)

    def pause(
        self, name: str, next_run_at: Callable[[ScheduleRow], datetime | None], signed: Signed, *, paused: bool
    ) -> None:
        """Pauses or resumes a schedule. `next_run_at` returns the slot that is next from then on."""

        def work(tx: Tx) -> None:
            tx.rows("pause_schedule", name=name, paused=paused, next=next_run_at(_lock(tx, name)))
            _audit(tx, name, signed, "pause" if paused else "resume")

        self._database.write("pause_schedule", work)

    def remove(self, name: str, check: Callable[[ScheduleRow], None], signed: Signed) -> None:
        """Removes a schedule, unless `check` raises."""

        def work(tx: Tx) -> None:
            check(_lock(tx, name))
            tx.rows("remove_schedule", name=name)
            _audit(tx, name, signed, "remove")

        self._database.write("remove_schedule", work)

    def run_now(
        self,
        name: str,
        make: Callable[[ScheduleRow, ReadGroups], tuple[Draft, ...]],
        signed: Signed,
        *,
        notify: bool,
    ) -> Message:
        """Publishes the messages of a schedule now, even if it is paused; its slots stay. Returns the last one."""

        def work(tx: Tx) -> Message:
            row = _lock(tx, name)
            drafts = make(row, partial(read_groups, tx))
            *_, message = self._publish(tx, drafts, notify=notify)
            tx.rows("advance_schedule", name=name, next=row.next_run_at, slot=row.now, message_id=message.id, missed=0)
            _audit(tx, name, signed, "run now")
            return message

        return self._database.write("run_schedule", work)

    # ------------------------------------------------------------------------------------------ reading

    def rows(self) -> tuple[ScheduleRow, ...]:
        """All schedules, by name."""
        return tuple(map(_row, self._database.read(lambda tx: tx.rows("schedules"))))

    # ------------------------------------------------------------------------------------------- inside

    def _publish(self, tx: Tx, drafts: Sequence[Draft], *, notify: bool) -> list[Message]:
        database = self._database
        to = Publishing(database.dialect, database.queries, database.now(), notify)
        return run_steps(tx, publish(to, drafts)) if drafts else []


def _put(tx: Tx, name: str, make: Callable[[ScheduleRow | None, datetime], Put | None]) -> None:
    found = [_row(row) for row in tx.rows("lock_schedule", name=name)]
    now = found[0].now if found else moment(tx.rows("clock")[0][0])
    if (put := make(found[0] if found else None, now)) is not None:
        tx.rows("put_schedule", name=name, spec=put.spec, next=put.next_run_at, source=put.source)


def _lock(tx: Tx, name: str) -> ScheduleRow:
    for row in tx.rows("lock_schedule", name=name):
        return _row(row)
    raise NotThere(f"there is no schedule {name!r}", hint="`todoku schedules` lists them")


def _audit(tx: Tx, name: str, signed: Signed, action: str) -> None:
    tx.rows("audit", by=signed.by, why=signed.why, action=action, targets=[f"schedule:{name}"])


def _row(row: Any) -> ScheduleRow:
    name, spec, next_run_at, paused, source, seen_at, last_run_at, last_id, error, updated_at, now, *missed = row
    missed_slots, missed_last, missed_at = missed
    return ScheduleRow(
        name=name,
        spec=spec,
        next_run_at=moment_or_none(next_run_at),
        paused=bool(paused),
        source=source,
        seen_at=moment_or_none(seen_at),
        last_run_at=moment_or_none(last_run_at),
        last_message_id=uuid_or_none(last_id),
        error=error,
        updated_at=moment(updated_at),
        now=moment(now),
        missed_slots=missed_slots,
        missed_last=missed_last,
        missed_at=moment_or_none(missed_at),
    )
