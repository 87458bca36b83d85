"""Kafka: an idempotent producer, acknowledged by all in-sync replicas; the key chooses the partition."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Unpack

from todoku.core.failure import Reasons
from todoku.core.outcome import Abort, Retry
from todoku.destinations.aiokafka_producer import is_lost, mark_closed, stop
from todoku.destinations.broker import (
    Broker,
    BrokerOptions,
    CheckedBrokerOptions,
    Parcel,
    check_options,
    format_address,
    run_all,
)


class Kafka(Broker[Any]):
    """Produces to a topic. The broker drops what the producer repeats; a retry of the worker is a duplicate."""

    module = "aiokafka"
    extra = "kafka"
    prefix = "ce_"

    def __init__(self, topic: str, servers: str | Sequence[str], options: CheckedBrokerOptions) -> None:
        super().__init__(options)
        self._topic = topic
        self._servers = servers if isinstance(servers, str) else list(servers)

    async def _connect(self) -> Any:
        servers, client = await self._secrets.filled((self._servers, self._options.client))
        producer = self.library().AIOKafkaProducer(
            **{
                "bootstrap_servers": servers, "enable_idempotence": True, "acks": "all",
                "request_timeout_ms": int(self._seconds * 900), "max_request_size": self._options.max_bytes,
                **client,
            }
        )  # fmt: skip
        try:
            await producer.start()
        except BaseException:
            await producer.client.close()
            mark_closed(producer)
            raise
        return producer

    def _is_lost(self, connection: Any) -> bool:
        return is_lost(connection)

    async def _publish(self, connection: Any, parcels: Sequence[Parcel]) -> None:
        topics: dict[str, list[Parcel]] = {}
        for parcel in parcels:
            topics.setdefault(format_address(self._topic, parcel.message), []).append(parcel)
        # The client waits for a topic that does not exist; the other topics need not wait for it.
        await run_all(self._to_topic(connection, topic, group) for topic, group in topics.items())

    async def _to_topic(self, connection: Any, topic: str, parcels: Sequence[Parcel]) -> None:
        waiting: list[tuple[Parcel, asyncio.Future[Any]]] = []
        for parcel in parcels:
            message = parcel.message
            key = None if message.key is None else message.key.encode()
            headers = [(name, value.encode()) for name, value in parcel.headers.items()]
            try:
                confirmed = await connection.send(topic, message.payload, key=key, headers=headers)
            except Exception as error:
                if self._is_common(error):
                    raise
                parcel.outcome = self.outcome_of(error)
            else:
                waiting.append((parcel, confirmed))
        await self._await_confirmations(waiting)
        if any(isinstance(parcel.outcome, Retry | Abort) for parcel, _ in waiting):
            # A refused message leaves a gap in the producer's sequence numbers, after which the broker accepts no more.
            raise ConnectionResetError("a message was refused: the producer has to be restarted")

    def _is_common(self, error: Exception) -> bool:
        errors = self.library("errors")
        message_errors = (
            errors.MessageSizeTooLargeError, errors.RecordListTooLargeError, errors.UnknownTopicOrPartitionError,
            errors.InvalidTopicError, errors.TopicAuthorizationFailedError, errors.CorruptRecordException,
            errors.NotEnoughReplicasError, errors.NotEnoughReplicasAfterAppendError,
        )  # fmt: skip
        return not isinstance(error, message_errors)

    def _broken_by_one(self, error: Exception) -> bool:
        return isinstance(error, self.library("errors").OutOfOrderSequenceNumber)

    async def _ping(self, connection: Any) -> None:
        await connection.client.fetch_all_metadata()

    async def _close(self, connection: Any) -> None:
        await stop(connection)  # waiting messages must not be sent any more, because their outcome is already a Retry

    def _client_reasons(self) -> Reasons:
        errors = self.library("errors")
        down, denied = ("BROKER_DOWN", True), ("BROKER_DENIED", True)
        return {
            errors.KafkaError: down,
            errors.LeaderNotAvailableError: down,
            errors.NotLeaderForPartitionError: down,
            errors.NotEnoughReplicasError: down,
            errors.NotEnoughReplicasAfterAppendError: down,
            errors.BrokerResponseError: ("BROKER_REJECTED", True),
            errors.KafkaTimeoutError: ("BROKER_TIMEOUT", True),
            errors.RequestTimedOutError: ("BROKER_TIMEOUT", True),
            errors.AuthenticationFailedError: denied,
            errors.SaslAuthenticationFailed: denied,
            errors.TopicAuthorizationFailedError: denied,
            errors.ClusterAuthorizationFailedError: denied,
            errors.UnknownTopicOrPartitionError: ("UNROUTABLE", True),
            errors.InvalidTopicError: ("BROKER_REJECTED", False),
            errors.MessageSizeTooLargeError: ("TOO_LARGE", False),
            errors.RecordListTooLargeError: ("TOO_LARGE", False),
        }


def kafka(
    topic: str = "{topic}",
    *,
    servers: str | Sequence[str] = "localhost:9092",
    **given: Unpack[BrokerOptions],
) -> Kafka:
    """Creates a destination on a Kafka topic. `{topic}` in its name is the message's topic; the key chooses the
    partition.

    `client`: further arguments of `aiokafka.AIOKafkaProducer`.
    """
    return Kafka(topic, servers, check_options("kafka", topic, given, max_bytes=1 << 20))
