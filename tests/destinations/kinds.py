"""Each broker as the tests see it: how an address on it is made, sent to, and read back."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar, TypeVar

import msgspec

import todoku
from tests.support import services
from tests.support.services import Service

TOO_MUCH = 100_000
"""More bytes than any of the servers here takes in one message."""


class Received(msgspec.Struct, frozen=True):
    """A message as a consumer gets it. `properties`: what the broker itself knows of it."""

    payload: bytes
    headers: dict[str, str]
    properties: dict[str, str] = {}

    @property
    def id(self) -> str:
        return self.headers["todoku-message-id"]

    @property
    def key(self) -> str | None:
        return self.headers.get("todoku-key")


class Kind(ABC):
    """One kind of broker."""

    name: ClassVar[str]
    server: ClassVar[type[Service]]
    prefix: ClassVar[str] = "ce-"
    keeps_order: ClassVar[bool] = True
    """Whether a consumer sees a key's messages in the order they came."""
    forgets: ClassVar[bool] = False
    """A server that a kill makes forget: it cannot show that nothing is lost."""
    risks_the_new: ClassVar[bool] = False
    """A server that has on disk only after a moment what was declared."""
    fewer: ClassVar[int] = 1
    """A server that is played by a program far slower than the real one is sent one message for so many."""

    def __init__(self, service: Service) -> None:
        self.service = service

    @abstractmethod
    def destination(self, address: str, **options: Any) -> todoku.Destination:
        """The destination, as a user makes it."""

    def patient(self, address: str, **options: Any) -> todoku.Destination:
        """The same, where a server that a busy machine keeps waiting is not what is tested."""
        return self.destination(address, send_timeout_ms=60_000, **options)

    @abstractmethod
    async def declare(self, address: str) -> None:
        """Make the queue, stream or topic."""

    @abstractmethod
    async def received(self, address: str) -> list[Received]:
        """Everything that has arrived, in the consumer's order. What it takes away stays taken."""


class NatsKind(Kind):
    name = "nats"
    server = services.NatsServer

    def destination(self, address: str, **options: Any) -> todoku.Destination:
        return todoku.nats(f"{address}.{{topic}}", servers=self.service.url, **options)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        import nats

        client = await nats.connect(self.service.url)
        try:
            yield client.jetstream()
        finally:
            await client.close()

    async def declare(self, address: str) -> None:
        async with self._connected() as stream:
            await stream.add_stream(name=address, subjects=[f"{address}.>"])

    async def received(self, address: str) -> list[Received]:
        async with self._connected() as stream:
            left = (await stream.stream_info(address)).state.messages
            taken = await stream.subscribe(f"{address}.>", ordered_consumer=True)
            return [self._read(await taken.next_msg(timeout=10)) for _ in range(left)]

    def _read(self, message: Any) -> Received:
        return Received(message.data, dict(message.headers), {"content-type": message.headers["content-type"]})


class RedisKind(Kind):
    name = "redis"
    server = services.ValkeyServer

    def destination(self, address: str, **options: Any) -> todoku.Destination:
        return todoku.redis(address, url=self.service.url, **({"max_bytes": 65536} | options))

    async def declare(self, address: str) -> None:
        """A stream is there when it has something."""

    async def received(self, address: str) -> list[Received]:
        import redis.asyncio

        async with redis.asyncio.Redis.from_url(self.service.url) as client:
            entries: list[Any] = []
            while more := await client.xrange(
                address, min=f"({entries[-1][0].decode()}" if entries else "-", count=500
            ):
                entries += more
        return [self._read({name.decode(): value for name, value in fields.items()}) for _, fields in entries]

    def _read(self, fields: dict[str, bytes]) -> Received:
        payload = fields.pop("payload")
        found = {name: value.decode() for name, value in fields.items()}
        return Received(payload, found, {"content-type": found["content-type"]})


class RabbitKind(Kind):
    name = "rabbitmq"
    server = services.RabbitServer
    risks_the_new = True
    prefix = "cloudEvents:"

    def destination(self, address: str, **options: Any) -> todoku.Destination:
        limits = {"max_bytes": 65536} | options
        return todoku.rabbitmq(routing_key=address, url=self.service.url, **limits)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        import aio_pika

        async with await aio_pika.connect(self.service.url) as connection:
            yield await connection.channel()

    async def declare(self, address: str) -> None:
        async with self._connected() as channel:
            await channel.declare_queue(address, durable=True)

    async def received(self, address: str) -> list[Received]:
        got: list[Received] = []
        async with self._connected() as channel:
            queue = await channel.declare_queue(address, durable=True, passive=True)
            left = queue.declaration_result.message_count
            async with queue.iterator(no_ack=True, timeout=10) as messages:
                while left:
                    got.append(self._read(await anext(messages)))
                    left -= 1
        return got

    def _read(self, message: Any) -> Received:
        known = {"content-type": message.content_type, "message-id": message.message_id, "type": message.type}
        known["persistent"] = str(int(message.delivery_mode))
        return Received(message.body, {name: str(value) for name, value in message.headers.items()}, known)


class KafkaKind(Kind):
    name = "kafka"
    server = services.KafkaServer
    prefix = "ce_"

    def destination(self, address: str, **options: Any) -> todoku.Destination:
        return todoku.kafka(address, servers=self.service.url, **({"max_bytes": 60_000} | options))

    async def declare(self, address: str) -> None:
        from aiokafka.admin import AIOKafkaAdminClient, NewTopic

        while True:
            admin = AIOKafkaAdminClient(bootstrap_servers=self.service.url)
            await admin.start()
            try:
                await admin.create_topics([NewTopic(address, num_partitions=3, replication_factor=1)])
                return
            except AttributeError:  # aiokafka's, while a server that has just started names no controller
                await asyncio.sleep(0.1)
            finally:
                await admin.close()

    async def received(self, address: str) -> list[Received]:
        from aiokafka import AIOKafkaConsumer, TopicPartition

        consumer = AIOKafkaConsumer(bootstrap_servers=self.service.url)
        await consumer.start()
        try:
            parts = [TopicPartition(address, number) for number in range(3)]
            consumer.assign(parts)
            await consumer.seek_to_beginning(*parts)
            ends = await consumer.end_offsets(parts)
            got: list[Received] = []
            for part in parts:
                while await consumer.position(part) < ends[part]:
                    batch = await consumer.getmany(part, timeout_ms=2000)
                    got += [self._read(record) for records in batch.values() for record in records]
            return got
        finally:
            await consumer.stop()

    def _read(self, record: Any) -> Received:
        found = {name: value.decode() for name, value in record.headers}
        known = {"content-type": found["content-type"], "key": "" if record.key is None else record.key.decode()}
        return Received(record.value, found, known)


AWS: Mapping[str, str] = {"aws_access_key_id": "test", "aws_secret_access_key": "test"}


class SqsKind(Kind):
    name = "sqs"
    server = services.SqsServer
    keeps_order = False
    forgets = True
    fewer = 10
    attributes: ClassVar[dict[str, str]] = {}
    suffix = ""

    def destination(self, address: str, **options: Any) -> todoku.Destination:
        options = {"client": AWS, "max_bytes": 65536} | options
        return todoku.sqs(self._url(address), region="eu-central-1", endpoint_url=self.service.url, **options)

    def _url(self, address: str) -> str:
        return f"{self.service.url}/123456789012/{address}{self.suffix}"

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[Any]:
        from aiobotocore.session import get_session

        made = {"region_name": "eu-central-1", "endpoint_url": self.service.url, **AWS}
        async with get_session().create_client("sqs", **made) as client:
            yield client

    async def declare(self, address: str) -> None:
        async with self._connected() as client:
            await client.create_queue(QueueName=f"{address}{self.suffix}", Attributes=self.attributes)

    async def received(self, address: str) -> list[Received]:
        got: list[Received] = []
        url = self._url(address)
        async with self._connected() as client:
            while True:
                answer = await client.receive_message(
                    QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"], AttributeNames=["All"]
                )
                messages = answer.get("Messages", [])
                if not messages:
                    return got
                got += [self._read(message) for message in messages]
                entries = [
                    {"Id": str(place), "ReceiptHandle": message["ReceiptHandle"]}
                    for place, message in enumerate(messages)
                ]
                await client.delete_message_batch(QueueUrl=url, Entries=entries)

    def _read(self, message: dict[str, Any]) -> Received:
        attributes = {name: value["StringValue"] for name, value in message["MessageAttributes"].items()}
        headers = json.loads(attributes.pop("headers"))
        known = {"content-type": attributes["content-type"], "group": message["Attributes"].get("MessageGroupId", "")}
        return Received(message["Body"].encode(), headers | attributes, known)


class FifoKind(SqsKind):
    name = "sqs-fifo"
    keeps_order = True
    attributes: ClassVar[dict[str, str]] = {"FifoQueue": "true"}
    suffix = ".fifo"
    fewer = 30  # it looks through all messages that nobody has read yet, for each that is sent


class PubsubKind(Kind):
    name = "pubsub"
    server = services.PubsubServer

    def destination(self, address: str, **options: Any) -> todoku.Destination:
        return todoku.pubsub(f"projects/todoku/topics/{address}", emulator=self.service.url, **options)

    def _clients(self) -> tuple[Any, Any]:
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import pubsub_v1
        from grpc import insecure_channel

        clients = []
        for client in (pubsub_v1.PublisherClient, pubsub_v1.SubscriberClient):
            transport = client.get_transport_class("grpc")
            made = transport(channel=insecure_channel(self.service.url), credentials=AnonymousCredentials())
            clients.append(client(transport=made))
        return clients[0], clients[1]

    async def declare(self, address: str) -> None:
        publisher, subscriber = self._clients()
        topic = f"projects/todoku/topics/{address}"
        subscription = {"name": f"projects/todoku/subscriptions/{address}", "topic": topic}
        await asyncio.to_thread(publisher.create_topic, name=topic)
        await asyncio.to_thread(
            subscriber.create_subscription, request={**subscription, "enable_message_ordering": True}
        )

    async def received(self, address: str) -> list[Received]:
        from google.api_core.exceptions import DeadlineExceeded

        _, subscriber = self._clients()
        name = f"projects/todoku/subscriptions/{address}"
        got: list[Received] = []
        while True:
            try:
                request = {"subscription": name, "max_messages": 1000}
                answer = await asyncio.to_thread(subscriber.pull, request=request, timeout=3, retry=None)
            except DeadlineExceeded:  # it waits for more, and there is none
                return got
            if not answer.received_messages:
                return got
            got += [self._read(one.message) for one in answer.received_messages]
            ids = [one.ack_id for one in answer.received_messages]
            await asyncio.to_thread(subscriber.acknowledge, request={"subscription": name, "ack_ids": ids})

    def _read(self, message: Any) -> Received:
        found = dict(message.attributes)
        return Received(message.data, found, {"content-type": found["content-type"], "key": message.ordering_key})


KINDS: dict[str, type[Kind]] = {
    kind.name: kind for kind in (NatsKind, RedisKind, RabbitKind, KafkaKind, SqsKind, FifoKind, PubsubKind)
}


T = TypeVar("T", bound=Callable[..., Any])


def only(*names: str) -> Callable[[T], T]:
    """A test that speaks of these kinds of brokers only."""

    def marked(test: T) -> T:
        test.kinds = names  # type: ignore[attr-defined]
        return test

    return marked


def but(*names: str) -> Callable[[T], T]:
    """A test that does not speak of these."""
    return only(*(name for name in KINDS if name not in names))
