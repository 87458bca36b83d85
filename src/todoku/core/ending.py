"""How deliveries end, and what follows: the document a hook is given, the hooks themselves, and batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Final, Literal
from uuid import UUID

import msgspec

from todoku.core.message import Draft
from todoku.core.msgspec_warmup import learned
from todoku.core.status import Status
from todoku.core.topic_pattern import matches

Event = Literal["succeeded", "aborted"]
EVENTS: Final[tuple[Event, ...]] = ("succeeded", "aborted")
"""The two ways a delivery ends."""

On = Literal["finished", "succeeded"]
"""When a batch is complete: all its members have ended, or all of them have succeeded."""

OWN: Final = "todoku."
"""How the topics of todoku's own messages begin. Their deliveries fire no hook: that would go round for ever."""

BATCH: Final = "todoku-batch"
"""The header by which a message belongs to a batch."""


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a delivery ended, as a hook is told: everything but the payload."""

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
    """How often it was replayed: a delivery that ends again after a replay is told of again."""
    ended_at: datetime


class Hook(msgspec.Struct, frozen=True, kw_only=True):
    """Who is told of which endings: the destination `name`, of those that end as `event` and match the rest."""

    name: str
    event: Event
    queue: str
    max_attempts: int
    timeout: float | None = None
    topic: str = "**"
    destination: str | None = None
    from_queue: str | None = None

    def hears(self, event: str, topic: str, destination: str, queue: str) -> bool:
        """Whether it is told of a delivery that ended as `event`."""
        return (
            event == self.event
            and self.destination in (None, destination)
            and self.from_queue in (None, queue)
            and not topic.startswith(OWN)
            and matches(self.topic, topic)
        )


class NewBatch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that is not stored yet. `next`: what is published when it is complete."""

    id: UUID
    total: int
    on: On
    next: Following | None = None


class Following(msgspec.Struct, frozen=True):
    """What follows a batch, exactly as it will be published: drafts, and the batch that they are the members of."""

    drafts: tuple[Draft, ...]
    batch: NewBatch | None = None


learned(Following)


def member(draft: Draft, batch: UUID) -> Draft:
    """The draft as a member of a batch."""
    headers = {} if draft.headers is None else msgspec.json.decode(draft.headers, type=dict[str, str])
    text = msgspec.json.encode(headers | {BATCH: str(batch)}).decode()
    return msgspec.structs.replace(draft, headers=text)


def batch_of(headers: str | None) -> UUID | None:
    """The batch a message belongs to, by its headers as they are stored. What is no id is nobody's batch."""
    if headers is None or BATCH not in headers:
        return None
    try:
        return UUID(msgspec.json.decode(headers, type=dict[str, str]).get(BATCH, ""))
    except ValueError:  # also what msgspec raises
        return None


def chained(drafts: Sequence[Draft], ids: Sequence[UUID]) -> Following:
    """Drafts one after the other: each link but the last is a batch of one, which the next follows. `ids`: theirs."""
    following = Following((drafts[-1],))
    for draft, id in zip(reversed(drafts[:-1]), reversed(ids), strict=True):
        batch = NewBatch(id=id, total=1, on="succeeded", next=following)
        following = Following((member(draft, id),), batch)
    return following


def later(batch: NewBatch) -> Iterator[Draft]:
    """Everything that will ever follow the batch, in its order."""
    following = batch.next
    while following is not None:
        yield from following.drafts
        following = None if following.batch is None else following.batch.next


def without_keys(batch: NewBatch) -> NewBatch:
    """The batch with drafts that bring no data key along."""
    if batch.next is None:
        return batch
    drafts = tuple(msgspec.structs.replace(draft, sealed_with=None) for draft in batch.next.drafts)
    rest = None if batch.next.batch is None else without_keys(batch.next.batch)
    return msgspec.structs.replace(batch, next=Following(drafts, rest))
