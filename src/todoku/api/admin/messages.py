"""Messages: get one with its deliveries, attempts and audit; its timeline; its texts to copy."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from todoku.api.admin.operation import operation
from todoku.api.admin.parameters import ByMessage, ByNumber
from todoku.api.admin.shown_requests import Attempt, masked_attempt, masked_headers
from todoku.api.request_context import RequestContext
from todoku.core.errors import NoSuchMessage, NotThere
from todoku.core.http_request import HTTP, SECRETS, HttpRequest, request_of
from todoku.core.redaction import redact_request, redacts_body
from todoku.core.sealed import kind_of, payload_placeholder
from todoku.engine.diagnostics.masked_json import masked
from todoku.engine.diagnostics.snippets import HandlerCall, Snippets, make_snippets
from todoku.engine.diagnostics.timeline import Timeline, read_timeline, trace_id
from todoku.engine.edit import pretty_payload
from todoku.engine.observability.message_headers import correlation_id, decode_headers
from todoku.store.audit import AuditRow
from todoku.store.columns import moment
from todoku.store.deliveries import Delivery
from todoku.store.messages import StoredMessage, Story

LARGEST: Final = 65_536
"""Bytes. Of a larger payload, only the size is returned."""


class KeptResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result that a delivery stored, masked."""

    delivery_id: int
    result: Any


class MessageStory(msgspec.Struct, frozen=True, kw_only=True):
    """A message with its history. Values of sensitive fields are replaced by `***`.

    `payload` holds JSON, `payload_base64` the bytes of any other content. Both are null for a payload that is
    encrypted, redacted or larger than 64 KiB; `payload_told` then describes it. `request`: the HTTP request to send,
    if the message is one.
    """

    id: UUID
    topic: str
    type: str
    key: str | None
    created_at: datetime
    content_type: str
    labels: list[str]
    headers: dict[str, str]
    request: HttpRequest | None
    payload: Any
    payload_base64: str | None
    payload_told: str | None
    deliveries: tuple[Delivery, ...]
    attempts: tuple[Attempt, ...]
    audit: tuple[AuditRow, ...]
    results: tuple[KeptResult, ...] = ()
    correlation_id: str | None = None
    trace_id: str | None = None
    trace_url: str | None = None
    """Where to look at the trace: the setting `trace_url` with the id of the trace."""
    payload_text: str | None = None
    """The payload as people read and edit it: indented and masked JSON, or text; null where `payload_told` is not."""


@operation("GET", "/messages/{id}", access="read")
def get_message(context: RequestContext, where: ByMessage) -> MessageStory:
    """Returns a message with its deliveries, their failed attempts and the operators' actions."""
    story = read_story(context, where.id)
    message, fields = story.message, frozenset(context.settings.mask_fields)
    request = request_of(message.headers)
    payload, raw, description = _visible_payload(message, request, fields)
    headers = {} if message.headers is None else msgspec.json.decode(message.headers, type=dict[str, str])
    for own in (HTTP, SECRETS):
        headers.pop(own, None)
    return MessageStory(
        id=message.id,
        topic=message.topic,
        type=message.type,
        key=message.key,
        created_at=message.created_at,
        content_type=message.content_type,
        labels=[] if message.labels is None else msgspec.json.decode(message.labels, type=list[str]),
        headers=masked_headers(headers, fields),
        request=None if request is None else _mask_request(request, fields),
        payload=payload,
        payload_base64=raw,
        payload_told=description,
        deliveries=story.deliveries,
        attempts=tuple(masked_attempt(row, fields) for row in story.attempts),
        audit=story.audit,
        results=tuple(_results(context, story, fields)),
        correlation_id=correlation_id(decode_headers(message.headers)),
        trace_id=(trace := trace_id(message.headers)),
        trace_url=_trace_url(context.settings.trace_url, trace),
        payload_text=None if description is not None else _text(message, fields),
    )


def read_story(context: RequestContext, id: UUID) -> Story:
    """Returns everything stored about a message. NoSuchMessage: there is none."""
    if (story := context.store.messages.story(id)) is None:
        raise NoSuchMessage(f"there is no message {id}", hint="messages older than the retention are pruned")
    return story


@operation("GET", "/messages/{id}/timeline", access="read")
def get_timeline(context: RequestContext, where: ByMessage) -> Timeline:
    """Returns the waits, attempts, effects and followers of a message, the oldest first."""
    return read_timeline(context.store, read_story(context, where.id), moment(context.store.ping()))


@operation("GET", "/deliveries/{id}/snippets", access="read")
def get_snippets(context: RequestContext, where: ByNumber) -> Snippets:
    """Returns a delivery as commands, requests, Python and a pytest case to copy, without secrets."""
    delivery = context.store.deliveries.get(where.id)
    if delivery is None:
        raise NotThere(f"there is no delivery {where.id}", hint="deliveries older than the retention are pruned")
    settings = context.settings
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return make_snippets(delivery, _handler_call(context, delivery), url=f"http://{host}:{settings.port}")


def _handler_call(context: RequestContext, delivery: Delivery) -> HandlerCall | None:
    """The call of the delivery's handler with masked arguments; None: the App here does not declare it."""
    job = context.box.jobs.get(delivery.destination)
    if job is None or delivery.message_id is None:
        return None
    message = read_story(context, delivery.message_id).message
    payload, _, description = _visible_payload(message, None, frozenset(context.settings.mask_fields))
    if description is not None or message.payload is None:
        note = f"The arguments are {description or 'not JSON'}: open the message, and put them here."
        return HandlerCall(args=[], kwargs={}, note=note)
    args, kwargs = job.handler.signature.call_arguments(payload)
    return HandlerCall(args=args, kwargs=kwargs)


_MOST_RESULTS: Final = 100


def _results(context: RequestContext, story: Story, fields: frozenset[str]) -> Iterator[KeptResult]:
    for row in [row for row in story.deliveries if row.status == "succeeded"][:_MOST_RESULTS]:
        if (text := context.store.deliveries.result(row.id)) is not None:
            yield KeptResult(delivery_id=row.id, result=masked(text, fields))


def _text(message: StoredMessage, fields: frozenset[str]) -> str | None:
    raw = message.payload_bytes if message.payload is None else message.payload.encode()
    try:
        return pretty_payload(msgspec.json.decode(raw), fields) if raw else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _decode(raw or b"")


def _decode(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def _trace_url(template: str | None, trace: str | None) -> str | None:
    return None if template is None or trace is None else template.replace("{trace_id}", trace)


def _visible_payload(
    message: StoredMessage, request: HttpRequest | None, fields: frozenset[str]
) -> tuple[object, str | None, str | None]:
    """Returns (JSON, base64, description); two of them are None."""
    size = len(message.payload_bytes if message.payload_bytes is not None else (message.payload or "").encode())
    hidden = request is not None and redacts_body(request)
    if hidden or size > LARGEST or kind_of(message.content_type) is not None:
        return None, None, "redacted" if hidden else payload_placeholder(message.content_type, size)
    if message.payload_bytes is not None:
        return None, base64.b64encode(message.payload_bytes).decode(), None
    return masked(message.payload, fields), None, None


def _mask_request(request: HttpRequest, fields: frozenset[str]) -> HttpRequest:
    """Returns the request without forwarded secrets and without the parts that its publisher redacted."""
    hidden = redact_request(request)
    return msgspec.structs.replace(hidden, headers=masked_headers(hidden.headers, fields))


OPERATIONS: Final = (get_message, get_timeline, get_snippets)
