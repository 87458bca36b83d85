"""Schedules: list, create, pause, resume, run now, delete."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Meta

from todoku.api.admin.operation import operation
from todoku.api.admin.parameters import ByName, Moment, Parameters, Reasoned, Text, in_utc
from todoku.api.problem import Refused
from todoku.api.request_context import RequestContext
from todoku.engine.schedule_words import Language, schedule_in_words
from todoku.engine.schedules import Schedule


class Slot(msgspec.Struct, frozen=True):
    """A time at which a schedule fires: in UTC, and on the clocks of the schedule's time zone (null: an interval)."""

    at: datetime
    local: str | None


class ListedSchedule(Schedule, frozen=True, kw_only=True):
    """A schedule, with its times in words and its next five slots."""

    words: str
    slots: tuple[Slot, ...]


class Schedules(msgspec.Struct, frozen=True):
    """Schedules by name."""

    items: tuple[ListedSchedule, ...]


class SchedulesQuery(Parameters, frozen=True, kw_only=True):
    """The language of `words`."""

    language: Language = "en"


class NewSchedule(Reasoned, frozen=True, kw_only=True):
    """The message to publish and its times: `cron` in the time zone `tz`, or `every` in seconds from `anchor` on.

    `job`: calls this job of the App with `payload` as its named arguments; otherwise publishes `payload` to `topic`.
    """

    name: Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]*$")]
    topic: Text | None = None
    job: Text | None = None
    payload: Any = None
    cron: Text | None = None
    every: Annotated[float, Meta(gt=0, le=366 * 86_400)] | None = None
    tz: Text = "UTC"
    anchor: Moment | None = None
    missed: Literal["skip", "once", "all"] = "once"


class Stored(msgspec.Struct, frozen=True):
    """A stored schedule and its next run."""

    name: str
    next_run_at: datetime


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """A change of a schedule. `message_id`: the message that `run` published."""

    name: str
    did: Literal["pause", "resume", "run", "remove"]
    message_id: UUID | None = None


@operation("GET", "/schedules", access="read")
def list_schedules(context: RequestContext, query: SchedulesQuery) -> Schedules:
    """Lists schedules, both declared in code and stored, with their times in words and their next five slots."""
    return Schedules(tuple(_listed(one, query.language) for one in context.box.schedules.list()))


@operation("POST", "/schedules", access="operate", status=201)
def create_schedule(context: RequestContext, body: NewSchedule, by: str) -> Stored:
    """Stores a schedule, or replaces the stored one of this name."""
    target, payload = _target(context, body)
    next_run_at = context.box.schedules.add(
        body.name,
        target,
        payload,
        by=by,
        why=body.why,
        cron=body.cron,
        every=body.every,
        tz=body.tz,
        anchor=in_utc(body.anchor, "anchor"),
        missed=body.missed,
    )
    return Stored(body.name, next_run_at)


@operation("POST", "/schedules/{name:path}/pause", access="operate")
def pause_schedule(context: RequestContext, where: ByName, body: Reasoned, by: str) -> Changed:
    """Pauses a schedule until it is resumed."""
    context.box.schedules.pause(where.name, by=by, why=body.why)
    return Changed(name=where.name, did="pause")


@operation("POST", "/schedules/{name:path}/resume", access="operate")
def resume_schedule(context: RequestContext, where: ByName, body: Reasoned, by: str) -> Changed:
    """Resumes a schedule, from its next slot on."""
    context.box.schedules.resume(where.name, by=by, why=body.why)
    return Changed(name=where.name, did="resume")


@operation("POST", "/schedules/{name:path}/run", access="operate")
def run_schedule(context: RequestContext, where: ByName, body: Reasoned, by: str) -> Changed:
    """Publishes one message of a schedule now; its next run does not change."""
    message = context.box.schedules.run_now(where.name, by=by, why=body.why)
    return Changed(name=where.name, did="run", message_id=None if message is None else message.id)


@operation("DELETE", "/schedules/{name:path}", access="operate")
def delete_schedule(context: RequestContext, where: ByName, query: Reasoned, by: str) -> Changed:
    """Deletes a stored schedule, or one that code no longer declares."""
    context.box.schedules.remove(where.name, by=by, why=query.why)
    return Changed(name=where.name, did="remove")


def _listed(one: Schedule, language: Language) -> ListedSchedule:
    zone = None if one.tz is None else ZoneInfo(one.tz)
    return ListedSchedule(
        **msgspec.structs.asdict(one),
        words=schedule_in_words(one.when, one.every, language),
        slots=tuple(Slot(at, None if zone is None else at.astimezone(zone).isoformat()) for at in one.upcoming),
    )


def _target(context: RequestContext, body: NewSchedule) -> tuple[Any, object]:
    """Returns the topic and payload of an event, or the call of a job and None."""
    if (body.topic is None) == (body.job is None):
        raise Refused(422, "exactly one of `topic` and `job` is required", hint="give one of them")
    if body.job is None:
        return body.topic, body.payload
    arguments = {} if body.payload is None else body.payload
    if not isinstance(arguments, dict):
        raise Refused(422, "the `payload` of a job must be an object", hint="give the job's arguments by name")
    return context.box.jobs[body.job].call(**arguments), None


OPERATIONS: Final = (
    list_schedules,
    create_schedule,
    pause_schedule,
    resume_schedule,
    run_schedule,
    delete_schedule,
)
