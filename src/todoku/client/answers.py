"""What a queue answers, wherever it is."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, Protocol

import msgspec

from todoku.client.publish_request import Posted

How = Literal["queued", "ran", "spooled"]
"""The queue has it; or it was away, and the handler ran here, or it waits on this disk."""


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a publish. `duplicate`: the queue had it already, nothing new was queued.

    `id` is the message's at the queue; where that has not seen it yet, the deduplication id. `ids`: all of them, where
    a topic stands for several receivers.
    """

    id: str
    deduplication_id: str
    duplicate: bool = False
    how: How = "queued"
    ids: tuple[str, ...] = ()


class Queued(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a queue knows: what it is, and where it goes."""

    id: str
    to: str
    method: str = "POST"
    queue: str | None = None
    headers: dict[str, str] = {}
    body: bytes = b""
    created_at: datetime


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a queue has given up on, and the last answer of its receiver (`status` 0: there was none)."""

    id: str
    message: Queued
    status: int = 0
    error: str = ""


class DeadLetters(msgspec.Struct, frozen=True):
    """A page of dead letters, and the cursor of the next one (None: there is none)."""

    items: tuple[DeadLetter, ...]
    cursor: str | None = None


class Which(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters; what is None does not filter. `to`: a URL, or a topic."""

    queue: str | None = None
    to: str | None = None
    since: datetime | None = None
    until: datetime | None = None


class Backend(Protocol):
    """A queue, wherever it is. Every call blocks, and may be made from any thread.

    QueueUnavailable: it gave no answer in time, and what was asked may have happened. QueueRefused: it said no.
    """

    name: str

    def publish(self, asked: Posted, body: bytes, *, within: float) -> Published:
        """Have something sent, once for its id."""

    def ping(self, *, within: float) -> None:
        """Whether it answers."""

    def message(self, id: str) -> Queued:
        """A message by its id; QueueRefused with status 404: there is none."""

    def cancel(self, id: str, *, by: str, why: str) -> None:
        """Let it not be sent."""

    def dead_letters(self, which: Which, *, cursor: str | None, count: int) -> DeadLetters:
        """A page of dead letters."""

    def dead_letter(self, id: str) -> DeadLetter:
        """One of them; QueueRefused with status 404: there is none."""

    def retry(self, id: str, *, by: str, why: str) -> str:
        """Let a dead letter be sent again; returns the id of the message that is."""

    def delete(self, id: str, *, by: str, why: str) -> None:
        """Remove a dead letter for good."""

    def close(self) -> None:
        """Give back what is open."""
