"""The schedules of an App's database, `box.schedules`: the one module behind Python, the command line and HTTP.

Each act is signed and leaves an audit row; with `dry_run` it only checks whether it could be done.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final, Unpack
from uuid import UUID

import msgspec

from todoku.core.errors import InvalidAct, InvalidSetting, NotThere
from todoku.core.message import Draft, Message
from todoku.core.schedule import Cron, Every, Missed, Plan, When, next_after, slots
from todoku.engine.http.request_schedules import expand_groups
from todoku.engine.operations import sign
from todoku.engine.outbox import Outbox
from todoku.engine.schedule import Timing, checked_name, decoded, message, stored, timed
from todoku.engine.twins import asynchronous, blocking, in_thread
from todoku.store.audit import Signed
from todoku.store.columns import moment
from todoku.store.schedules import Put, ReadGroups, ScheduleRow

MakePlan = Callable[[Any, object, Any, Missed], Plan]
"""(what, payload, when, missed) → plan, by the jobs and routes that an App declares."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule, for people. Times are in UTC; `tz` is the time zone of its cron expression.

    `source`: "code" (an App declares it) or "stored" (stored at run time). `declared`: False if no App declares it any
    more, and it no longer fires. `overdue`: for how many seconds its next slot has been due. `upcoming`: its next five
    slots; of a paused one, those if it were resumed now. `missed_slots`: how many slots its policy `missed` has not
    fired, in all; `missed_last` of them at `missed_at`. `every`: the seconds of an interval; None: it has a cron
    expression.
    """

    name: str
    when: str
    tz: str | None
    missed: str
    topic: str
    destinations: tuple[str, ...]
    source: str
    declared: bool
    paused: bool
    next_run_at: datetime | None
    last_run_at: datetime | None
    last_message_id: UUID | None
    overdue: float
    error: str | None
    every: float | None = None
    upcoming: tuple[datetime, ...] = ()
    missed_slots: int = 0
    missed_last: int = 0
    missed_at: datetime | None = None


class Schedules:
    """The schedules of an App's database, `box.schedules`. Every call has an async form, `a…`."""

    def __init__(self, outbox: Outbox, plan: MakePlan) -> None:
        self._outbox = outbox
        self._plan = plan

    @blocking("box.schedules")
    async def list(self) -> tuple[Schedule, ...]:
        """Returns all schedules, by name."""
        return tuple(map(self._shown, await in_thread(self._outbox.store.schedules.rows)))

    alist = asynchronous(list)  # noqa: A003 - the method above

    @blocking("box.schedules")
    async def get(self, name: str) -> Schedule:
        """Returns one schedule. NotThere: there is none of this name."""
        return self._shown(await in_thread(self._there, name))

    aget = asynchronous(get)

    @blocking("box.schedules")
    async def add(
        self, name: str, what: Any, payload: object = None, *, by: str, why: str, dry_run: bool = False,
        **when: Unpack[Timing],
    ) -> datetime:  # fmt: skip
        """Stores a schedule, or changes the stored one of this name; returns its next slot.

        `what` is a job, a call of one (`job.call(…)`), or an event or a topic with its payload. `cron` (and `tz`) or
        `every` (and `anchor`) say when, `missed` as in `box.cron`. Any worker on the database fires it until it is
        removed. A schedule that code declares is refused with InvalidAct: change it in the code.
        """
        plan = self._plan(what, payload, *timed(**when))
        return await in_thread(self._add, name, plan, sign(by, why), dry_run=dry_run)

    aadd = asynchronous(add)

    @blocking("box.schedules")
    async def remove(self, name: str, *, by: str, why: str, dry_run: bool = False) -> None:
        """Removes a stored schedule, or one that code no longer declares. The messages it has published stay."""
        await in_thread(self._remove, name, sign(by, why), dry_run=dry_run)

    aremove = asynchronous(remove)

    @blocking("box.schedules")
    async def pause(self, name: str, *, by: str, why: str, dry_run: bool = False) -> None:
        """Stops its firing until it is resumed; a new declaration in code does not resume it."""
        await in_thread(self._pause, name, sign(by, why), paused=True, dry_run=dry_run)

    apause = asynchronous(pause)

    @blocking("box.schedules")
    async def resume(self, name: str, *, by: str, why: str, dry_run: bool = False) -> None:
        """Lets it fire again, from its next slot on; the slots during the pause are not fired."""
        await in_thread(self._pause, name, sign(by, why), paused=False, dry_run=dry_run)

    aresume = asynchronous(resume)

    @blocking("box.schedules")
    async def run_now(self, name: str, *, by: str, why: str, dry_run: bool = False) -> Message | None:
        """Publishes one message of it at once, paused or not; its slots stay as they are. None: `dry_run`."""
        return await in_thread(self._run_now, name, sign(by, why), dry_run=dry_run)

    arun_now = asynchronous(run_now)

    # ------------------------------------------------------------------------------------------- inside

    def _add(self, name: str, plan: Plan, who: Signed, *, dry_run: bool = False) -> datetime:
        put = stored(plan)

        def make(row: ScheduleRow | None, now: datetime) -> Put | None:
            if row is not None and row.source == "code" and self._kept(row):
                raise InvalidAct(f"the schedule {name!r} is declared by an App", hint="change it there, or pause it")
            return put(row, now)

        store = self._outbox.store
        if dry_run:
            make(self._found(checked_name(name)), moment(store.ping()))
        else:
            store.schedules.put(checked_name(name), make, who, action="schedule")
        return next_after(plan.when, moment(store.ping()))

    def _remove(self, name: str, who: Signed, *, dry_run: bool = False) -> None:
        def check(row: ScheduleRow) -> None:
            if row.source == "code" and self._kept(row):
                hint = "take it out of the code, or pause it; a worker would declare it again"
                raise InvalidAct(f"the schedule {name!r} is declared by an App", hint=hint)

        if dry_run:
            check(self._there(name))
        else:
            self._outbox.store.schedules.remove(name, check, who)

    def _pause(self, name: str, who: Signed, *, paused: bool, dry_run: bool = False) -> None:
        def next_run_at(row: ScheduleRow) -> datetime | None:
            return next_after(decoded(row.spec).when, row.now) if row.paused and not paused else row.next_run_at

        if dry_run:
            next_run_at(self._there(name))
        else:
            self._outbox.store.schedules.pause(name, next_run_at, who, paused=paused)

    def _run_now(self, name: str, who: Signed, *, dry_run: bool = False) -> Message | None:
        outbox, sealer = self._outbox, self._outbox.sealer
        made: list[Draft] = []

        def make(row: ScheduleRow, groups: ReadGroups) -> tuple[Draft, ...]:
            plan = decoded(row.spec)
            made[:] = [message(name, plan, row.now, sealer.seal, sealer.masters)]
            return expand_groups(tuple(made), groups, sealer=sealer, body=plan.sealed)

        if dry_run:
            make(self._there(name), lambda names: outbox.store.url_groups.all(names=names))
            return None
        published = outbox.store.schedules.run_now(name, make, who, notify=outbox.settings.notify)
        outbox.telemetry.published(made, [published])
        outbox.wake()
        return published

    def _found(self, name: str) -> ScheduleRow | None:
        return next((row for row in self._outbox.store.schedules.rows() if row.name == name), None)

    def _there(self, name: str) -> ScheduleRow:
        if (row := self._found(name)) is None:
            raise NotThere(f"there is no schedule {name!r}", hint="`todoku schedules` lists them")
        return row

    def _kept(self, row: ScheduleRow) -> bool:
        return row.is_served(self._outbox.settings.unknown_after_sec)

    def _shown(self, row: ScheduleRow) -> Schedule:
        error = row.error
        plan: Plan | None = None
        try:
            plan = decoded(row.spec)
        except InvalidSetting as unreadable:
            error = str(unreadable)
        due = row.next_run_at is not None and not row.paused
        return Schedule(
            name=row.name,
            when="?" if plan is None else str(plan.when),
            tz=plan.when.tz if plan is not None and isinstance(plan.when, Cron) else None,
            missed="?" if plan is None else plan.missed,
            topic="?" if plan is None else plan.message.topic,
            destinations=() if plan is None else tuple(leg.destination for leg in plan.message.legs),
            source=row.source,
            declared=self._kept(row),
            paused=row.paused,
            next_run_at=row.next_run_at,
            last_run_at=row.last_run_at,
            last_message_id=row.last_message_id,
            overdue=max(0.0, (row.now - row.next_run_at).total_seconds()) if due and row.next_run_at else 0.0,
            error=error,
            every=plan.when.seconds if plan is not None and isinstance(plan.when, Every) else None,
            upcoming=() if plan is None else _upcoming(plan.when, row),
            missed_slots=row.missed_slots,
            missed_last=row.missed_last,
            missed_at=row.missed_at,
        )


_UPCOMING: Final = 5


def _upcoming(when: When, row: ScheduleRow) -> tuple[datetime, ...]:
    first = next_after(when, row.now) if row.paused or row.next_run_at is None else row.next_run_at
    return tuple(islice(slots(when, first, _FAR), _UPCOMING))


_FAR: Final = datetime.max.replace(tzinfo=UTC)
