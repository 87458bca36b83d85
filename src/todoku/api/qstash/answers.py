"""Responses as QStash's clients read them. A field that is None is omitted; one without a default is required."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Any, Final

import msgspec
from starlette.responses import Response

from todoku.api.problem import NO_STORE
from todoku.core.control_characters import encode_json
from todoku.core.duration import milliseconds
from todoku.core.http_request import Callback, FlowControl, HttpRequest
from todoku.core.outcome import Response as Received
from todoku.engine.http.dead_letters import RequestDeadLetter
from todoku.engine.http.request_events import HttpEvent
from todoku.engine.http.requests import RequestView

Headers = dict[str, list[str]]


class Accepted(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One published message. `deduplicated`: it was published before, and `message_id` is the id of that message."""

    message_id: str
    url: str
    deduplicated: bool = False


class RequestFields(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """The fields that messages, events and schedules have in common."""

    method: str
    header: Headers | None = None
    body: str | None = None
    body_base64: str | None = msgspec.field(default=None, name="bodyBase64")
    callback: str | None = None
    failure_callback: str | None = None
    callback_header: Headers | None = None
    failure_callback_header: Headers | None = None
    topic_name: str | None = None
    endpoint_name: str | None = None
    queue_name: str | None = None
    schedule_id: str | None = None
    caller_ip: str | None = None
    caller_ip_too: str | None = msgspec.field(default=None, name="callerIP")
    flow_control_key: str | None = None
    parallelism: int | None = None
    rate: int | None = None
    period: float | None = None
    retry_delay_expression: str | None = None
    timeout: float | None = None
    label: str | None = None
    labels: tuple[str, ...] | None = None


class MessageBody(RequestFields, kw_only=True, rename="camel", omit_defaults=True):
    """A message."""

    message_id: str
    url: str
    max_retries: int
    not_before: int
    created_at: int


class DeadBody(MessageBody, kw_only=True, rename="camel", omit_defaults=True):
    """A dead letter. `response_status` is 0 if there was no response; `failed_at` is todoku's own field."""

    dlq_id: str
    failed_at: int
    response_status: int
    response_header: Headers | None = None
    response_body: str | None = None
    response_body_base64: str | None = msgspec.field(default=None, name="responseBodyBase64")
    workflow_run_id: str | None = None
    workflow_url: str | None = None
    workflow_created_at: int | None = None
    failure_callback_info: dict[str, Any] | None = None


class DeadPage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One page of dead letters; the last page has no cursor."""

    messages: list[DeadBody]
    cursor: str | None = None


class ScheduleBody(RequestFields, kw_only=True, rename="camel", omit_defaults=True):
    """A schedule."""

    destination: str
    cron: str
    created_at: int
    retries: int
    is_paused: bool
    delay: float | None = None
    last_schedule_time: int | None = None
    next_schedule_time: int | None = None
    last_schedule_states: dict[str, str] | None = None
    error: str | None = None


class EventBody(RequestFields, kw_only=True, rename="camel", omit_defaults=True):
    """One event of a message. The body is base64. Some fields have two names, since clients read different ones."""

    time: int
    message_id: str
    state: str
    url: str
    max_retries: int
    created_at: int
    error: str | None = None
    next_delivery_time: int | None = None
    response_status: int | None = None
    response_header: Headers | None = None
    response_headers: Headers | None = None
    response_body: str | None = None
    retry_delay_expr: str | None = None
    callback_headers: Headers | None = None
    failure_callback_headers: Headers | None = None


class EventPage(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One page of events, newest first, under both names that clients read; the last page has no cursor."""

    events: list[EventBody]
    logs: list[EventBody]
    cursor: str | None = None


def json(body: object, status: int = 200) -> Response:
    """Returns a JSON response."""
    return Response(encode_json(body), status, dict(NO_STORE), "application/json")


def empty_response() -> Response:
    """Returns a response with an empty object, because some clients parse JSON from every response."""
    return json({})


# ---------------------------------------------------------------------------------------------- resources


def message(found: RequestView) -> MessageBody:
    """Returns the body of a message."""
    return MessageBody(**_message(found))


def dead_letter(found: RequestDeadLetter, callback: RequestDeadLetter | None = None) -> DeadBody:
    """Returns the body of a dead letter with the last response of its receiver.

    `callback`: its failure callback, which is a dead letter itself.
    """
    return DeadBody(
        dlq_id=found.id,
        failed_at=milliseconds(found.request.delivery.updated_at),
        **_message(found.request),
        **response(found.response),
        **_run(found.request.request),
        failure_callback_info=None if callback is None else _failed_callback(callback),
    )


def _failed_callback(found: RequestDeadLetter) -> dict[str, Any]:
    received = response(found.response)
    return {
        "state": "CALLBACK_FAIL",
        "responseStatus": received["response_status"],
        "responseBody": received.get("response_body"),
        "responseHeaders": received.get("response_header"),
    }


def _run(request: HttpRequest) -> dict[str, Any]:
    if request.run is None:
        return {}
    url = request.headers.get("Upstash-Workflow-Url", request.url)
    return {"workflow_run_id": request.run.id, "workflow_url": url, "workflow_created_at": request.run.created_at}


def event(found: HttpEvent) -> EventBody:
    """Returns the body of an event."""
    request, received = found.request, found.response
    fields = request_fields(request, None)
    received_headers = None if received is None else headers(received.headers)
    return EventBody(
        time=milliseconds(found.at),
        message_id=str(found.message_id),
        state=found.state,
        url=request.url,
        max_retries=request.retries,
        created_at=milliseconds(found.created_at),
        error=found.error,
        next_delivery_time=milliseconds_or_none(found.next_at),
        response_status=None if received is None else received.status,
        response_header=received_headers,
        response_headers=received_headers,
        response_body=None if received is None else received.body.decode(errors="replace"),
        retry_delay_expr=request.retry_delay,
        callback_headers=fields["callback_header"],
        failure_callback_headers=fields["failure_callback_header"],
        **fields,
    )


def _message(found: RequestView) -> dict[str, Any]:
    return {
        "message_id": str(found.message_id),
        "url": found.request.url,
        "max_retries": found.request.retries,
        "not_before": milliseconds(found.delivery.next_run_at),
        "created_at": milliseconds(found.created_at),
        **request_fields(found.request, found.body),
    }


# ------------------------------------------------------------------------------------------------ parts


def request_fields(request: HttpRequest, body: bytes | None) -> dict[str, Any]:
    """Returns the fields of `RequestFields`. The request is already redacted (core.redaction)."""
    text, encoded = _text_or_base64(body)
    return {
        "method": request.method,
        "header": headers(request.headers),
        "body": text,
        "body_base64": encoded,
        **_callbacks(request),
        "topic_name": request.group,
        "endpoint_name": request.endpoint,
        "queue_name": request.queue,
        "schedule_id": request.schedule,
        "caller_ip": request.caller_ip,
        "caller_ip_too": request.caller_ip,
        **_flow(request.flow),
        "retry_delay_expression": request.retry_delay,
        "timeout": None if request.timeout is None else number(request.timeout),
        "label": request.labels[0] if request.labels else None,
        "labels": request.labels or None,
    }


def response(received: Received | None) -> dict[str, Any]:
    """Returns a receiver's response as fields of a dead letter."""
    if received is None:
        return {"response_status": 0}
    text, encoded = _text_or_base64(received.body)
    return {
        "response_status": received.status,
        "response_header": headers(received.headers),
        "response_body": text,
        "response_body_base64": encoded,
    }


def headers(given: dict[str, str]) -> Headers | None:
    """Returns headers with a list of values each, as Go's `http.Header`."""
    return {name: [value] for name, value in given.items()} or None


def milliseconds_or_none(moment: datetime | None) -> int | None:
    """Like `milliseconds`; None stays None."""
    return None if moment is None else milliseconds(moment)


def number(value: float) -> float:
    """Returns the number, as an int if it is whole."""
    return int(value) if float(value).is_integer() else value


_FLOWS: Final = ("flow_control_key", "parallelism", "rate", "period")


def _flow(flow: FlowControl | None) -> dict[str, Any]:
    if flow is None:
        return {}
    return dict(zip(_FLOWS, (flow.key, flow.parallelism, flow.rate, number(flow.period)), strict=True))


def _callbacks(request: HttpRequest) -> dict[str, Any]:
    def url(of: Callback | None) -> str | None:
        return None if of is None else of.url

    def header(of: Callback | None) -> Headers | None:
        return None if of is None else headers(of.headers)

    return {
        "callback": url(request.callback),
        "failure_callback": url(request.failure_callback),
        "callback_header": header(request.callback),
        "failure_callback_header": header(request.failure_callback),
    }


def _text_or_base64(body: bytes | None) -> tuple[str | None, str | None]:
    """Returns (text, base64); one of them is None, both for an empty body."""
    if not body:
        return None, None
    try:
        return body.decode(), None
    except UnicodeDecodeError:
        return None, base64.b64encode(body).decode()
