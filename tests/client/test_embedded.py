"""The App as a queue: the same calls, in the application's own database (S4-56), on both of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

import todoku
from tests.client.conftest import fell_back
from tests.daemon.running import until
from tests.support.proxy import Proxy, Side
from tests.support.world import World
from todoku.client import FlowControl, Queue, QueueRefused, connect
from todoku.core.errors import InvalidAct, NoRoute
from todoku.core.http_request import request_of
from todoku.engine import operations
from todoku.engine.http import url_groups
from todoku.store.audit import Signed
from todoku.store.deliveries import Filter
from todoku.testing import frozen

WORKER = "https://worker.example.com/x"
SIGNED = {"by": "ada", "why": "a test"}


@pytest.fixture
def queue(box: todoku.App) -> Queue:
    return connect(box)


def test_a_topic_goes_where_the_app_routes_it(box: todoku.App, queue: Queue) -> None:
    seen: list[Any] = []

    @box.on("payment.*")
    def note(ctx: todoku.Context, event: dict[str, int]) -> None:
        seen.append((event, ctx.headers["X-Event-Id"], ctx.max_attempts))

    done = queue.publish("payment.succeeded", {"n": 1}, headers={"X-Event-Id": "evt_7"}, retries=2)
    assert (done.how, done.duplicate) == ("queued", False)
    box.drain()
    assert seen == [({"n": 1}, "evt_7", 3)]
    with pytest.raises(NoRoute):
        queue.publish("order.created", 1)


def test_a_url_is_a_request_with_everything_that_was_said(box: todoku.App, queue: Queue) -> None:
    done = queue.publish(
        WORKER, {"n": 1}, retries=0, timeout=7, method="PUT", callback="https://worker.example.com/done",
        flow=FlowControl(key="stripe", rate=5), labels=["eu"], headers={"X-A": "b"}, deduplication_id="evt_7",
    )  # fmt: skip
    story = box.store.messages.story(UUID(done.id))
    assert story is not None
    request = request_of(story.message.headers)
    assert request is not None
    assert (request.url, request.method, request.retries, request.timeout) == (WORKER, "PUT", 0, 7)
    assert request.headers == {"Content-Type": "application/json", "Idempotency-Key": "evt_7", "X-A": "b"}
    assert (request.flow, request.labels) == (FlowControl(key="stripe", rate=5), ("eu",))
    assert request.callback is not None
    assert story.message.payload_bytes == b'{"n":1}'
    assert [(one.destination, one.queue) for one in story.deliveries] == [("https://worker.example.com", "flow:stripe")]


def test_a_url_group_of_that_name_gets_a_message_for_each_endpoint(box: todoku.App, queue: Queue) -> None:
    endpoints = [url_groups.EndpointName(url=f"{WORKER}{n}") for n in range(2)]
    url_groups.put(box.store, "billing", endpoints, Signed("ada", "a test"))
    done = queue.publish("billing", 1)
    assert len(done.ids) == 2
    assert {queue.messages.get(id).to for id in done.ids} == {f"{WORKER}0", f"{WORKER}1"}
    assert queue.publish("billing", 1, deduplication_id=done.deduplication_id).duplicate


@pytest.mark.parametrize("to", ["payment.succeeded", WORKER])
def test_an_id_that_was_seen_is_a_duplicate(box: todoku.App, queue: Queue, to: str) -> None:
    """S4-17: whatever else differs, as at a queue elsewhere."""
    box.route("payment.*", to="ledger")
    first, again = (queue.publish(to, n, deduplication_id="evt_7") for n in (1, 2))
    assert (first.duplicate, again.duplicate, again.id) == (False, True, first.id)
    assert queue.publish(to, 3).duplicate is False


def test_a_queue_keeps_its_order(box: todoku.App, queue: Queue) -> None:
    """I10: a failing head holds up its queue, and no other."""
    seen: list[int] = []

    @box.on("payment.*", max_attempts=3)
    def note(ctx: todoku.Context, n: int) -> None:
        if n == 0 and ctx.attempt < 3:
            raise todoku.Retry(after=60)
        seen.append(n)

    with frozen(box) as clock:
        for n in range(5):
            queue.enqueue("orders", "payment.succeeded", n)
        queue.enqueue("others", "payment.succeeded", 9)
        box.drain()
        assert seen == [9], "the other queue goes on"
        for _ in range(2):
            clock.tick(61)
            box.drain()
    assert seen == [9, 0, 1, 2, 3, 4]
    assert {one.lane is not None for one in queue_deliveries(box, WORKER, queue)} == {True}


def queue_deliveries(box: todoku.App, url: str, queue: Queue) -> list[Any]:
    queue.enqueue("orders", url, 1)
    return list(box.store.deliveries.find(Filter(queue="http:orders")).items)


def test_tx_joins_the_callers_transaction(world: World, box: todoku.App, queue: Queue) -> None:
    """I2: rolled back with it, committed with it."""
    box.route("payment.*", to="ledger")
    connection = world.connect()
    try:
        queue.publish("payment.succeeded", 1, tx=connection)
        queue.publish(WORKER, 1, tx=connection)
        connection.rollback()
        assert world.deliveries() == []
        queue.publish("payment.succeeded", 2, tx=connection)
        asyncio.run(queue.apublish(WORKER, 2, tx=connection))
        connection.commit()
    finally:
        connection.close()
    assert [one.destination for one in world.deliveries()] == ["ledger", "https://worker.example.com"]


def test_dead_letters_are_found_sent_again_and_deleted_audited(box: todoku.App, queue: Queue) -> None:
    """S4-28, S4-29, S4-30."""
    mended: list[bool] = []

    @box.on("payment.*")
    def note(event: int) -> None:
        if not mended:
            raise todoku.Abort("MISSING_PARTICIPANT", "no such participant")

    for n in range(3):
        queue.publish("payment.succeeded", n, deduplication_id=f"evt_{n}")
    box.drain()
    first = queue.dlq.list(count=2, to="payment.succeeded")
    rest = queue.dlq.list(count=2, cursor=first.cursor)
    assert [one.message.body for one in (*first.items, *rest.items)] == [b"2", b"1", b"0"]
    letter = queue.dlq.get(rest.items[0].id)
    assert letter.error == "MISSING_PARTICIPANT: no such participant"
    assert letter.message.headers["Idempotency-Key"] == "evt_0"
    assert queue.dlq.list(to=WORKER).items == ()
    assert queue.dlq.list(queue="orders").items == ()
    queue.dlq.delete(first.items[0].id, **SIGNED)
    mended.append(True)
    assert queue.dlq.retry(letter.id, **SIGNED) == letter.message.id
    with pytest.raises(QueueRefused, match="no dead letter"):
        queue.dlq.retry(letter.id, **SIGNED)
    box.drain()
    assert [one.message.body for one in queue.dlq.list().items] == [b"1"]
    with pytest.raises(InvalidAct, match="id cannot be"):
        queue.dlq.get("first")


def test_what_died_again_is_another_dead_letter(box: todoku.App, queue: Queue) -> None:
    """Who has the old one cannot send the new one again without having seen it."""

    @box.on("payment.*")
    def note(event: int) -> None:
        raise todoku.Abort("NEVER")

    queue.publish("payment.succeeded", 1)
    box.drain()
    (first,) = queue.dlq.list().items
    queue.dlq.retry(first.id, **SIGNED)
    box.drain()
    (second,) = queue.dlq.list().items
    assert first.id != second.id
    with pytest.raises(QueueRefused, match="was sent again"):
        queue.dlq.retry(first.id, **SIGNED)


def test_dead_letters_of_a_queue_are_those_of_its_requests_and_its_events(box: todoku.App, queue: Queue) -> None:
    """And what is secret by its name is not seen."""
    box.route("payment.*", to="ledger")
    queue.enqueue("orders", WORKER, 1, delay=3600, headers={"Authorization": "Bearer s3cret"})
    queue.enqueue("orders", "payment.succeeded", 2, delay=3600)
    queue.publish("payment.succeeded", 3, delay=3600)
    operations.cancel(box.store, Filter(), Signed("ada", "a test"))
    found = queue.dlq.list(queue="orders").items
    assert sorted((one.message.body, one.message.queue) for one in found) == [(b"1", "orders"), (b"2", "orders")]
    assert {one.message.queue for one in queue.dlq.list().items} == {"orders", None}
    assert "s3cret" not in repr(found)


async def test_messages_are_read_and_cancelled(box: todoku.App, queue: Queue) -> None:
    done = await queue.apublish(WORKER, {"n": 1}, delay=3600)
    message = await queue.messages.aget(done.id)
    assert (message.to, message.body, message.id) == (WORKER, b'{"n":1}', done.id)
    await queue.messages.acancel(done.id, by="ada", why="a test")
    (delivery,) = box.store.deliveries.find(Filter(status="aborted")).items
    assert delivery.reason == "CANCELLED"
    with pytest.raises(QueueRefused, match="no message"):
        await queue.messages.aget("00000000-0000-7000-8000-000000000000")


@pytest.mark.postgres
@pytest.mark.parametrize("side", ["before", "after"])
def test_a_database_whose_answer_was_lost_has_the_message_once(postgres_url: str, tmp_path: Path, side: Side) -> None:
    """The connection is cut at the COMMIT: it is spooled, and forwarded to the same App, which knows it by its id."""
    proxy = Proxy(postgres_url, tmp_path / "proxy")
    box = todoku.App(proxy.url)
    box.route("payment.*", to="ledger")
    with connect(box, fallback="spool", spool=str(tmp_path / "spool.db")) as queue:
        proxy.cut(side, "into todoku_message")
        assert queue.enqueue("orders", "payment.succeeded", 1).how == "spooled"
        until(lambda: queue.spooled() == 0, "it is forwarded")
        assert fell_back(queue) == {"spool": 1.0}
        assert [one.destination for one in box.store.deliveries.find(Filter(queue="http:orders")).items] == ["ledger"]
    box.close()
    proxy.close()
