"""The frozen values that travel the line: Draft → Message → Claimed → Settlement.

Times in values of the hot path are unix seconds, because a datetime per field and row costs more than the
rest of a claim; what people read (`store.values`) has datetimes.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from todoku.core.sealed import WrappedKey

PRIORITIES: Final = range(16)
"""Whole numbers; larger is sooner. Few, because claim looks into each by equality (H20)."""

MAX_KEY_LENGTH: Final = 512
MAX_TOPIC_LENGTH: Final = 255
USUAL_ATTEMPTS: Final = 6
"""How often a delivery is tried by default. Recorded with a delivery, it means that the publisher gave no number."""


class Leg(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One delivery of a draft: where to, and how."""

    destination: str
    queue: str = "default"
    lane: int | None = None
    gate: int | None = None
    priority: int = 0
    max_attempts: int = USUAL_ATTEMPTS
    timeout: float | None = None
    dead: str | None = None
    """A reason: the delivery is born a dead letter (NO_ROUTE)."""


class Idempotency(msgspec.Struct, frozen=True):
    """The publish entry a draft reserves: (scope, hash of the key) → digest."""

    scope: str
    key: str
    key_hash: str
    digest: str
    reopen: bool = False
    """A duplicate of an aborted message replays it (by the publisher, audited)."""
    lasts: float | None = None
    """Seconds after which the key is free again, whatever became of the message; None: as long as the ledger keeps it.
    Such an entry deduplicates publishes only: the message carries no key, so none of its effects is ever skipped."""
    alike: tuple[str, ...] = ()
    """Other digests of the same body: of an encrypted one, those that other master keys would make."""


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A validated message that is not stored yet, with its deliveries."""

    id: UUID
    topic: str
    legs: tuple[Leg, ...]
    type: str
    key: str | None = None
    payload: str | None = None
    payload_bytes: bytes | None = None
    content_type: str = "application/json"
    headers: str | None = None
    labels: str | None = None
    idempotency: Idempotency | None = None
    delay: float = 0.0
    at: datetime | None = None
    expires: float | None = None
    sealed_with: WrappedKey | None = None
    """The data key that the payload is sealed with, to be stored with it unless it is there; None: it is not sealed."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A stored message, as its publisher sees it. `duplicate`: it was there already, nothing new was queued."""

    id: UUID
    topic: str
    key: str | None
    duplicate: bool
    created_at: datetime


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """A delivery that a worker owns, with all it takes to execute it. (id, epoch, worker) is the token."""

    id: int
    epoch: int
    message_seq: int
    message_id: str
    topic: str
    key: str | None
    payload: str | None
    payload_bytes: bytes | None
    content_type: str
    headers: str | None
    destination: str
    queue: str
    priority: int
    lane: int | None
    gate: int | None
    attempt: int
    max_attempts: int
    lost: int
    snoozes: int
    replay_count: int
    next_run_at: float
    created_at: float
    expires_at: float | None
    timeout: float | None
    key_hash: str | None
    digest: str | None
    effect_state: str | None
    effect_digest: str | None
    worker: UUID
    secrets: dict[str, str] | None = None
    """The secret headers of a request, once they were opened. Only in memory: what is stored stays sealed."""
