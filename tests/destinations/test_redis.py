"""What is particular to Redis and Valkey: streams that are trimmed, and what "arrived" may mean."""

from __future__ import annotations

from tests.destinations.kinds import Kind, only
from tests.destinations.test_contract import numbers, outgoing, sent
from todoku.core.outcome import Done, Retry


@only("redis")
async def test_a_stream_is_trimmed_to_about_its_length(kind: Kind, address: str) -> None:
    batch = [outgoing(number) for number in range(1000)]
    assert await sent(kind.patient(address, maxlen=100), batch) == [Done()] * 1000
    got = numbers(await kind.received(address))
    assert got == list(range(1000 - len(got), 1000))
    assert 100 <= len(got) < 500


@only("redis")
async def test_with_fsync_it_has_arrived_when_it_is_on_disk(kind: Kind, address: str) -> None:
    assert await sent(kind.patient(address, fsync=True), [outgoing(1), outgoing(2)]) == [Done()] * 2


@only("redis")
async def test_without_the_replicas_that_were_asked_for_it_has_not_arrived(kind: Kind, address: str) -> None:
    """It is in the stream, and would be lost with this one server: sent again, and told by its id."""
    for asked in ({"replicas": 1}, {"replicas": 1, "fsync": True}):
        outcomes = await sent(kind.destination(address, send_timeout_ms=300, **asked), [outgoing(1)])
        assert [type(outcome) for outcome in outcomes] == [Retry]
        assert outcomes[0].reason == "BROKER_TIMEOUT"


@only("redis")
async def test_a_key_that_is_no_stream_is_refused_and_tried_again(kind: Kind, address: str) -> None:
    import redis.asyncio

    async with redis.asyncio.Redis.from_url(kind.service.url) as client:
        await client.set(address, "a string")
    (outcome,) = await sent(kind.patient(address), [outgoing(1)])
    assert isinstance(outcome, Retry)
    assert outcome.reason == "BROKER_REJECTED"
