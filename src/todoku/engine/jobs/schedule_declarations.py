"""Schedules as an App declares them: `@box.cron`, `@box.every`, `box.schedule`. Its workers store and announce them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Unpack, cast

from todoku.core.errors import InvalidSetting
from todoku.core.outcome import Duration
from todoku.core.schedule import Missed, Plan, When, policy, timing
from todoku.core.settings import Settings
from todoku.engine.jobs.declarations import Declarations, Declare
from todoku.engine.jobs.job import Call, Job
from todoku.engine.jobs.options import JobOptions
from todoku.engine.outbox import Outbox
from todoku.engine.publish import MessageOptions
from todoku.engine.schedule import Timing, checked_name, plan, timed
from todoku.engine.schedules import Schedules


class TimedOptions(JobOptions, total=False):
    """The keywords of `@box.cron` and `@box.every`: those of a job, and what the schedule wants to know."""

    name: str | None
    missed: Missed
    args: Sequence[Any]
    kwargs: Mapping[str, Any] | None


_OWN: Final = TimedOptions.__optional_keys__ - JobOptions.__optional_keys__


class TimedDeclarations(Declarations):
    """Declarations, and when some of them happen by themselves."""

    def __init__(self, outbox: Outbox, settings: Settings) -> None:
        super().__init__(outbox, settings)
        self.schedules = Schedules(outbox, self._plan)
        self.plans: dict[str, Plan] = {}
        """What was declared here, by the name of the schedule."""

    def cron(self, expression: str, *, tz: str = "UTC", **options: Unpack[TimedOptions]) -> Declare:
        """Call a function by a cron expression on the clocks of `tz`: `@box.cron("0 9 * * *", tz="Asia/Tokyo")`.

        The function becomes a job with these options, and is called with `args` and `kwargs`; what is a job already is
        only scheduled. `name` is the schedule's, and that of a job made here. `missed`: of slots that nobody fired in
        time "skip" fires none, "once" one for all of them, "all" each. `ctx.scheduled_at` is the slot.
        """
        return self._timed(timing(expression, None, tz), options)

    def every(self, duration: Duration, *, anchor: datetime | None = None, **options: Unpack[TimedOptions]) -> Declare:
        """Call a function at an interval: `@box.every(60)`, `@box.every(timedelta(hours=6))`. As `cron` otherwise.

        Slots are counted from `anchor` (the beginning of 1970, UTC), so a restart does not move them.
        """
        return self._timed(timing(None, duration, anchor=anchor), options)

    def schedule(self, name: str, what: Any, payload: object = None, **when: Unpack[Timing]) -> None:
        """Declare a schedule for a job, a call of one (`job.call(…)`), an event, or a topic with its payload.

        `cron` (and `tz`) or `every` (and `anchor`) say when. The routes of an event are those declared before it.
        """
        self._declare(name, what, payload, *timed(**when))

    # ------------------------------------------------------------------------------------------- inside

    def _timed(self, when: When, options: TimedOptions) -> Declare:
        own = {option: options[option] for option in _OWN & options.keys()}  # type: ignore[literal-required]
        rest = cast("JobOptions", {option: value for option, value in options.items() if option not in _OWN})
        name, missed = own.get("name"), policy(own.get("missed", "once"))

        def declared(function: Callable[..., Any]) -> Job[..., Any]:
            if isinstance(function, Job):
                if rest:
                    raise InvalidSetting("a job has its own options", hint="say them where the job is declared")
                job: Job[..., Any] = function
            else:
                job = self._job(function, name, rest)
            call = job.call(*own.get("args", ()), **(own.get("kwargs") or {}))
            self._declare(name or job.name, call, None, when, missed)
            return job

        return cast("Declare", declared)

    def _declare(self, name: str, what: Any, payload: object, when: When, missed: Missed) -> None:
        if checked_name(name) in self.plans:
            raise InvalidSetting(f"there are two schedules named {name!r}", hint="give one of them another name=")
        self.plans[name] = self._plan(what, payload, when, missed)

    def _plan(self, what: Any, payload: object, when: When, missed: Missed) -> Plan:
        """The plan of a schedule; what cannot be published is refused here, and nothing is stored."""
        if isinstance(what, Job):
            what = what.call()
        if isinstance(what, Call):
            if payload is not None:
                raise InvalidSetting("a call has its own payload", hint="schedule(name, job.call(…)), without payload")
            return plan(what.draft(), what.payload, what.options, when, missed)
        topic, body, key = self._events.split(what, payload)
        return plan(self.outbox.draft(topic, body, MessageOptions(key=key), self._routes), body, {}, when, missed)
