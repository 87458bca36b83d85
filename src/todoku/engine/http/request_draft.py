"""A request as a draft: one message with one delivery, to the destination that its URL names."""

from __future__ import annotations

from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from todoku.core.errors import InvalidMessage
from todoku.core.http_request import (
    CALLBACK_TOPIC,
    HTTP,
    TOPIC,
    Callback,
    HttpRequest,
    encode_request,
    origin,
    queue_name,
)
from todoku.core.identity import digest_bytes, key_hash, lane_id
from todoku.core.message import MAX_KEY_LENGTH, Draft, Idempotency, Leg
from todoku.core.redaction import split_secret_headers
from todoku.core.sealed import SEALED
from todoku.engine.publish import check_text, encode

DEDUPLICATED_FOR: Final = 600.0
"""Seconds during which an id deduplicates, unless the server is told otherwise."""

MAX_HEADERS_BYTES: Final = 64 << 10

_NAMED: Final = ("X-Correlation-Id", "X-Event-Id")
"""Headers of a request by which its caller knows what it is about."""


class Posting(msgspec.Struct, frozen=True, kw_only=True):
    """When a request is sent, and of what it is a repetition, if it is one."""

    delay: float = 0.0
    at: datetime | None = None
    deduplication_id: str | None = None
    deduplicated_for: float = DEDUPLICATED_FOR
    trace: dict[str, str] = {}
    """Headers by which the message belongs to a trace, and others that are the message's own."""
    fifo: bool = False
    """Its queue sends one at a time, in order: it waits until those before it have ended."""
    dead: str | None = None
    """A reason: it is born a dead letter."""


def request_draft(id: UUID, request: HttpRequest, body: bytes, posting: Posting, *, max_payload_bytes: int) -> Draft:
    """A draft of a request that was checked already (its URL by core.ssrf), or InvalidMessage."""
    if len(body) > max_payload_bytes:
        hint = "send a reference to it instead, or raise TODOKU_MAX_PAYLOAD_BYTES"
        raise InvalidMessage(f"the body has {len(body)} bytes, {max_payload_bytes} are allowed", hint=hint)
    for each in (request, request.callback, request.failure_callback):
        _refuse_sealed(each)
    # What the caller calls it goes through to the receiver, and into the logs: before any name of ours.
    # What is redacted stays in the request, where it is hidden and can be sealed.
    clear = split_secret_headers(request.headers, request.redact)[0]
    named = {name.lower(): clear[name] for name in _NAMED if clear.get(name)}
    headers = encode({**posting.trace, **named, HTTP: encode_request(request)})
    if len(headers.encode()) > MAX_HEADERS_BYTES:
        raise InvalidMessage("the headers are too large", hint=f"{MAX_HEADERS_BYTES} bytes are allowed for all of them")
    topic = TOPIC if request.source is None else CALLBACK_TOPIC
    return Draft(
        id=id,
        topic=topic,
        type=topic,
        key=None if request.flow is None else request.flow.key,
        payload_bytes=body,
        content_type=request.headers.get("Content-Type", "application/octet-stream"),
        headers=headers,
        labels=encode(list(request.labels)) if request.labels else None,
        idempotency=_idempotency(posting),
        legs=(_leg(request, posting),),
        delay=posting.delay,
        at=posting.at,
    )


def _refuse_sealed(sent: HttpRequest | Callback | None) -> None:
    """InvalidMessage if a content type says that its body was sealed by us: only what seals may say so."""
    if sent is not None and sent.headers.get("Content-Type", "").lower().startswith(SEALED):
        raise InvalidMessage(f"the Content-Type {SEALED} is todoku's own", hint="name the type of the body as it is")


def content_id(request: HttpRequest, body: bytes) -> str:
    """The deduplication id of a request that is told by its content: the same URL, headers and body."""
    told = msgspec.structs.replace(request, caller_ip=None)  # the same from elsewhere is the same
    return digest_bytes(encode_request(told).encode() + b"\0" + body)


def _leg(request: HttpRequest, posting: Posting) -> Leg:
    queue = queue_name(request)
    return Leg(
        destination=origin(request.url),
        queue=queue,
        lane=lane_id("http", queue) if posting.fifo else None,
        max_attempts=request.retries + 1,
        timeout=request.timeout,
        dead=posting.dead,
    )


def _idempotency(posting: Posting) -> Idempotency | None:
    given = posting.deduplication_id
    if given is None:
        return None
    check_text(given, "deduplication id", MAX_KEY_LENGTH)
    # The digest is the key's own: whatever else differs, an id that was seen is a repetition, never a conflict.
    return Idempotency(f"http:{TOPIC}", given, key_hash(given), key_hash(given), lasts=posting.deduplicated_for)
