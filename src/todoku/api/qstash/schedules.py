"""`/v2/schedules`."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from todoku.api.body import read_body
from todoku.api.qstash.answers import (
    ScheduleBody,
    empty_response,
    json,
    milliseconds_or_none,
    number,
    request_fields,
)
from todoku.api.qstash.parsing import (
    caller_ip,
    option_fields,
    raw_query,
    raw_rest,
    refuse_query_and_body,
    segment,
    signed,
)
from todoku.api.qstash.publish import build_request
from todoku.api.request_context import RequestContext
from todoku.app import new_id
from todoku.core.address import address
from todoku.core.duration import milliseconds
from todoku.core.errors import InvalidMessage
from todoku.core.upstash_headers import parse_options
from todoku.engine.http import request_schedules
from todoku.engine.http.request_schedules import HttpSchedule


class ScheduleEndpoints:
    """The endpoints of schedules."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context

    async def create(self, request: Request) -> Response:
        """Creates a schedule, or replaces the one of this id."""
        given = option_fields(request)
        options = parse_options(given, now=datetime.now(UTC), caller_ip=caller_ip(request), scheduled=True)
        to = address(raw_rest(request, "/v2/schedules/"), raw_query(request))
        if options.when is None:
            raise InvalidMessage("Upstash-Cron is missing", hint="send it, such as Upstash-Cron: 0 9 * * *")
        if options.at is not None:
            raise InvalidMessage("Upstash-Not-Before is not allowed for schedules", hint="Upstash-Cron sets the time")
        id = options.schedule_id or f"scd_{new_id().hex}"
        post = build_request(options, to, given.get("upstash-queue-name"), {})
        body = await read_body(request, limit=self._context.settings.max_payload_bytes)
        post = msgspec.structs.replace(post, request=msgspec.structs.replace(post.request, schedule=id), body=body)
        who = signed(request, "schedule")
        await asyncio.to_thread(request_schedules.put, self._context.outbox, id, post, options.when, who)
        return json({"scheduleId": id})

    def list_all(self, _: Request) -> Response:
        """Lists all schedules."""
        masters = self._context.settings.master_keys
        return json([_body(each) for each in request_schedules.list_schedules(self._context.store, masters)])

    def get(self, request: Request) -> Response:
        """Returns one schedule."""
        masters = self._context.settings.master_keys
        return json(_body(request_schedules.get(self._context.store, segment(request, "id"), masters)))

    def remove(self, request: Request) -> Response:
        """Removes a schedule; the messages it has published stay."""
        refuse_query_and_body(request)
        who = signed(request, "delete")
        self._context.box.schedules.remove(self._name(request), by=who.by, why=who.why)
        return empty_response()

    def pause(self, request: Request) -> Response:
        """Pauses a schedule."""
        who = signed(request, "pause")
        self._context.box.schedules.pause(self._name(request), by=who.by, why=who.why)
        return empty_response()

    def resume(self, request: Request) -> Response:
        """Resumes a schedule, from its next slot on."""
        who = signed(request, "resume")
        self._context.box.schedules.resume(self._name(request), by=who.by, why=who.why)
        return empty_response()

    def _name(self, request: Request) -> str:
        return request_schedules.name_of(self._context.store, segment(request, "id"))


_STATES: Final = {"succeeded": "SUCCESS", "aborted": "FAIL"}


def _body(schedule: HttpSchedule) -> ScheduleBody:
    zone = "" if schedule.when.tz == "UTC" else f"CRON_TZ={schedule.when.tz} "
    return ScheduleBody(
        destination=schedule.destination,
        cron=f"{zone}{schedule.when.expression}",
        created_at=milliseconds(schedule.created_at),
        retries=schedule.request.retries,
        is_paused=schedule.paused,
        delay=number(schedule.delay) if schedule.delay else None,
        last_schedule_time=milliseconds_or_none(schedule.last_run_at),
        next_schedule_time=None if schedule.paused else milliseconds_or_none(schedule.next_run_at),
        last_schedule_states=_states(schedule),
        error=schedule.error,
        **request_fields(schedule.request, schedule.body),
    )


def _states(schedule: HttpSchedule) -> dict[str, str] | None:
    if schedule.last_status is None:
        return None
    return {str(schedule.last_message_id): _STATES.get(schedule.last_status, "IN_PROGRESS")}
