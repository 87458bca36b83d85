"""Schedules: list, create, pause, resume, run now, delete."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from todoku.api.admin.operation import operation
from todoku.api.admin.parameters import ByName, Moment, Reasoned, Text, in_utc
from todoku.api.problem import Refused
from todoku.api.request_context import RequestContext
from todoku.engine.schedules import Schedule


class Schedules(msgspec.Struct, frozen=True):
    """Schedules by name."""

    items: tuple[Schedule, ...]


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
def list_schedules(context: RequestContext) -> Schedules:
    """Lists schedules, both declared in code and stored."""
    return Schedules(context.box.schedules.list())


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
