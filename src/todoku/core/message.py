"""The values of a message on its way: Draft when it is published, Message when it is stored, Claimed by a worker.

Times in Claimed are unix seconds, because creating datetimes for each row costs more than the rest of a claim. Values
for people (`store.values`) have datetimes.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from todoku.core.sealed import WrappedKey

PRIORITIES: Final = range(16)
"""Larger is sooner. There are few, because a claim queries each priority by equality (H20)."""

MAX_KEY_LENGTH: Final = 512
MAX_TOPIC_LENGTH: Final = 255
LARGE_PAYLOAD: Final = 64 << 10
"""Bytes from which a payload is worth a warning: the tables are no place for documents."""

USUAL_ATTEMPTS: Final = 6
"""The default number of attempts. Stored with a delivery, it means that the publisher gave no number."""


class Leg(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One delivery of a draft: its destination and options."""

    destination: str
    queue: str = "default"
    lane: int | None = None
    gate: int | None = None
    priority: int = 0
    max_attempts: int = USUAL_ATTEMPTS
    timeout: float | None = None
    dead: str | None = None
    """The reason (NO_ROUTE) if the delivery is stored as a dead letter from the start."""


class Idempotency(msgspec.Struct, frozen=True, gc=False):
    """The ledger entry that publishing a draft creates: (scope, hash of the key) → digest."""

    scope: str
    key: str
    key_hash: str
    digest: str
    reopen: bool = False
    """Publishing a duplicate of an aborted message replays it (audited as an act of the publisher)."""
    lasts: float | None = None
    """Seconds after which the key can be used again; None: as long as the ledger retains it. With a number, the entry
    deduplicates publishes only: the message has no key, so its effects are never skipped."""
    until_end: bool = False
    """With `lasts`: nor can the key be used again while the message's delivery has not ended, as that of a run (R8)."""
    alike: tuple[str, ...] = ()
    """Other digests of the same body: those of an encrypted body under the other master keys."""


class Draft(msgspec.Struct, frozen=True, kw_only=True, gc=False):
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
    """The data key that seals the payload, stored with the message unless it exists already; None: not sealed."""


class Alike(msgspec.Struct, frozen=True, gc=False):
    """Messages that differ in nothing but their ids and payloads, which are JSON. None takes a lock or has labels."""

    draft: Draft
    """What they have in common; its id and payload are those of none."""
    ids: list[UUID]
    payloads: list[str]


def with_headers(draft: Draft, more: dict[str, str]) -> Draft:
    """Returns the draft with more headers."""
    headers = {} if draft.headers is None else msgspec.json.decode(draft.headers, type=dict[str, str])
    return msgspec.structs.replace(draft, headers=msgspec.json.encode(headers | more).decode())


class Message(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A stored message, as its publisher sees it. `duplicate`: it existed already, and nothing was queued."""

    id: UUID
    topic: str
    key: str | None
    duplicate: bool
    created_at: datetime


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """A delivery that a worker owns, with everything needed to execute it. (id, epoch, worker) is the fencing token."""

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
    """The decrypted secret headers of a request. They exist only in memory; the database has them sealed."""
    claim_list: int | None = None
    """The list by which it was claimed, if it was: its row does not say so then, and its epoch is 0."""
