"""Declared schedules: `@box.cron`, `@box.every`, `box.schedule`. The workers of the App store and announce them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from todoku.core.errors import InvalidSetting
from todoku.core.schedule import Missed, Plan, When, policy
from todoku.engine.jobs.declarations import Declarations, Declare
from todoku.engine.jobs.job import Call, Job
from todoku.engine.jobs.options import JobOptions
from todoku.engine.publish import MessageOptions
from todoku.engine.schedule import checked_name, plan


class TimedOptions(JobOptions, total=False):
    """The keywords of `@box.cron` and `@box.every`: those of a job, and those of the schedule."""

    name: str | None
    missed: Missed
    args: Sequence[Any]
    kwargs: Mapping[str, Any] | None


_OWN: Final = TimedOptions.__optional_keys__ - JobOptions.__optional_keys__


class DeclaredSchedules:
    """The schedules that one App declares. `plans`: by the name of the schedule."""

    def __init__(self, declarations: Declarations) -> None:
        self._declarations = declarations
        self.plans: dict[str, Plan] = {}

    def decorator(self, when: When, options: TimedOptions) -> Declare:
        """Declares a schedule for the decorated function, which becomes a job unless it is one."""
        own = {option: options[option] for option in _OWN & options.keys()}  # type: ignore[literal-required]
        rest = cast("JobOptions", {option: value for option, value in options.items() if option not in _OWN})
        name, missed = own.get("name"), policy(own.get("missed", "once"))

        def declare(function: Callable[..., Any]) -> Job[..., Any]:
            if isinstance(function, Job):
                if rest:
                    raise InvalidSetting("a job has its own options", hint="give them where the job is declared")
                job: Job[..., Any] = function
            else:
                job = self._declarations.job(function, name, rest)
            call = job.call(*own.get("args", ()), **(own.get("kwargs") or {}))
            self.declare(name or job.name, call, None, when, missed)
            return job

        return cast("Declare", declare)

    def declare(self, name: str, what: Any, payload: object, when: When, missed: Missed) -> None:
        """Declares a schedule for a job, a call, an event, or a topic and its payload."""
        if checked_name(name) in self.plans:
            raise InvalidSetting(f"there are two schedules named {name!r}", hint="give one of them another name=")
        self.plans[name] = self.plan(what, payload, when, missed)

    def plan(self, what: Any, payload: object, when: When, missed: Missed) -> Plan:
        """The plan of a schedule. A message that could not be published is refused here, before anything is stored."""
        if isinstance(what, Job):
            what = what.call()
        if isinstance(what, Call):
            if payload is not None:
                raise InvalidSetting("a call has its own payload", hint="schedule(name, job.call(…)), without payload")
            return plan(what.draft(), what.payload, what.options, when, missed)
        declarations = self._declarations
        topic, body, key = declarations.events.split(what, payload)
        draft = declarations.outbox.draft(topic, body, MessageOptions(key=key), declarations.routes)
        return plan(draft, body, {}, when, missed)
