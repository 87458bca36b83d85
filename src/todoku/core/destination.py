"""What a destination is, and what it is given: the contract between todoku and everything it sends to."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from todoku.core.outcome import Outcome
from todoku.core.settings import Settings


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """A message on its way out, as a destination sees it."""

    message_id: str
    idempotency_key: str
    topic: str
    key: str | None
    payload: bytes
    content_type: str
    headers: dict[str, str]
    attempt: int
    created_at: float


@runtime_checkable
class Configured(Protocol):
    """A destination that wants to know the settings of its App."""

    def configure(self, settings: Settings) -> None:
        """These are they."""


@runtime_checkable
class Destination(Protocol):
    """Where messages go, beside handlers: anything with a name and `async send(batch)`.

    `send` returns one outcome per message, in order, or None: all of them arrived. In a batch for an ordered route no
    two messages have the same key.

    It may have a `batch`: how many messages it likes at once, else 32; an `async ping()`: while that raises, deliveries
    wait without burning attempts; a `configure(settings)`, called with the App's when it is routed to; an
    `async aclose()`, called in the event loop of a worker that ends.
    """

    name: str

    def send(self, batch: Sequence[Outgoing]) -> Awaitable[Sequence[Outcome] | None]:
        """Send a batch."""
