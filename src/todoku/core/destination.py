"""The contract of destinations: what they implement, and the messages they get."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from todoku.core.outcome import Outcome
from todoku.core.settings import Settings


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a batch that a destination has to send."""

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
    """A destination that uses settings of its App."""

    def configure(self, settings: Settings) -> None:
        """Receives the App's settings, before the first `send`."""


FillSecrets = Callable[[str], Awaitable[str]]
"""Returns a text with the values of the secrets that it names: `secret://provider/path`."""


@runtime_checkable
class UsesSecrets(Protocol):
    """A destination whose options may name secrets."""

    def use_secrets(self, fill: FillSecrets) -> None:
        """Receives what reads the secrets of its App, before the first `send`."""


@runtime_checkable
class Destination(Protocol):
    """Anything with a name and `async send(batch)`. Messages are delivered to destinations and to handlers.

    Optional members:

    - `batch`: the largest number of messages in one `send`, 32 by default;
    - `async ping()`: while it raises, deliveries wait without using up attempts;
    - `configure(settings)`: called with the App's settings when a route to the destination is declared;
    - `use_secrets(fill)`: called then, too; `await fill("secret://vault/shop/smtp#password")` reads a secret;
    - `async aclose()`: called in the event loop of a worker that stops.
    """

    name: str

    def send(self, batch: Sequence[Outgoing]) -> Awaitable[Sequence[Outcome] | None]:
        """Sends a batch and returns one outcome per message, in order; None: all were delivered.

        In a batch for an ordered route, no two messages have the same key.
        """
