"""What every broker destination promises, on a real server of each kind."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest

import todoku
from tests.destinations.kinds import TOO_MUCH, Kind, Received, but, only
from todoku.core.cloudevents import headers as headers_of
from todoku.core.destination import Outgoing
from todoku.core.outcome import Abort, Done, Retry

TRACE = {
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "tracestate": "vendor=1",
    "baggage": "user=7",
}
_REFUSED_ADDRESS = "nobody-made-this"


def outgoing(number: int, *, key: str | None = None, payload: bytes | None = None, **more: Any) -> Outgoing:
    id = f"0197f0a0-0000-7000-8000-{number:012d}"
    made = {
        "message_id": id, "idempotency_key": f"{id}:test", "topic": "order.created", "key": key,
        "payload": b'{"n":%d}' % number if payload is None else payload, "content_type": "application/json",
        "headers": {}, "attempt": 1, "created_at": 1_760_000_000.25,
    }  # fmt: skip
    return Outgoing(**(made | more))


async def sent(destination: Any, batch: Sequence[Outgoing]) -> list[Any]:
    """Send, and close: as a worker that stops."""
    try:
        return list(await destination.send(batch))
    finally:
        await destination.aclose()


async def arrives(destination: Any, message: Outgoing) -> None:
    """Send it until it has arrived: a server that listens may not take messages yet, or not in time."""
    for _ in range(40):
        if await destination.send([message]) == [Done()]:
            return
    raise AssertionError("it does not arrive")


def numbers(received: list[Received]) -> list[int]:
    return [int(one.id[-12:]) for one in received]


@contextmanager
def away(kind: Kind) -> Iterator[None]:
    """The server is killed for as long as the block runs."""
    kind.service.ours()
    kind.service.kill()
    try:
        yield
    finally:
        kind.service.start()


async def test_everything_arrives_with_all_headers(kind: Kind, address: str) -> None:
    await kind.declare(address)
    message = outgoing(7, key="order 7/ä", headers={"tenant": "acme", **TRACE})
    destination = kind.patient(address, source="https://shop.example/orders")
    assert await sent(destination, [message]) == [Done()]
    (got,) = await kind.received(address)
    assert got.payload == message.payload
    expected = headers_of(message, source="https://shop.example/orders", prefix=kind.prefix)
    if kind.name == "nats":  # its binding percent-encodes attributes
        expected |= {"ce-subject": "order%207/%C3%A4", "ce-partitionkey": "order%207/%C3%A4"}
    assert expected.items() <= got.headers.items()
    assert got.properties["content-type"] == "application/json"
    assert got.headers["traceparent"] == TRACE["traceparent"]


async def test_the_attributes_are_those_of_cloudevents_1_0(kind: Kind, address: str) -> None:
    await kind.declare(address)
    message = outgoing(1)
    await sent(kind.patient(address), [message])
    (got,) = await kind.received(address)
    attributes = {
        name.removeprefix(kind.prefix): value for name, value in got.headers.items() if name.startswith(kind.prefix)
    }
    assert attributes.keys() == {"specversion", "id", "source", "type", "time"}
    assert (attributes["specversion"], attributes["id"]) == ("1.0", message.message_id)
    assert (attributes["source"], attributes["type"]) == ("/todoku", "order.created")
    assert datetime.fromisoformat(attributes["time"]).timestamp() == message.created_at


async def test_a_batch_arrives_whole_and_in_its_order_by_key(kind: Kind, address: str) -> None:
    await kind.declare(address)
    batch = [outgoing(number, key=f"key {number % 4}") for number in range(60)]
    assert await sent(kind.patient(address), batch) == [Done()] * 60
    got = await kind.received(address)
    assert sorted(numbers(got)) == list(range(60))
    for key in range(4):
        of_key = [number for number in numbers(got) if number % 4 == key]
        assert of_key == sorted(of_key) or not kind.keeps_order


@but("pubsub")  # its limit of 10 MB is above what is sent here
async def test_a_message_that_is_too_large_fails_alone(kind: Kind, address: str) -> None:
    """I13: its neighbours arrive, and pay no attempt for it."""
    await kind.declare(address)
    batch = [outgoing(number, payload=b"x" * TOO_MUCH if number == 3 else None) for number in range(7)]
    outcomes = await sent(kind.patient(address), batch)
    refused = outcomes.pop(3)
    assert isinstance(refused, Abort)
    assert refused.reason == "TOO_LARGE"
    assert outcomes == [Done()] * 6
    assert sorted(numbers(await kind.received(address))) == [0, 1, 2, 4, 5, 6]


@only("rabbitmq", "kafka")
async def test_what_only_the_server_finds_too_large_fails_alone_too(kind: Kind, address: str) -> None:
    """The client does not know the server's limit. RabbitMQ closes the channel over it, with all that is in flight."""
    await kind.declare(address)
    batch = [outgoing(number, payload=b"x" * TOO_MUCH if number == 3 else None) for number in range(7)]
    outcomes = await sent(kind.patient(address, max_bytes=1 << 20), batch)
    refused = outcomes.pop(3)
    assert isinstance(refused, Abort)
    assert outcomes == [Done()] * 6
    assert set(numbers(await kind.received(address))) == {0, 1, 2, 4, 5, 6}


@but("sqs", "sqs-fifo")  # take text only: see test_sqs.py
async def test_a_payload_is_bytes_and_may_be_anything(kind: Kind, address: str) -> None:
    await kind.declare(address)
    payload = bytes(range(256))
    await sent(kind.patient(address), [outgoing(1, payload=payload, content_type="application/octet-stream")])
    (got,) = await kind.received(address)
    assert (got.payload, got.properties["content-type"]) == (payload, "application/octet-stream")


@but("redis")  # a stream is there when it has something
async def test_where_nobody_listens_it_is_tried_again(kind: Kind) -> None:
    """Whoever declares the queue, the stream or the topic may be on the way: a Retry, visible by its reason."""
    (outcome,) = await sent(kind.destination(_REFUSED_ADDRESS, send_timeout_ms=8000), [outgoing(1)])
    assert isinstance(outcome, Retry)
    assert outcome.reason == "UNROUTABLE"


async def test_many_sends_at_once_share_one_connection(kind: Kind, address: str) -> None:
    await kind.declare(address)
    destination: Any = kind.patient(address)
    batches = [[outgoing(10 * batch + place) for place in range(10)] for batch in range(8)]
    await asyncio.gather(*(destination.send(batch) for batch in batches))
    assert len({id(line._connection) for line in destination._lines.values()}) == 1
    await destination.aclose()
    assert sorted(numbers(await kind.received(address))) == list(range(80))


@pytest.mark.slow
async def test_a_broker_that_is_down_is_tried_again_and_comes_back(kind: Kind, address: str) -> None:
    await kind.declare(address)
    destination: Any = kind.destination(address)
    try:
        await arrives(destination, outgoing(1))
        with away(kind):
            outcomes = await destination.send([outgoing(2), outgoing(3)])
            outcomes += await destination.send([outgoing(2)])
            assert {type(outcome) for outcome in outcomes} == {Retry}
            assert outcomes[-1].reason == "BROKER_DOWN"
            with pytest.raises(todoku.DeliveryError):
                await destination.ping()
        if forgotten := kind.forgets or kind.risks_the_new:
            await kind.declare(address)
        await arrives(destination, outgoing(2))
        await destination.ping()
    finally:
        await destination.aclose()
    assert set(numbers(await kind.received(address))) >= ({2} if forgotten else {1, 2})


async def test_what_takes_too_long_is_a_timeout(kind: Kind, address: str) -> None:
    """A broker that is stopped, not gone: it takes connections and says nothing."""
    await kind.declare(address)
    destination: Any = kind.destination(address, send_timeout_ms=2_000)
    try:
        await arrives(destination, outgoing(1))
        with kind.service.stopped():
            (outcome,) = await destination.send([outgoing(2)])
        assert isinstance(outcome, Retry)
        assert outcome.reason == "BROKER_TIMEOUT"
    finally:
        await destination.aclose()


@only("nats", "sqs-fifo")  # elsewhere the consumer's inbox tells them
async def test_a_repetition_is_dropped_where_the_broker_knows_it(kind: Kind, address: str) -> None:
    await kind.declare(address)
    assert await sent(kind.patient(address), [outgoing(1)] * 2) == [Done()] * 2
    assert numbers(await kind.received(address)) == [1]
