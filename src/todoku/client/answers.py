"""Values that a queue returns, and the interface of its backends."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, Protocol

import msgspec

from todoku.client.publish_request import PublishRequest

How = Literal["queued", "ran", "spooled"]
"""The queue has taken the message; or it was unavailable, and a handler ran here, or the message is in the spool."""


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a publish. `duplicate`: the queue had the message already, and queued nothing new.

    `id` is the message's id at the queue; if the queue has not seen it yet, the deduplication id. `ids` has one per
    receiver if the topic has several.
    """

    id: str
    deduplication_id: str
    duplicate: bool = False
    how: How = "queued"
    ids: tuple[str, ...] = ()


class Queued(msgspec.Struct, frozen=True, kw_only=True):
    """A message as the queue has it."""

    id: str
    to: str
    method: str = "POST"
    queue: str | None = None
    headers: dict[str, str] = {}
    body: bytes = b""
    created_at: datetime


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A message that the queue gave up on, with the receiver's last response (`status` 0: there was none)."""

    id: str
    message: Queued
    status: int = 0
    error: str = ""
    failed_at: datetime | None = None
    """When the queue gave up; None: it does not say."""


class DeadLetters(msgspec.Struct, frozen=True):
    """A page of dead letters, and the cursor of the next page (None: this is the last)."""

    items: tuple[DeadLetter, ...]
    cursor: str | None = None


class DeadLetterFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter of dead letters; None does not filter. `to`: a URL, or a topic."""

    queue: str | None = None
    to: str | None = None
    since: datetime | None = None
    until: datetime | None = None


class Backend(Protocol):
    """A queue: embedded or remote. Every call blocks; any thread may call.

    QueueUnavailable: there was no answer in time, and the call may have taken effect. QueueRefused: the queue refused.
    """

    name: str

    def publish(self, request: PublishRequest, body: bytes, *, within: float) -> Published:
        """Queues the message, once per deduplication id."""

    def ping(self, *, within: float) -> None:
        """Raises QueueUnavailable unless the queue answers."""

    def message(self, id: str) -> Queued:
        """Returns a message by its id. QueueRefused with status 404: there is none."""

    def cancel(self, id: str, *, by: str, why: str) -> None:
        """Cancels a message that has not been sent."""

    def dead_letters(self, filters: DeadLetterFilter, *, cursor: str | None, count: int) -> DeadLetters:
        """Returns a page of dead letters."""

    def dead_letter(self, id: str) -> DeadLetter:
        """Returns a dead letter by its id. QueueRefused with status 404: there is none."""

    def retry(self, id: str, *, by: str, why: str) -> str:
        """Sends a dead letter again; returns the id of the message that is sent."""

    def delete(self, id: str, *, by: str, why: str) -> None:
        """Deletes a dead letter."""

    def close(self) -> None:
        """Closes connections."""
