"""What is particular to SQS: ten attributes, text only, requests of ten, each entry answered for itself."""

from __future__ import annotations

import base64
import json
from typing import Any

from tests.destinations.kinds import Kind, only
from tests.destinations.test_contract import outgoing, sent
from todoku.core.outcome import Done


@only("sqs")
async def test_all_headers_fit_into_ten_attributes(kind: Any, address: str) -> None:
    """A message with more than ten attributes is refused: all headers are together in one of them."""
    await kind.declare(address)
    many = {f"header-{number}": "x" for number in range(30)}
    assert await sent(kind.patient(address), [outgoing(1, key="7", headers=many)]) == [Done()]
    async with kind._connected() as client:
        answer = await client.receive_message(QueueUrl=kind._url(address), MessageAttributeNames=["All"])
    attributes = answer["Messages"][0]["MessageAttributes"]
    assert len(attributes) <= 10
    found = json.loads(attributes["headers"]["StringValue"])
    assert many.items() <= found.items()
    assert found["todoku-key"] == "7"
    assert attributes["ce-id"]["StringValue"] == outgoing(1).message_id


@only("sqs")
async def test_a_payload_that_is_no_text_travels_as_base64_and_says_so(kind: Kind, address: str) -> None:
    await kind.declare(address)
    payload = bytes(range(256))
    await sent(kind.patient(address), [outgoing(1, payload=payload), outgoing(2, payload=b"")])
    for got in await kind.received(address):
        assert got.headers["todoku-encoding"] == "base64"
        assert base64.b64decode(got.payload) in (payload, b"")


@only("sqs-fifo")
async def test_a_key_that_can_be_no_group_is_hashed(kind: Kind, address: str) -> None:
    await kind.declare(address)
    keys = ["order 7", "x" * 400, "ä", "plain"]
    batch = [outgoing(number, key=key) for number, key in enumerate(keys)]
    assert await sent(kind.patient(address), batch) == [Done()] * 4
    groups = {got.key: got.properties["group"] for got in await kind.received(address)}
    assert groups["plain"] == "plain"
    assert len(set(groups.values())) == 4
    assert all(len(group) <= 128 for group in groups.values())


@only("sqs")
async def test_more_than_ten_messages_and_many_bytes_go_in_several_requests(kind: Kind, address: str) -> None:
    await kind.declare(address)
    batch = [outgoing(number, payload=b"x" * 50_000) for number in range(12)]
    assert await sent(kind.patient(address), batch) == [Done()] * 12
    assert len(await kind.received(address)) == 12
