"""Shared by all broker destinations: one connection for all sends, a time limit, and one outcome per message.

The broker confirms every message. All messages of a batch are sent before the confirmations are awaited, and one bad
message does not fail the others (I13). A message without a confirmation within the time limit is retried. It may have
been delivered; consumers recognise the duplicate by the message id.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar, Final, Generic, TypedDict
from weakref import WeakKeyDictionary

import msgspec

from todoku.core.cloudevents import DEFAULT_SOURCE, check_source, headers
from todoku.core.destination import FillSecrets, Outgoing
from todoku.core.errors import InvalidSetting
from todoku.core.failure import DeliveryError, Reasons, classify
from todoku.core.outcome import DONE, Abort, Outcome, Retry, Snooze
from todoku.core.settings import Settings
from todoku.destinations.connection import CLOSING, C, SharedConnection, within
from todoku.destinations.secret_options import SecretOptions

REASONS: Final[Reasons] = {
    TimeoutError: ("BROKER_TIMEOUT", True),
    ConnectionError: ("BROKER_DOWN", True),
    OSError: ("BROKER_DOWN", True),
}
"""The reasons that are the same for every client. Each destination adds those of its library's exceptions."""

_SMALL: Final = 16 << 10
"""No broker's limit is below this, so the size of a smaller message need not be exact."""


class BrokerOptions(TypedDict, total=False):
    """The options of every broker destination, besides its address.

    `name` of the destination; `source` of the events (CloudEvents); `send_timeout_ms` for a batch (default: the
    setting); `max_bytes` of a message with its headers; `client`: further arguments for the client library.
    """

    name: str
    source: str
    send_timeout_ms: int
    max_bytes: int
    client: Mapping[str, Any]


class CheckedBrokerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """BrokerOptions, checked and with defaults."""

    name: str
    max_bytes: int
    source: str = DEFAULT_SOURCE
    send_timeout_ms: int | None = None
    client: Mapping[str, Any] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_source(self.source)
        for field in ("send_timeout_ms", "max_bytes"):
            value = getattr(self, field)
            if value is not None and not (isinstance(value, int) and value > 0):
                raise InvalidSetting(f"{field} cannot be {value!r}", hint="give a whole number greater than 0")


class Parcel:
    """A message with its broker headers and its outcome (None: not known yet)."""

    __slots__ = ("headers", "message", "outcome")

    def __init__(self, message: Outgoing, headers: dict[str, str]) -> None:
        self.message = message
        self.headers = headers
        self.outcome: Outcome | None = None

    def arrived(self) -> None:
        """Records that the broker has confirmed the message."""
        self.outcome = DONE

    @property
    def size(self) -> int:
        """Bytes of payload and headers. It may be too high if it is far below every broker's limit."""
        characters = sum(map(len, self.headers)) + sum(map(len, self.headers.values()))
        if (upper_bound := len(self.message.payload) + 4 * (characters + len(self.headers))) < _SMALL:
            return upper_bound
        return len(self.message.payload) + sum(_bytes(name) + _bytes(value) + 4 for name, value in self.headers.items())


class Broker(ABC, Generic[C]):
    """A destination on a broker. Its connection is opened when needed, shared by all sends, and reopened when lost.

    Each event loop has its own connection, because workers in several loops may use the same destination.
    """

    module: ClassVar[str]
    """The client library, imported when it is needed."""
    extra: ClassVar[str]
    batch: ClassVar[int] = 100
    """The most messages in one send: large enough to share the wait for confirmations, and no larger than a claim, so
    that a crash repeats no more than one claim."""
    prefix: ClassVar[str] = "ce-"
    """The prefix of attributes in the broker's CloudEvents binding."""
    has_content_type: ClassVar[bool] = False
    """Whether the broker has a field for the content type; otherwise it is a header."""

    def __init__(self, options: CheckedBrokerOptions) -> None:
        if not _is_installed(self.module):
            raise InvalidSetting(
                f"{self.extra} needs {self.module}, which is not installed", hint=f'pip install "todoku[{self.extra}]"'
            )
        self.name = options.name
        self._options = options
        self._seconds = (options.send_timeout_ms or Settings().send_timeout_ms) / 1000
        self._reasons: Reasons | None = None
        self._secrets = SecretOptions()
        self._ending: set[asyncio.Future[None]] = set()
        self._lines: WeakKeyDictionary[asyncio.AbstractEventLoop, SharedConnection[C]] = WeakKeyDictionary()

    # ------------------------------------------------------------------------------- implemented by each broker

    @abstractmethod
    async def _connect(self) -> C:
        """Opens a connection, which is used until `_is_lost`."""

    @abstractmethod
    def _is_lost(self, connection: C) -> bool:
        """Whether nothing more can be sent through the connection."""

    @abstractmethod
    async def _publish(self, connection: C, parcels: Sequence[Parcel]) -> None:
        """Sends the messages and sets the outcome of each. An exception applies to all that have no outcome yet."""

    @abstractmethod
    async def _ping(self, connection: C) -> None:
        """Makes one round trip to the broker."""

    @abstractmethod
    async def _close(self, connection: C) -> None:
        """Closes the connection and drops messages that it has not sent yet."""

    @abstractmethod
    def _client_reasons(self) -> Reasons:
        """Returns the reasons for the exceptions of the client library."""

    def _headers(self, message: Outgoing) -> dict[str, str]:
        """Returns all headers of a message."""
        found = headers(message, source=self._options.source, prefix=self.prefix)
        if not self.has_content_type:
            found["content-type"] = message.content_type
        return found

    def _size(self, _connection: C, parcel: Parcel) -> tuple[int, int]:
        """Returns the size of a message as the broker counts it, and the largest allowed size."""
        return parcel.size, self._options.max_bytes

    # --------------------------------------------------------------------------------------------- as a destination

    def configure(self, settings: Settings) -> None:
        """Takes the timeout from the App's settings, unless the destination has its own."""
        self._seconds = (self._options.send_timeout_ms or settings.send_timeout_ms) / 1000

    def use_secrets(self, fill: FillSecrets) -> None:
        """Takes what reads the secrets that its address and its `client` options name."""
        self._secrets.use(fill)

    async def send(self, batch: Sequence[Outgoing]) -> list[Outcome]:
        """Sends a batch, in order, and returns one outcome per message. If the broker is down, all have the same."""
        parcels = [Parcel(message, self._headers(message)) for message in batch]
        line = self._line()

        async def publish() -> None:
            connection = await line.connected()
            await self._publish(connection, self._refuse_too_large(connection, parcels))

        try:
            await within(self._seconds, publish(), f"{self.name} did not confirm")
        except Exception as error:  # noqa: BLE001 - every exception of a client becomes an outcome
            self._give_up(line)
            unconfirmed = [parcel for parcel in parcels if parcel.outcome is None]
            await self._fail(unconfirmed, error, batch_size=len(batch))
        return [parcel.outcome or Retry(reason="INTERNAL_ERROR", detail="it has no outcome") for parcel in parcels]

    async def _fail(self, parcels: Sequence[Parcel], error: Exception, *, batch_size: int) -> None:
        """Sets the outcome of unconfirmed messages. If one message broke the connection, each is sent alone (I13)."""
        outcome: Outcome = self.outcome_of(error)
        alone = batch_size > 1 and self._broken_by_one(error)
        for parcel in parcels:
            if alone:
                (outcome,) = await self.send([parcel.message])
                alone = not isinstance(outcome, Retry)  # the broker is down: the others have the same outcome
            parcel.outcome = outcome

    async def ping(self) -> None:
        """Raises DeliveryError if the broker does not answer."""
        line = self._line()

        async def ping() -> None:
            await self._ping(await line.connected())

        try:
            await within(self._seconds, ping(), f"{self.name} did not answer")
        except Exception as error:
            self._give_up(line)
            raise DeliveryError("BROKER_DOWN", f"{type(error).__name__}: {error}") from error

    async def aclose(self) -> None:
        """Closes the connection of this event loop. The next send opens another."""
        loop = asyncio.get_running_loop()
        if (line := self._lines.pop(loop, None)) is not None:
            line.give_up()
        if ending := [closing for closing in self._ending if closing.get_loop() is loop]:
            await asyncio.wait(ending, timeout=2 * CLOSING)

    def outcome_of(self, error: Exception) -> Retry | Abort | Snooze:
        """Returns the outcome of an attempt that ended with this exception of the client library."""
        if self._reasons is None:
            self._reasons = {**REASONS, **self._client_reasons()}
        return classify(error, reasons=self._reasons)

    # -------------------------------------------------------------------------------------------------------- private

    async def _await_confirmations(self, waiting: Sequence[tuple[Parcel, asyncio.Future[Any]]]) -> None:
        """Sets the outcome of each message when its confirmation arrives; raises an error that applies to all."""
        common: list[Exception] = []

        def set_outcome(parcel: Parcel, confirmed: asyncio.Future[Any]) -> None:
            if confirmed.cancelled():
                return
            if not isinstance(error := confirmed.exception(), Exception):
                parcel.arrived()
            elif self._is_common(error):
                common.append(error)
            else:
                parcel.outcome = self.outcome_of(error)

        for parcel, confirmed in waiting:
            confirmed.add_done_callback(partial(set_outcome, parcel))
        if not waiting:
            return
        try:
            await asyncio.wait([confirmed for _, confirmed in waiting])
            await asyncio.sleep(0)  # lets the callback of the last one run
        finally:
            for _, confirmed in waiting:
                confirmed.cancel()
        if common:
            raise max(common, key=self._broken_by_one)

    def _is_common(self, error: Exception) -> bool:
        """Whether an error concerns the connection, and not only one message."""
        return isinstance(error, ConnectionError)

    def _broken_by_one(self, error: Exception) -> bool:
        """Whether one message may have broken the connection for the whole batch."""
        return isinstance(self.outcome_of(error), Abort)

    @classmethod
    def library(cls, part: str = "") -> Any:
        """Imports the client library, or a module of it."""
        return import_module(f"{cls.module}.{part}" if part else cls.module)

    async def _open(self) -> C:
        """Connects. An error of the client library may quote its arguments: if they have a secret, its text is lost."""
        try:
            return await self._connect()
        except Exception as error:
            if not self._secrets.used or isinstance(error, DeliveryError):
                raise
            outcome = self.outcome_of(error)
            reason = "BROKER_DOWN" if isinstance(outcome, Snooze) else outcome.reason
            raise DeliveryError(reason, type(error).__name__, retryable=not isinstance(outcome, Abort)) from None

    def _line(self) -> SharedConnection[C]:
        loop = asyncio.get_running_loop()
        if (line := self._lines.get(loop)) is None:
            line = self._lines[loop] = SharedConnection(self._open, self._is_lost, self._close, self._ending)
        return line

    def _give_up(self, line: SharedConnection[C]) -> None:
        """Closes a connection after a failure. The next send opens a new one."""
        line.give_up()
        if self._lines.get(loop := asyncio.get_running_loop()) is line:
            del self._lines[loop]

    def _refuse_too_large(self, connection: C, parcels: list[Parcel]) -> list[Parcel]:
        """Returns the messages that fit. Sending one that is too large would break the connection for all of them."""
        for parcel in parcels:
            size, limit = self._size(connection, parcel)
            if size > limit:
                parcel.outcome = Abort("TOO_LARGE", f"{size} bytes, {self.name} accepts {limit}")
        return [parcel for parcel in parcels if parcel.outcome is None]


async def run_all(sendings: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Awaits all sendings concurrently, each to its end; then raises the first error, if there was one."""
    for result in await asyncio.gather(*sendings, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is not installed
        return False


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def format_address(address: str, message: Outgoing) -> str:
    """Returns the address of a message: `{topic}` in it is replaced by the message's topic."""
    return address.replace("{topic}", message.topic) if "{" in address else address


def check_options(kind: str, address: str, given: BrokerOptions, *, max_bytes: int) -> CheckedBrokerOptions:
    """Returns checked options. By default a destination is named after its address."""
    name = kind if address in ("", "{topic}") else f"{kind}:{address}"
    complete: BrokerOptions = {"name": name, "max_bytes": max_bytes, **given}
    try:
        return CheckedBrokerOptions(**complete)
    except TypeError as error:
        raise InvalidSetting(f"{kind}: {error}", hint="see docs/brokers.md for its options") from None
