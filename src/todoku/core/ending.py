"""How deliveries end, and what todoku publishes then: messages to hooks, and the drafts that follow a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final, Literal
from uuid import UUID

import msgspec

from todoku.core.message import Draft
from todoku.core.msgspec_warmup import warm_up
from todoku.core.status import Status
from todoku.core.topic_pattern import matches

Event = Literal["succeeded", "aborted"]
EVENTS: Final[tuple[Event, ...]] = ("succeeded", "aborted")
"""The two ways a delivery ends."""

On = Literal["finished", "succeeded"]
"""When a batch is complete: all its members have ended, or all of them have succeeded."""

OWN: Final = "todoku."
"""Prefix of the topics of todoku's own messages. Their deliveries fire no hook, which would be an endless loop."""

BATCH: Final = "todoku-batch"
"""The header with the id of the batch that a message belongs to."""


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """The message to a hook: how a delivery ended. It does not contain the payload."""

    message_id: UUID
    delivery_id: int
    topic: str
    destination: str
    queue: str
    key: str | None
    status: Status
    reason: str | None
    error: str | None
    attempts: int
    replay_count: int
    """How often the delivery was replayed. It fires the hook again when it ends again after a replay."""
    ended_at: datetime


class Hook(msgspec.Struct, frozen=True, kw_only=True):
    """Sends an Ending to the destination `name` for each delivery that ends as `event` and matches the other fields."""

    name: str
    event: Event
    queue: str
    max_attempts: int
    timeout: float | None = None
    topic: str = "**"
    destination: str | None = None
    from_queue: str | None = None

    def fires_for(self, event: str, topic: str, destination: str, queue: str) -> bool:
        """Whether a delivery that ended as `event` fires this hook."""
        return (
            event == self.event
            and self.destination in (None, destination)
            and self.from_queue in (None, queue)
            and not topic.startswith(OWN)
            and matches(self.topic, topic)
        )


class NewBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that is not stored yet. `next` is published when it is complete."""

    id: UUID
    total: int
    on: On
    next: Following | None = None


class Following(msgspec.Struct, frozen=True):
    """The drafts that are published when a batch is complete, and the batch that these drafts belong to."""

    drafts: tuple[Draft, ...]
    batch: NewBatch | None = None


warm_up(Following)


def add_to_batch(draft: Draft, batch: UUID) -> Draft:
    """Returns the draft as a member of a batch."""
    headers = {} if draft.headers is None else msgspec.json.decode(draft.headers, type=dict[str, str])
    text = msgspec.json.encode(headers | {BATCH: str(batch)}).decode()
    return msgspec.structs.replace(draft, headers=text)


def batch_of(headers: str | None) -> UUID | None:
    """Returns the batch of a message with these stored headers; None: it has none, or the header is not an id."""
    if headers is None or BATCH not in headers:
        return None
    try:
        return UUID(msgspec.json.decode(headers, type=dict[str, str]).get(BATCH, ""))
    except ValueError:  # also what msgspec raises
        return None


def chain_drafts(drafts: Sequence[Draft], ids: Sequence[UUID]) -> Following:
    """Chains drafts: each is published when the one before has succeeded.

    Every draft but the last is a batch of one, with an id of `ids`.
    """
    following = Following((drafts[-1],))
    for draft, id in zip(reversed(drafts[:-1]), reversed(ids), strict=True):
        batch = NewBatch(id=id, total=1, on="succeeded", next=following)
        following = Following((add_to_batch(draft, id),), batch)
    return following


def following_drafts(batch: NewBatch) -> Iterator[Draft]:
    """Yields all drafts that will follow the batch, directly and through later batches, in order."""
    following = batch.next
    while following is not None:
        yield from following.drafts
        following = None if following.batch is None else following.batch.next


def without_keys(batch: NewBatch) -> NewBatch:
    """Returns the batch with the data keys removed from its drafts."""
    if batch.next is None:
        return batch
    drafts = tuple(msgspec.structs.replace(draft, sealed_with=None) for draft in batch.next.drafts)
    rest = None if batch.next.batch is None else without_keys(batch.next.batch)
    return msgspec.structs.replace(batch, next=Following(drafts, rest))
