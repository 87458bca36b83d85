"""Callbacks: when a request has ended, somebody is told what became of it, by a request like any other."""

from __future__ import annotations

from uuid import UUID

import msgspec

from todoku.core.http_headers import is_secret
from todoku.core.http_request import (
    CALLBACK_TOPIC,
    HTTP,
    QUEUE,
    SECRETS,
    Callback,
    HttpRequest,
    carried,
    dead_id,
    origin,
)
from todoku.core.message import Draft, Leg
from todoku.core.outcome import Response
from todoku.core.redaction import redacted_answer, redacted_body, redacted_headers


class EndedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that is over, and all that is known of it."""

    message_id: str
    delivery_id: int
    replay_count: int
    request: HttpRequest
    succeeded: bool
    attempts: int
    created_at: float
    body: bytes | None
    """None: it is encrypted, and nobody is told what is in it."""
    response: Response | None
    """The last answer. None: there was none."""


class _Telling(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The body of a callback. `header` and `sourceHeader` have lists for values; bytes are base64, times unix ms."""

    status: int
    header: dict[str, list[str]]
    body: bytes
    retried: int
    max_retries: int
    source_message_id: str
    url: str
    method: str
    source_header: dict[str, list[str]]
    created_at: int
    not_before: int
    source_body: bytes | None = None
    dlq_id: str | None = None
    topic_name: str | None = None
    endpoint_name: str | None = None
    schedule_id: str | None = None
    caller_ip: str | None = msgspec.field(default=None, name="callerIP")


def callback_of(request: HttpRequest, *, succeeded: bool) -> Callback | None:
    """Who is to be told of such an end; None: nobody. A callback's own end is told to nobody."""
    if request.source is not None:
        return None
    return request.callback if succeeded else request.failure_callback


def callback_draft(id: UUID, ended: EndedRequest, to: Callback, trace: dict[str, str]) -> Draft:
    """The message that tells of an end. It has retries of its own, and belongs to the same trace.

    Its secret headers stay as they were sealed when the request was published: for that message, for this
    URL and method, and for this kind of end.
    """
    request = HttpRequest(
        url=to.url,
        method=to.method,
        headers={"Content-Type": "application/json", **to.headers},
        timeout=to.timeout,
        retries=to.retries,
        retry_delay=to.retry_delay,
        labels=ended.request.labels,
        redact=ended.request.redact,
        source=ended.message_id,
        kind="callback" if ended.succeeded else "failure_callback",
    )
    closed = {} if to.sealed is None else {SECRETS: to.sealed}
    leg = Leg(
        destination=origin(to.url), queue=QUEUE, max_attempts=to.retries + 1, timeout=to.timeout
    )  # fmt: skip
    return Draft(
        id=id,
        topic=CALLBACK_TOPIC,
        type=CALLBACK_TOPIC,
        payload_bytes=callback_body(ended),
        content_type=request.headers["Content-Type"],
        headers=msgspec.json.encode({**trace, **closed, HTTP: carried(request)}).decode(),
        labels=msgspec.json.encode(request.labels).decode() if request.labels else None,
        legs=(leg,),
        delay=to.delay,
    )


def callback_body(ended: EndedRequest) -> bytes:
    """What is told, as JSON. Without an answer the status is 0."""
    request, response = ended.request, ended.response or Response(0)
    created = round(ended.created_at * 1000)
    return msgspec.json.encode(
        _Telling(
            status=response.status,
            header=_listed(_told(redacted_answer(response.headers, request.redact))),
            body=response.body,
            retried=max(0, ended.attempts - 1),
            max_retries=request.retries,
            source_message_id=ended.message_id,
            url=request.url,
            method=request.method,
            source_header=_listed(_told(redacted_headers(request.headers, request.redact))),
            created_at=created,
            not_before=created,
            source_body=None if ended.body is None else redacted_body(request, ended.body),
            dlq_id=None if ended.succeeded else dead_id(ended.delivery_id, ended.replay_count),
            topic_name=request.group,
            endpoint_name=request.endpoint,
            schedule_id=request.schedule,
            caller_ip=request.caller_ip,
        )
    )


def _told(headers: dict[str, str]) -> dict[str, str]:
    """Headers without those that authorise at the receiver: the receiver of a callback must not learn them."""
    return {name: value for name, value in headers.items() if not is_secret(name)}


def _listed(headers: dict[str, str]) -> dict[str, list[str]]:
    return {name: [value] for name, value in headers.items()}
