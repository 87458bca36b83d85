"""NATS JetStream: published with `Nats-Msg-Id`, acknowledged by the stream."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from itertools import count
from typing import Any, Final, Unpack
from urllib.parse import quote

import msgspec

from todoku.core.destination import Outgoing
from todoku.core.failure import DeliveryError, Reasons
from todoku.destinations.broker import (
    Broker,
    BrokerOptions,
    CheckedBrokerOptions,
    Parcel,
    check_options,
    format_address,
)

_STATUS_LINE: Final = len("NATS/1.0\r\n\r\n")
_PRINTABLE: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
"""Characters that the CloudEvents binding does not percent-encode in a header."""

_UNRESERVED: Final = re.compile(f"[{re.escape(_PRINTABLE)}]*")


class _Refusal(msgspec.Struct, frozen=True):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Ack(msgspec.Struct, frozen=True):
    """A stream's response. It acknowledges duplicates, too."""

    error: _Refusal | None = None


class Jet:
    """A connection, the inbox of its acknowledgements, and the messages that wait for one."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.inbox = f"{client.new_inbox()}."
        self._waiting: dict[str, tuple[Parcel, asyncio.Future[None]]] = {}
        self._numbers = count(1)
        self._decoder = msgspec.json.Decoder(_Ack)

    def expect(self, parcel: Parcel) -> tuple[str, asyncio.Future[None]]:
        """Returns the reply subject for a message, and the future of its acknowledgement."""
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        token = str(next(self._numbers))
        self._waiting[token] = (parcel, answered)
        answered.add_done_callback(lambda _: self._waiting.pop(token, None))
        return self.inbox + token, answered

    async def answered(self, answer: Any) -> None:
        """Handles a reply: from a stream, or from the server if no stream has the subject."""
        parcel, waiting = self._waiting.get(answer.subject.removeprefix(self.inbox), (None, None))
        if parcel is None or waiting is None or waiting.done():
            return
        if answer.headers and answer.headers.get("Status") == "503":
            waiting.set_exception(DeliveryError("UNROUTABLE", f"no stream has the subject of {parcel.message.topic}"))
            return
        try:
            refusal = self._decoder.decode(answer.data).error
        except msgspec.MsgspecError as error:
            waiting.set_exception(DeliveryError("BROKER_REJECTED", f"the reply is not an acknowledgement: {error}"))
            return
        if refusal is None:
            waiting.set_result(None)
        else:
            waiting.set_exception(_refused(refusal))

    async def lost(self) -> None:
        """Fails all waiting messages after the connection was lost."""
        for _, waiting in list(self._waiting.values()):
            if not waiting.done():
                waiting.set_exception(ConnectionResetError("the connection was lost"))


class Nats(Broker[Jet]):
    """Publishes to JetStream. The stream drops duplicates within its duplicate window, by `Nats-Msg-Id`."""

    module = "nats"
    extra = "nats"

    def __init__(
        self, subject: str, servers: str | Sequence[str], stream: str | None, options: CheckedBrokerOptions
    ) -> None:
        super().__init__(options)
        self._subject = subject
        self._servers = [servers] if isinstance(servers, str) else list(servers)
        self._stream = stream

    async def _connect(self) -> Jet:
        jets: list[Jet] = []

        async def lost() -> None:
            for jet in jets:
                await jet.lost()

        async def ignore(_error: Exception) -> None:
            """Does nothing: the sends that fail report the error."""

        # The client must not reconnect: it would then send messages whose outcome is already a Retry.
        once = {"allow_reconnect": False, "max_reconnect_attempts": 1, "reconnect_time_wait": 0}
        callbacks = {"disconnected_cb": lost, "closed_cb": lost, "error_cb": ignore}
        limit = {"connect_timeout": max(1, int(self._seconds))}
        servers, given = await self._secrets.filled((self._servers, self._options.client))
        arguments = {"servers": servers, **once, **callbacks, **limit, **given}
        client = await self.library().connect(**arguments)
        jets.append(Jet(client))
        await client.subscribe(f"{jets[0].inbox}*", cb=jets[0].answered, pending_msgs_limit=0, pending_bytes_limit=0)
        return jets[0]

    def _is_lost(self, connection: Jet) -> bool:
        return not connection.client.is_connected

    def _headers(self, message: Outgoing) -> dict[str, str]:
        found = super()._headers(message)
        for name, value in found.items():
            if name.startswith("ce-"):
                found[name] = _encode(value)
        found["Nats-Msg-Id"] = _encode(message.idempotency_key)
        if self._stream is not None:
            found["Nats-Expected-Stream"] = self._stream
        return found

    def _size(self, connection: Jet, parcel: Parcel) -> tuple[int, int]:
        return parcel.size + _STATUS_LINE, min(self._options.max_bytes, connection.client.max_payload)

    async def _publish(self, connection: Jet, parcels: Sequence[Parcel]) -> None:
        await self._await_confirmations([(parcel, await self._put(connection, parcel)) for parcel in parcels])

    async def _put(self, connection: Jet, parcel: Parcel) -> asyncio.Future[None]:
        reply, answered = connection.expect(parcel)
        subject = format_address(self._subject, parcel.message)
        try:
            await connection.client.publish(subject, parcel.message.payload, reply=reply, headers=parcel.headers)
        except (ValueError, self.library("errors").BadHeaderError, self.library("errors").BadSubjectError) as error:
            answered.set_exception(DeliveryError("BROKER_REJECTED", str(error), retryable=False))
        return answered

    async def _ping(self, connection: Jet) -> None:
        await connection.client.flush(timeout=max(1, int(self._seconds)))

    async def _close(self, connection: Jet) -> None:
        await connection.lost()
        await connection.client.close()

    def _client_reasons(self) -> Reasons:
        errors = self.library("errors")
        return {
            errors.Error: ("BROKER_DOWN", True),
            errors.TimeoutError: ("BROKER_TIMEOUT", True),
            errors.AuthorizationError: ("BROKER_DENIED", True),
            errors.MaxPayloadError: ("TOO_LARGE", False),
        }


def _encode(value: str) -> str:
    """Percent-encodes an attribute as the CloudEvents binding requires. Most values need none, and the check is faster
    than `quote`."""
    return value if _UNRESERVED.fullmatch(value) else quote(value, safe=_PRINTABLE)


def _refused(refusal: _Refusal) -> DeliveryError:
    """Returns the error for a refusal. A stream that is full or has no leader may accept the message later; a bad
    request (400) is never accepted."""
    return DeliveryError(
        "BROKER_REJECTED", f"{refusal.description} ({refusal.err_code})", retryable=refusal.code != 400
    )


def nats(
    subject: str = "{topic}",
    *,
    servers: str | Sequence[str] = "nats://localhost:4222",
    stream: str | None = None,
    **given: Unpack[BrokerOptions],
) -> Nats:
    """Creates a destination on NATS JetStream. `{topic}` in the subject is the message's topic.

    `stream`: the stream that has to store the messages. The server's size limit applies as well as `max_bytes`.
    `client`: further arguments of `nats.connect`.
    """
    return Nats(subject, servers, stream, check_options("nats", subject, given, max_bytes=1 << 26))
