"""What a person or a program does to schedules at run time: the one module behind Python, the command line and HTTP.

Each act is signed and leaves an audit row; with `dry_run` it only finds out whether it could be done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any, Unpack
from uuid import UUID

import msgspec

from todoku.core.errors import InvalidAct, InvalidSetting, NotThere
from todoku.core.message import Draft, Message
from todoku.core.schedule import Cron, Missed, Plan, next_after
from todoku.engine.http.request_schedules import spread
from todoku.engine.jobs.handle import signed
from todoku.engine.outbox import Outbox, refuse_in_event_loop
from todoku.engine.schedule import Timing, checked_name, decoded, message, stored, timed
from todoku.store.audit import Signed
from todoku.store.columns import moment
from todoku.store.schedules import Put, ReadGroups, ScheduleRow

MakePlan = Callable[[Any, object, Any, Missed], Plan]
"""(what, payload, when, missed) → plan: the App knows its jobs and routes."""


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as people look at it. Times are in UTC; `tz` is where its cron expression is read.

    `source`: "code" (an App declares it) or "stored" (made at run time). `declared`: whether somebody still keeps it;
    one that is not does not fire. `overdue`: for how many seconds its next slot has been due.
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


class Schedules:
    """The schedules of an App's database, `box.schedules`. Every call has an `a…` twin for async code."""

    def __init__(self, outbox: Outbox, plan: MakePlan) -> None:
        self._outbox = outbox
        self._plan = plan

    def list(self) -> tuple[Schedule, ...]:
        """All of them, by name."""
        refuse_in_event_loop("box.schedules.alist()")
        return self._list()

    async def alist(self) -> tuple[Schedule, ...]:
        """As `list`, for async code."""
        return await asyncio.to_thread(self._list)

    def add(
        self, name: str, what: Any, payload: object = None, *, by: str, why: str, dry_run: bool = False,
        **when: Unpack[Timing],
    ) -> datetime:  # fmt: skip
        """Store a schedule, or change the one that was stored under this name; returns its next slot.

        `what` is a job, a call of one (`job.call(…)`), or an event or a topic with its payload. `cron` (and `tz`) or
        `every` (and `anchor`) say when, `missed` as in `box.cron`. It is fired by whatever worker there is, until
        somebody removes it. One that code declares is refused: change it there.
        """
        refuse_in_event_loop("box.schedules.aadd(…)")
        plan = self._plan(what, payload, *timed(**when))
        return self._add(name, plan, signed(by, why), dry_run=dry_run)

    async def aadd(
        self, name: str, what: Any, payload: object = None, *, by: str, why: str, **when: Unpack[Timing]
    ) -> datetime:
        """As `add`, for async code."""
        plan = self._plan(what, payload, *timed(**when))
        return await asyncio.to_thread(self._add, name, plan, signed(by, why))

    def remove(self, name: str, *, by: str, why: str, dry_run: bool = False) -> None:
        """Remove it: one that was stored, or that no code declares any more. What it has published stays."""
        refuse_in_event_loop("box.schedules.aremove(…)")
        self._remove(name, signed(by, why), dry_run=dry_run)

    async def aremove(self, name: str, *, by: str, why: str) -> None:
        """As `remove`, for async code."""
        await asyncio.to_thread(self._remove, name, signed(by, why))

    def pause(self, name: str, *, by: str, why: str, dry_run: bool = False) -> None:
        """Let it fire nothing until it is resumed, whatever code declares meanwhile."""
        refuse_in_event_loop("box.schedules.apause(…)")
        self._pause(name, signed(by, why), paused=True, dry_run=dry_run)

    async def apause(self, name: str, *, by: str, why: str) -> None:
        """As `pause`, for async code."""
        await asyncio.to_thread(self._pause, name, signed(by, why), paused=True)

    def resume(self, name: str, *, by: str, why: str, dry_run: bool = False) -> None:
        """Let it fire again, from the next slot on: those of the pause are not made up for."""
        refuse_in_event_loop("box.schedules.aresume(…)")
        self._pause(name, signed(by, why), paused=False, dry_run=dry_run)

    async def aresume(self, name: str, *, by: str, why: str) -> None:
        """As `resume`, for async code."""
        await asyncio.to_thread(self._pause, name, signed(by, why), paused=False)

    def run_now(self, name: str, *, by: str, why: str, dry_run: bool = False) -> Message | None:
        """Publish one message of it at once, paused or not; its slots stay as they are. None: `dry_run`."""
        refuse_in_event_loop("box.schedules.arun_now(…)")
        return self._run_now(name, signed(by, why), dry_run=dry_run)

    async def arun_now(self, name: str, *, by: str, why: str) -> Message | None:
        """As `run_now`, for async code."""
        return await asyncio.to_thread(self._run_now, name, signed(by, why))

    # ------------------------------------------------------------------------------------------- inside

    def _list(self) -> tuple[Schedule, ...]:
        return tuple(map(self._shown, self._outbox.store.schedules.rows()))

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
            return spread(tuple(made), groups, sealer=sealer, body=plan.sealed)

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
        )
