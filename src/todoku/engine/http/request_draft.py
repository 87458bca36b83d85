"""Builds the draft of a request: one message with one delivery, to the destination of its URL."""

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
"""Default seconds during which a deduplication id is remembered."""

MAX_HEADERS_BYTES: Final = 64 << 10

_CALLER_IDS: Final = ("X-Correlation-Id", "X-Event-Id")
"""Headers with the caller's own ids."""


class Posting(msgspec.Struct, frozen=True, kw_only=True):
    """When a request is sent, and its deduplication."""

    delay: float = 0.0
    at: datetime | None = None
    deduplication_id: str | None = None
    deduplicated_for: float = DEDUPLICATED_FOR
    trace: dict[str, str] = {}
    """Trace headers and other headers of the message itself."""
    fifo: bool = False
    """Its queue sends one message at a time, in order: it waits until the earlier ones have ended."""
    dead: str | None = None
    """A reason: the message is stored as a dead letter at once."""


def request_draft(id: UUID, request: HttpRequest, body: bytes, posting: Posting, *, max_payload_bytes: int) -> Draft:
    """Returns the draft of a checked request (its URL by core.address_guard). InvalidMessage: too large, or sealed."""
    if len(body) > max_payload_bytes:
        hint = "send a reference to it instead, or raise TODOKU_MAX_PAYLOAD_BYTES"
        raise InvalidMessage(f"the body has {len(body)} bytes, {max_payload_bytes} are allowed", hint=hint)
    for each in (request, request.callback, request.failure_callback):
        _refuse_sealed(each)
    # The caller's ids go to the receiver and into the logs, and take precedence over generated ones.
    # Redacted headers stay in the request, where they are hidden and can be sealed.
    clear = split_secret_headers(request.headers, request.redact)[0]
    named = {name.lower(): clear[name] for name in _CALLER_IDS if clear.get(name)}
    headers = encode({**posting.trace, **named, HTTP: encode_request(request)})
    if len(headers.encode()) > MAX_HEADERS_BYTES:
        raise InvalidMessage("the headers are too large", hint=f"all together may have {MAX_HEADERS_BYTES} bytes")
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


def _refuse_sealed(request: HttpRequest | Callback | None) -> None:
    """InvalidMessage if the content type claims a sealed body: only todoku's sealer may set it."""
    if request is not None and request.headers.get("Content-Type", "").lower().startswith(SEALED):
        raise InvalidMessage(f"the Content-Type {SEALED} is reserved", hint="give the actual type of the body")


def content_id(request: HttpRequest, body: bytes) -> str:
    """Returns the deduplication id of a request's content: URL, headers and body."""
    content = msgspec.structs.replace(request, caller_ip=None)  # the caller's address is not part of the content
    return digest_bytes(encode_request(content).encode() + b"\0" + body)


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
    # The digest is that of the key: a known id is always a duplicate, never a conflict, whatever else differs.
    return Idempotency(f"http:{TOPIC}", given, key_hash(given), key_hash(given), lasts=posting.deduplicated_for)
