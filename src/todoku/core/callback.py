"""Callbacks: HTTP requests that report how another request ended."""

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
    dead_id,
    encode_request,
    origin,
)
from todoku.core.message import Draft, Leg
from todoku.core.outcome import Response
from todoku.core.redaction import redact_body, redact_headers, redact_response_headers


class EndedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that succeeded or failed for good, with all that a callback reports about it."""

    message_id: str
    delivery_id: int
    replay_count: int
    request: HttpRequest
    succeeded: bool
    attempts: int
    created_at: float
    body: bytes | None
    """None: the message is encrypted, so a callback does not contain its body."""
    response: Response | None
    """The receiver's last response; None: it never answered."""


class _Body(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The JSON body of a callback. Values of `header` and `sourceHeader` are lists; bytes are base64, times unix ms."""

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
    """Returns the callback of a request that ended like this, if it has one. A callback has no callback of its own."""
    if request.source is not None:
        return None
    return request.callback if succeeded else request.failure_callback


def callback_draft(id: UUID, ended: EndedRequest, to: Callback, trace: dict[str, str]) -> Draft:
    """Returns the message that sends a callback. It has its own retries, and belongs to the trace of the request.

    Its secret headers stay sealed as they were when the request was published: bound to that message, to this URL and
    method, and to the kind of callback.
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
    secrets = {} if to.sealed is None else {SECRETS: to.sealed}
    leg = Leg(
        destination=origin(to.url), queue=QUEUE, max_attempts=to.retries + 1, timeout=to.timeout
    )  # fmt: skip
    return Draft(
        id=id,
        topic=CALLBACK_TOPIC,
        type=CALLBACK_TOPIC,
        payload_bytes=callback_body(ended),
        content_type=request.headers["Content-Type"],
        headers=msgspec.json.encode({**trace, **secrets, HTTP: encode_request(request)}).decode(),
        labels=msgspec.json.encode(request.labels).decode() if request.labels else None,
        legs=(leg,),
        delay=to.delay,
    )


def callback_body(ended: EndedRequest) -> bytes:
    """Returns the JSON body of a callback. The status is 0 if the receiver never answered."""
    request, response = ended.request, ended.response or Response(0)
    created = round(ended.created_at * 1000)
    return msgspec.json.encode(
        _Body(
            status=response.status,
            header=_as_lists(_without_secrets(redact_response_headers(response.headers, request.redact))),
            body=response.body,
            retried=max(0, ended.attempts - 1),
            max_retries=request.retries,
            source_message_id=ended.message_id,
            url=request.url,
            method=request.method,
            source_header=_as_lists(_without_secrets(redact_headers(request.headers, request.redact))),
            created_at=created,
            not_before=created,
            source_body=None if ended.body is None else redact_body(request, ended.body),
            dlq_id=None if ended.succeeded else dead_id(ended.delivery_id, ended.replay_count),
            topic_name=request.group,
            endpoint_name=request.endpoint,
            schedule_id=request.schedule,
            caller_ip=request.caller_ip,
        )
    )


def _without_secrets(headers: dict[str, str]) -> dict[str, str]:
    """Drops credentials: the receiver of the callback must not learn those for the receiver of the request."""
    return {name: value for name, value in headers.items() if not is_secret(name)}


def _as_lists(headers: dict[str, str]) -> dict[str, list[str]]:
    return {name: [value] for name, value in headers.items()}
