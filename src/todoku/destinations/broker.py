"""What broker destinations share: one connection for all their sends, a time limit, and one outcome a message.

A broker is asked to confirm every message. A whole batch is in flight at once, then its confirmations are gathered; so
one bad message costs its neighbours nothing (I13). Whatever is not confirmed when the time is over is a Retry: it may
have arrived, and a consumer tells by the message id.
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
from todoku.core.destination import Outgoing
from todoku.core.errors import InvalidSetting
from todoku.core.failure import DeliveryError, Reasons, classify
from todoku.core.outcome import DONE, Abort, Outcome, Retry, Snooze
from todoku.core.settings import Settings
from todoku.destinations.connection import CLOSING, C, Line, within

REASONS: Final[Reasons] = {
    TimeoutError: ("BROKER_TIMEOUT", True),
    ConnectionError: ("BROKER_DOWN", True),
    OSError: ("BROKER_DOWN", True),
}
"""What is the same for every client. Each adds what its own library raises."""

_SMALL: Final = 16 << 10
"""Nobody's limit is below this, so that what is smaller need not be counted exactly."""


class BrokerOptions(TypedDict, total=False):
    """What every broker destination can be told, beside where it sends to.

    `name` of the destination; `source` of the events, after CloudEvents; `send_timeout_ms` for a batch (default: the
    setting); `max_bytes` of a message with its headers; `client`: further arguments of the client library's own.
    """

    name: str
    source: str
    send_timeout_ms: int
    max_bytes: int
    client: Mapping[str, Any]


class CheckedBrokerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The same, checked and complete."""

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
    """A message as it leaves, with its headers; and what became of it. None: not known yet."""

    __slots__ = ("headers", "message", "outcome")

    def __init__(self, message: Outgoing, found: dict[str, str]) -> None:
        self.message = message
        self.headers = found
        self.outcome: Outcome | None = None

    def arrived(self) -> None:
        """The broker has confirmed it."""
        self.outcome = DONE

    @property
    def size(self) -> int:
        """Bytes of payload and headers: exactly, or more where that is far below what any broker minds."""
        found = self.headers
        characters = sum(map(len, found)) + sum(map(len, found.values()))
        if (most := len(self.message.payload) + 4 * (characters + len(found))) < _SMALL:
            return most
        return len(self.message.payload) + sum(_bytes(name) + _bytes(value) + 4 for name, value in self.headers.items())


class Broker(ABC, Generic[C]):
    """A destination on a broker. Connections are made when first needed, shared by all sends, and made again when lost.

    They belong to the event loop they were made in: a destination may be sent to by workers in several.
    """

    module: ClassVar[str]
    """The client library, imported when it is needed."""
    extra: ClassVar[str]
    batch: ClassVar[int] = 100
    """So many messages at once: more in flight for each wait, and not more at stake in a crash than in one claim."""
    prefix: ClassVar[str] = "ce-"
    """How the broker's binding of CloudEvents begins the names of attributes."""
    has_content_type: ClassVar[bool] = False
    """Whether a content type is a property of its own there; else it is a header."""

    def __init__(self, options: CheckedBrokerOptions) -> None:
        if not _is_installed(self.module):
            raise InvalidSetting(
                f"{self.extra} needs {self.module}, which is not installed", hint=f'pip install "todoku[{self.extra}]"'
            )
        self.name = options.name
        self._options = options
        self._seconds = (options.send_timeout_ms or Settings().send_timeout_ms) / 1000
        self._reasons: Reasons | None = None
        self._ending: set[asyncio.Future[None]] = set()
        self._lines: WeakKeyDictionary[asyncio.AbstractEventLoop, Line[C]] = WeakKeyDictionary()

    # ------------------------------------------------------------------------------- what each broker has of its own

    @abstractmethod
    async def _connect(self) -> C:
        """A new connection, good until `_is_lost` says otherwise."""

    @abstractmethod
    def _is_lost(self, connection: C) -> bool:
        """Whether nothing more can be sent through it."""

    @abstractmethod
    async def _publish(self, connection: C, parcels: Sequence[Parcel]) -> None:
        """Send them, and set the outcome of each as it is known. What is raised is for all that have none yet."""

    @abstractmethod
    async def _ping(self, connection: C) -> None:
        """Ask the broker whether it is there."""

    @abstractmethod
    async def _close(self, connection: C) -> None:
        """End the connection; what is still in it is dropped."""

    @abstractmethod
    def _raised(self) -> Reasons:
        """What the errors of the client library mean."""

    def _headers(self, message: Outgoing) -> dict[str, str]:
        """All headers of a message, as the broker is given them."""
        found = headers(message, source=self._options.source, prefix=self.prefix)
        if not self.has_content_type:
            found["content-type"] = message.content_type
        return found

    def _size(self, _connection: C, parcel: Parcel) -> tuple[int, int]:
        """How large a parcel is, as the broker counts, and how large it may be."""
        return parcel.size, self._options.max_bytes

    # --------------------------------------------------------------------------------------------- as a destination

    def configure(self, settings: Settings) -> None:
        """The App that routes to this destination has these settings; what the destination was told itself stays."""
        self._seconds = (self._options.send_timeout_ms or settings.send_timeout_ms) / 1000

    async def send(self, batch: Sequence[Outgoing]) -> list[Outcome]:
        """Send a batch, in its order. One outcome a message; one for all of them if the broker is not there."""
        parcels = [Parcel(message, self._headers(message)) for message in batch]
        line = self._line()

        async def publish() -> None:
            connection = await line.connected()
            await self._publish(connection, self._fitting(connection, parcels))

        try:
            await within(self._seconds, publish())
        except Exception as error:  # noqa: BLE001 - whatever a client raises is an outcome
            self._give_up(line)
            await self._failed([parcel for parcel in parcels if parcel.outcome is None], error, of=len(batch))
        return [parcel.outcome or Retry(reason="INTERNAL_ERROR", detail="no answer was noted") for parcel in parcels]

    async def _failed(self, parcels: Sequence[Parcel], error: Exception, *, of: int) -> None:
        """These, of so many, had no answer. If one of them broke the connection, each is sent alone (I13)."""
        outcome: Outcome = self.meaning(error)
        alone = of > 1 and self._broken_by_one(error)
        for parcel in parcels:
            if alone:
                (outcome,) = await self.send([parcel.message])
                alone = not isinstance(outcome, Retry)  # it is not there at all: so it is for the rest of them
            parcel.outcome = outcome

    async def ping(self) -> None:
        """Whether the broker answers; DeliveryError if it does not."""
        line = self._line()

        async def ping() -> None:
            await self._ping(await line.connected())

        try:
            await within(self._seconds, ping())
        except Exception as error:
            self._give_up(line)
            raise DeliveryError("BROKER_DOWN", f"{type(error).__name__}: {error}") from error

    async def aclose(self) -> None:
        """End the connection of this event loop. The next send makes another."""
        loop = asyncio.get_running_loop()
        if (line := self._lines.pop(loop, None)) is not None:
            line.give_up()
        if ending := [goodbye for goodbye in self._ending if goodbye.get_loop() is loop]:
            await asyncio.wait(ending, timeout=2 * CLOSING)

    def meaning(self, error: Exception) -> Retry | Abort | Snooze:
        """What an error of the client library means for the next attempt: the one place that says so."""
        if self._reasons is None:
            self._reasons = {**REASONS, **self._raised()}
        return classify(error, reasons=self._reasons)

    # -------------------------------------------------------------------------------------------------------- inside

    async def _gathered(self, waiting: Sequence[tuple[Parcel, asyncio.Future[Any]]]) -> None:
        """Note each confirmation when it comes, whichever comes first. What all have in common is raised at the end."""
        common: list[Exception] = []

        def noted(parcel: Parcel, confirmed: asyncio.Future[Any]) -> None:
            if confirmed.cancelled():
                return
            if not isinstance(error := confirmed.exception(), Exception):
                parcel.arrived()
            elif self._is_common(error):
                common.append(error)
            else:
                parcel.outcome = self.meaning(error)

        for parcel, confirmed in waiting:
            confirmed.add_done_callback(partial(noted, parcel))
        if not waiting:
            return
        try:
            await asyncio.wait([confirmed for _, confirmed in waiting])
            await asyncio.sleep(0)  # the last of them is being noted
        finally:
            for _, confirmed in waiting:
                confirmed.cancel()
        if common:
            raise max(common, key=self._broken_by_one)

    def _is_common(self, error: Exception) -> bool:
        """Whether an error speaks about the connection, and not about the one message it came for."""
        return isinstance(error, ConnectionError)

    def _broken_by_one(self, error: Exception) -> bool:
        """Whether one message may have broken the connection for all of them."""
        return isinstance(self.meaning(error), Abort)

    @classmethod
    def library(cls, part: str = "") -> Any:
        """The client library, or a part of it."""
        return import_module(f"{cls.module}.{part}" if part else cls.module)

    def _line(self) -> Line[C]:
        loop = asyncio.get_running_loop()
        if (line := self._lines.get(loop)) is None:
            line = self._lines[loop] = Line(self._connect, self._is_lost, self._close, self._ending)
        return line

    def _give_up(self, line: Line[C]) -> None:
        """Something failed on this line: the next send makes a new one, and nothing waits in the old any more."""
        line.give_up()
        if self._lines.get(loop := asyncio.get_running_loop()) is line:
            del self._lines[loop]

    def _fitting(self, connection: C, parcels: list[Parcel]) -> list[Parcel]:
        """Those that the broker can take. A message that is too large would cost the connection, and its neighbours."""
        for parcel in parcels:
            size, most = self._size(connection, parcel)
            if size > most:
                parcel.outcome = Abort("TOO_LARGE", f"{size} bytes, {self.name} takes {most}")
        return [parcel for parcel in parcels if parcel.outcome is None]


async def together(sendings: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Several at once, each to its end; then the first error is raised, if there was one."""
    for ended in await asyncio.gather(*sendings, return_exceptions=True):
        if isinstance(ended, BaseException):
            raise ended


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # not even the package it is in
        return False


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def addressed(address: str, message: Outgoing) -> str:
    """Where a message goes: `{topic}` in an address stands for the message's topic."""
    return address.replace("{topic}", message.topic) if "{" in address else address


def options(kind: str, address: str, given: BrokerOptions, *, max_bytes: int) -> CheckedBrokerOptions:
    """Options as given; a destination without a name is called after its address."""
    name = kind if address in ("", "{topic}") else f"{kind}:{address}"
    complete: BrokerOptions = {"name": name, "max_bytes": max_bytes, **given}
    try:
        return CheckedBrokerOptions(**complete)
    except TypeError as error:
        raise InvalidSetting(f"{kind}: {error}", hint="see docs/brokers.md for its options") from None
