"""The contract of destinations: what they implement, and the messages they get."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, get_args, runtime_checkable
from uuid import UUID

import msgspec

from todoku.core.backoff import Backoff
from todoku.core.errors import InvalidMessage, InvalidSetting
from todoku.core.outcome import Duration, Outcome
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
    sequence: int | None = None
    """A number that rises with each message of the same key; None: its route is not ordered, or it has no key."""
    worker: UUID | None = None
    """The incarnation of the worker that sends it."""


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


class Attempts(msgspec.Struct, frozen=True, kw_only=True):
    """How often a message is tried, and the waits between; None: as the settings say. InvalidSetting: a bad value.

    A destination that has its own is asked by the attribute `attempts`; what its route says goes before it.
    """

    max_attempts: int | None = None
    backoff: Backoff | None = None

    def __post_init__(self) -> None:
        check_max_attempts(self.max_attempts)
        check_backoff(self.backoff, "backoff")


@runtime_checkable
class RequestDestination(Protocol):
    """A destination that sends HTTP requests: its routes may give their headers and their time limit."""

    def for_route(self, *, headers: Mapping[str, str] | None, timeout: Duration | None) -> Destination:
        """Returns a copy with more headers, and another time limit; None: its own."""


def check_max_attempts(given: object, refusal: type[InvalidMessage] | type[InvalidSetting] = InvalidSetting) -> None:
    """Raises the refusal unless this is None or a number of attempts."""
    if given is not None and (type(given) is not int or not 0 < given <= 10_000):
        raise refusal(f"max_attempts cannot be {given!r}", hint="1 to 10000; the first attempt counts too")


def check_backoff(given: object, what: str) -> None:
    """Raises InvalidSetting unless this is None or a back-off."""
    if given is not None and not isinstance(given, get_args(Backoff)):
        raise InvalidSetting(f"{what} cannot be {given!r}", hint="use todoku.table, linear or exponential")
