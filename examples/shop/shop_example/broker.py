"""The broker: NATS JetStream, or RabbitMQ where BROKER_URL says so. Both keep what they have confirmed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Protocol

import msgspec

import todoku
from shop_example.orders import BUS

LOGGER = logging.getLogger("broker")
ID = "todoku-message-id"
TYPE = "todoku-topic"
PAUSE = 1.0
"""Seconds until a message that could not be taken is delivered again."""


class Received(msgspec.Struct, frozen=True):
    """A message as a consumer gets it. `id` is the same however often it is delivered."""

    id: str
    type: str
    payload: bytes


def received(headers: Mapping[str, object] | None, payload: bytes) -> Received:
    """A message with its headers as the broker has them; one of somebody else's may have none."""
    found = headers or {}
    return Received(str(found.get(ID, "")), str(found.get(TYPE, "")), payload)


Take = Callable[[Received], object]
"""What a consumer does with a message; it is acknowledged when this has returned, and comes again if it raises."""


class Broker(Protocol):
    """One address on a broker: where the shop's events go, and its consumers read."""

    def destination(self) -> todoku.Destination:
        """The same address, as todoku sends to it."""

    async def declare(self) -> None:
        """Make the stream or queue, where it is missing."""

    async def publish(self, message: Received) -> None:
        """Send without an outbox, and wait for the confirmation."""

    async def receive(self, take: Take, *, idle: float | None = None) -> int:
        """Hand over every message, one after the other; how many. `idle`: until none came for so many seconds."""


def open_broker(url: str, address: str) -> Broker:
    """The broker of a URL that the settings have accepted."""
    return Nats(url, address) if url.startswith("nats:") else Rabbit(url, address)


async def keep_receiving(broker: Broker, take: Take) -> None:
    """Receive until cancelled: when the broker goes away, wait for it."""
    while True:
        try:
            await broker.receive(take)
        except Exception as error:  # noqa: BLE001 - whatever a client raises: it has kept what was not acknowledged
            LOGGER.warning("the broker is away, again in %g s: %s", PAUSE, str(error) or type(error).__name__)
            await asyncio.sleep(PAUSE)


async def _is_taken(take: Take, message: Received) -> bool:
    """Whether it may be acknowledged. First the commit, then that: a crash in between is a second delivery, no loss."""
    try:
        await asyncio.to_thread(take, message)
    except Exception as error:  # noqa: BLE001 - whatever a database says: later it may say something else
        LOGGER.warning("%s %s: not taken, again in %g s: %s", message.type, message.id, PAUSE, error)
        return False
    return True


class Nats:
    """A stream, and a durable consumer that remembers how far it is."""

    def __init__(self, url: str, address: str) -> None:
        self._url = url
        self._address = address

    def destination(self) -> todoku.Destination:
        """As Broker.destination."""
        return todoku.nats(f"{self._address}.{{topic}}", servers=self._url, stream=self._address, name=BUS)

    @asynccontextmanager
    async def _connected(self, *, attempts: int = 3) -> AsyncIterator[Any]:
        """`attempts` to connect, now and whenever the connection is lost; -1: until it is there."""
        import nats  # noqa: PLC0415 - only the broker in use

        async def told(error: Exception) -> None:
            LOGGER.warning("the broker: %s", str(error) or type(error).__name__)

        patience = {"max_reconnect_attempts": attempts, "reconnect_time_wait": 0.5}
        try:
            client = await nats.connect(self._url, error_cb=told, **patience)
        except nats.errors.Error as error:
            raise ConnectionError(f"the broker is not there: {error}") from error
        try:
            yield client.jetstream()
        finally:
            await client.close()

    async def declare(self) -> None:
        """As Broker.declare."""
        async with self._connected() as stream:
            await stream.add_stream(name=self._address, subjects=[f"{self._address}.>"])

    async def publish(self, message: Received) -> None:
        """As Broker.publish."""
        async with self._connected() as stream:
            named = {ID: message.id, TYPE: message.type}
            await stream.publish(f"{self._address}.{message.type}", message.payload, headers=named)

    async def receive(self, take: Take, *, idle: float | None = None) -> int:
        """As Broker.receive. Whoever shares the durable name shares the messages."""
        taken = 0
        async with self._connected(attempts=-1) as stream:
            mine = await stream.pull_subscribe(f"{self._address}.>", durable="points", stream=self._address)
            while True:
                try:
                    (message,) = await mine.fetch(1, timeout=idle or 1.0)
                except TimeoutError:
                    if idle is not None:
                        return taken
                    continue
                if await _is_taken(take, received(message.headers, message.data)):
                    await message.ack()
                    taken += 1
                else:
                    await message.nak(PAUSE)


class Rabbit:
    """A durable queue."""

    def __init__(self, url: str, address: str) -> None:
        self._url = url
        self._address = address

    def destination(self) -> todoku.Destination:
        """As Broker.destination."""
        return todoku.rabbitmq(routing_key=self._address, url=self._url, name=BUS)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        import aio_pika  # noqa: PLC0415 - only the broker in use

        async with await aio_pika.connect_robust(self._url) as connection:
            yield await connection.channel()

    async def declare(self) -> None:
        """As Broker.declare."""
        async with self._connected() as channel:
            await channel.declare_queue(self._address, durable=True)

    async def publish(self, message: Received) -> None:
        """As Broker.publish."""
        from aio_pika import DeliveryMode, Message  # noqa: PLC0415 - only the broker in use

        named: dict[str, Any] = {ID: message.id, TYPE: message.type}
        body = Message(message.payload, headers=named, delivery_mode=DeliveryMode.PERSISTENT)
        async with self._connected() as channel:
            await channel.default_exchange.publish(body, self._address, mandatory=True)

    async def receive(self, take: Take, *, idle: float | None = None) -> int:
        """As Broker.receive."""
        taken = 0
        async with self._connected() as channel:
            await channel.set_qos(prefetch_count=1)
            queue = await channel.declare_queue(self._address, durable=True)
            with suppress(TimeoutError):
                async with queue.iterator(timeout=idle) as messages:
                    async for message in messages:
                        if await _is_taken(take, received(message.headers, message.body)):
                            await message.ack()
                            taken += 1
                        else:
                            await asyncio.sleep(PAUSE)
                            await message.nack(requeue=True)
        return taken
