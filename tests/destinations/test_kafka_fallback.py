"""With an aiokafka that was not tested, or without its private names, only its public interface is used."""

from __future__ import annotations

import asyncio
from typing import Any

import aiokafka
import pytest

from tests.destinations.kinds import Kind, only
from tests.destinations.test_contract import arrives, away, numbers, outgoing, sent
from todoku.core.outcome import Done, Retry
from todoku.destinations import aiokafka_producer


@pytest.fixture
def fallback(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "no names":
        is_tested = aiokafka_producer.is_tested
        monkeypatch.setattr(aiokafka_producer, "is_tested", lambda producer: is_tested(Without(producer)))
    else:
        monkeypatch.setattr(aiokafka, "__version__", request.param)


class Without:
    """A producer whose sender has another name."""

    def __init__(self, producer: Any) -> None:
        self._producer = producer

    def __getattr__(self, name: str) -> Any:
        if name == "_sender":
            raise AttributeError(name)
        return getattr(self._producer, name)


@only("kafka")
@pytest.mark.parametrize("fallback", ["0.11.0", "0.15.0", "no names"], indirect=True)
@pytest.mark.usefixtures("fallback")
async def test_messages_arrive_and_the_producer_ends(kind: Kind, address: str) -> None:
    await kind.declare(address)
    batch = [outgoing(number, key=f"key {number % 4}") for number in range(20)]
    assert await sent(kind.patient(address), batch) == [Done()] * 20
    assert sorted(numbers(await kind.received(address))) == list(range(20))


@only("kafka")
@pytest.mark.parametrize("fallback", ["0.15.0"], indirect=True)
@pytest.mark.usefixtures("fallback")
async def test_a_broker_that_comes_back_is_sent_to_again(kind: Kind, address: str) -> None:
    await kind.declare(address)
    destination = kind.destination(address, send_timeout_ms=2000)
    try:
        await arrives(destination, outgoing(1))
        with away(kind):
            (outcome,) = await destination.send([outgoing(2)])
            assert isinstance(outcome, Retry)
        await arrives(destination, outgoing(2))
    finally:
        await destination.aclose()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:  # a producer without a broker may not end by itself
            task.cancel()
    assert {1, 2} <= set(numbers(await kind.received(address)))


@only("kafka")
async def test_the_version_that_is_installed_was_tested(kind: Kind) -> None:
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=kind.service.url)
    assert aiokafka_producer.is_tested(producer)
    await producer.start()
    await aiokafka_producer.stop(producer)
    assert aiokafka_producer.is_lost(producer)
