"""Messages: get one with its deliveries, attempts and audit."""

from __future__ import annotations

import base64
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from todoku.api.admin.operation import operation
from todoku.api.admin.parameters import ByMessage
from todoku.api.admin.shown_requests import Attempt, masked_attempt, masked_headers
from todoku.api.request_context import RequestContext
from todoku.core.errors import NoSuchMessage
from todoku.core.http_request import HTTP, SECRETS, HttpRequest, request_of
from todoku.core.redaction import redact_request, redacts_body
from todoku.core.sealed import kind_of, payload_placeholder
from todoku.engine.diagnostics.masked_json import masked
from todoku.store.audit import AuditRow
from todoku.store.deliveries import Delivery
from todoku.store.messages import StoredMessage

LARGEST: Final = 65_536
"""Bytes. Of a larger payload, only the size is returned."""


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


@operation("GET", "/messages/{id}", access="read")
def get_message(context: RequestContext, where: ByMessage) -> MessageStory:
    """Returns a message with its deliveries, their failed attempts and the operators' actions."""
    story = context.store.messages.story(where.id)
    if story is None:
        raise NoSuchMessage(f"there is no message {where.id}", hint="messages older than the retention are pruned")
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
    )


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


OPERATIONS: Final = (get_message,)
