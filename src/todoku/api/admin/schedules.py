"""Schedules: list, store, pause and resume, run now, remove."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, Literal
from uuid import UUID

import msgspec
from msgspec import Meta

from todoku.api.admin.operation import operation
from todoku.api.admin.parameters import ByName, Moment, Reasoned, Text, at
from todoku.api.problem import Refused
from todoku.api.request_context import RequestContext
from todoku.engine.schedules import Schedule


class Schedules(msgspec.Struct, frozen=True):
    """Schedules by name."""

    items: tuple[Schedule, ...]


class NewSchedule(Reasoned, frozen=True, kw_only=True):
    """What is published, and when: by `cron` on the clocks of `tz`, or `every` so many seconds from `anchor` on.

    `job`: call a job of the App with `payload` as its arguments by name; else `topic` and `payload` are an event.
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
    """A schedule that was stored, and its next slot."""

    name: str
    next_run_at: datetime


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """What was done to a schedule. `message_id`: of what was published by it now."""

    name: str
    did: Literal["pause", "resume", "run", "remove"]
    message_id: UUID | None = None


@operation("GET", "/schedules", access="read")
def list_schedules(context: RequestContext) -> Schedules:
    """Schedules, those that code declares and those that were stored."""
    return Schedules(context.box.schedules.list())


@operation("POST", "/schedules", access="operate", status=201)
def create_schedule(context: RequestContext, body: NewSchedule, by: str) -> Stored:
    """Store a schedule, or change the one that was stored under this name."""
    what, payload = _what(context, body)
    following = context.box.schedules.add(
        body.name,
        what,
        payload,
        by=by,
        why=body.why,
        cron=body.cron,
        every=body.every,
        tz=body.tz,
        anchor=at(body.anchor, "anchor"),
        missed=body.missed,
    )
    return Stored(body.name, following)


@operation("POST", "/schedules/{name:path}/pause", access="operate")
def pause_schedule(context: RequestContext, where: ByName, body: Reasoned, by: str) -> Changed:
    """Let a schedule fire nothing until it is resumed."""
    context.box.schedules.pause(where.name, by=by, why=body.why)
    return Changed(name=where.name, did="pause")


@operation("POST", "/schedules/{name:path}/resume", access="operate")
def resume_schedule(context: RequestContext, where: ByName, body: Reasoned, by: str) -> Changed:
    """Let a schedule fire again, from its next slot on."""
    context.box.schedules.resume(where.name, by=by, why=body.why)
    return Changed(name=where.name, did="resume")


@operation("POST", "/schedules/{name:path}/run", access="operate")
def run_schedule(context: RequestContext, where: ByName, body: Reasoned, by: str) -> Changed:
    """Publish one message of a schedule now; its slots stay as they are."""
    message = context.box.schedules.run_now(where.name, by=by, why=body.why)
    return Changed(name=where.name, did="run", message_id=None if message is None else message.id)


@operation("DELETE", "/schedules/{name:path}", access="operate")
def delete_schedule(context: RequestContext, where: ByName, query: Reasoned, by: str) -> Changed:
    """Remove a schedule that was stored, or that no code declares any more."""
    context.box.schedules.remove(where.name, by=by, why=query.why)
    return Changed(name=where.name, did="remove")


def _what(context: RequestContext, body: NewSchedule) -> tuple[Any, object]:
    """What is published by it: an event, or a call of a job."""
    if (body.topic is None) == (body.job is None):
        raise Refused(422, "either `topic` or `job` says what is published", hint="give one of both")
    if body.job is None:
        return body.topic, body.payload
    given = {} if body.payload is None else body.payload
    if not isinstance(given, dict):
        raise Refused(422, "the `payload` of a job is an object", hint="its arguments, by name")
    return context.box.jobs[body.job].call(**given), None


OPERATIONS: Final = (
    list_schedules,
    create_schedule,
    pause_schedule,
    resume_schedule,
    run_schedule,
    delete_schedule,
)
