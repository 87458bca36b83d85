"""RabbitMQ: published as mandatory, persistent messages, confirmed by the broker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import import_module
from typing import Any, NamedTuple, Unpack

from todoku.core.failure import Reasons
from todoku.destinations.broker import (
    Broker,
    BrokerOptions,
    CheckedBrokerOptions,
    Parcel,
    check_options,
    format_address,
)


class RabbitChannel(NamedTuple):
    """A connection, its only channel, and the exchange on that channel."""

    connection: Any
    channel: Any
    exchange: Any


class Rabbitmq(Broker[RabbitChannel]):
    """Publishes to an exchange. A message is delivered when every queue it was routed to has accepted it. Queues do not
    recognise duplicates."""

    module = "aio_pika"
    extra = "rabbitmq"
    prefix = "cloudEvents:"
    has_content_type = True

    def __init__(self, exchange: str, routing_key: str, url: str, options: CheckedBrokerOptions) -> None:
        super().__init__(options)
        self._exchange = exchange
        self._routing_key = routing_key
        self._url = url

    async def _connect(self) -> RabbitChannel:
        # Not `connect_robust`: after a loss the waiting sends have to fail, and the next send opens a new connection.
        url, client = await self._secrets.filled((self._url, self._options.client))
        connection = await self.library().connect(url, **{"timeout": self._seconds, **client})
        try:
            channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
            exchange = await channel.get_exchange(self._exchange, ensure=False)
        except BaseException:
            await connection.close()
            raise
        return RabbitChannel(connection, channel, exchange)

    def _is_lost(self, connection: RabbitChannel) -> bool:
        return bool(connection.connection.is_closed or connection.channel.is_closed)

    async def _publish(self, connection: RabbitChannel, parcels: Sequence[Parcel]) -> None:
        loop = asyncio.get_running_loop()
        await self._await_confirmations(
            [(parcel, loop.create_task(self._put(connection, parcel))) for parcel in parcels]
        )

    async def _put(self, connection: RabbitChannel, parcel: Parcel) -> None:
        library, message = self.library(), parcel.message
        body = library.Message(
            message.payload,
            headers=parcel.headers,
            content_type=message.content_type,
            delivery_mode=library.DeliveryMode.PERSISTENT,
            message_id=message.message_id,
            timestamp=datetime.fromtimestamp(message.created_at, UTC),
            type=message.topic,
        )
        await connection.exchange.publish(body, format_address(self._routing_key, message), mandatory=True)

    def _is_common(self, error: Exception) -> bool:
        return isinstance(error, self._errors.AMQPConnectionError) or self._broken_by_one(error)

    def _broken_by_one(self, error: Exception) -> bool:
        # The broker closes the channel because of one message; other messages sent on it may close the connection, too.
        errors = self._errors
        return isinstance(
            error, errors.AMQPChannelError | errors.ChannelInvalidStateError | errors.ConnectionChannelError
        )

    @property
    def _errors(self) -> Any:
        return import_module("aiormq.exceptions")  # a dependency of aio_pika, which raises its errors

    async def _ping(self, connection: RabbitChannel) -> None:
        # Opening a channel is a round trip that needs no permissions.
        channel = await connection.connection.channel(publisher_confirms=False)
        await channel.close()

    async def _close(self, connection: RabbitChannel) -> None:
        await connection.connection.close()

    def _client_reasons(self) -> Reasons:
        errors = self._errors
        return {
            errors.AMQPError: ("BROKER_DOWN", True),
            errors.ChannelInvalidStateError: ("BROKER_DOWN", True),
            errors.AuthenticationError: ("BROKER_DENIED", True),
            errors.ProbableAuthenticationError: ("BROKER_DENIED", True),
            errors.ChannelAccessRefused: ("BROKER_DENIED", True),
            # The exchange is missing, or no queue is bound for the routing key: they may be declared later.
            errors.ChannelNotFoundEntity: ("UNROUTABLE", True),
            errors.PublishError: ("UNROUTABLE", True),
            # A full queue refuses messages (nack) and may accept them later.
            errors.DeliveryError: ("BROKER_REJECTED", True),
            errors.ChannelPreconditionFailed: ("BROKER_REJECTED", False),
        }


def rabbitmq(
    exchange: str = "",
    *,
    routing_key: str = "{topic}",
    url: str = "amqp://guest:guest@localhost/",
    **given: Unpack[BrokerOptions],
) -> Rabbitmq:
    """Creates a destination on an exchange of RabbitMQ. `{topic}` in the routing key is the message's topic.

    With "", the default exchange, the routing key is the name of a queue. `client`: further arguments of
    `aio_pika.connect`.
    """
    address = exchange or ("" if routing_key == "{topic}" else routing_key)
    return Rabbitmq(exchange, routing_key, url, check_options("rabbitmq", address, given, max_bytes=128 << 20))
