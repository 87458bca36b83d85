"""Events and their consumers: a class knows its topic and key; a consumer gets the event as it was published."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import msgspec
import pydantic
import pytest

import todoku
from tests.api.conftest import Attempt
from tests.support.world import World

NOW = datetime(2026, 2, 3, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class OrderCreated:
    order_id: UUID
    amount: int
    occurred_at: datetime


class Paid(msgspec.Struct, frozen=True, rename="camel"):
    order_id: int
    amount: int


class StripeEvent(pydantic.BaseModel):
    id: str
    type: str
    data: dict[str, dict[str, Any]]


def event(n: int = 42) -> OrderCreated:
    return OrderCreated(uuid4(), n, NOW)


def test_an_event_arrives_as_it_was_published(box: todoku.App, world: World, attempt: Attempt) -> None:
    box.event("order.created", key="order_id")(OrderCreated)

    @box.on(OrderCreated, name="points")
    def add_points(ctx: todoku.Context, event: OrderCreated) -> Any:
        return ctx.topic, ctx.key, event

    sent = event()
    message = box.publish(sent, tx=None)
    assert (message.topic, message.key) == ("order.created", str(sent.order_id))
    (delivery,) = world.deliveries()
    assert (delivery.destination, delivery.queue) == ("points", "default")
    assert attempt() == [("order.created", str(sent.order_id), sent)]


@pytest.mark.parametrize(
    ("kind", "sent", "stored"),
    [
        (Paid, Paid(7, 42), '{"orderId":7,"amount":42}'),
        (
            StripeEvent,
            StripeEvent(id="evt_1", type="payment_intent.succeeded", data={"object": {"amount": 1}}),
            '{"id":"evt_1","type":"payment_intent.succeeded","data":{"object":{"amount":1}}}',
        ),
    ],
)
def test_structs_and_models_are_events_too(
    kind: Any, sent: Any, stored: str, box: todoku.App, world: World, attempt: Attempt
) -> None:
    box.event("something.happened")(kind)

    @box.on(kind)
    def unannotated(event):  # type: ignore[no-untyped-def]
        return event

    message = box.publish(sent, tx=None)
    story = world.store.messages.story(message.id)
    assert story is not None
    assert story.message.payload == stored
    assert attempt() == [sent]


def test_the_annotation_decides_what_a_consumer_gets(box: todoku.App, attempt: Attempt) -> None:
    """Of a topic or pattern there is no class: the JSON value, unless the handler says what it wants."""

    @box.on("order.*")
    def plain(event):  # type: ignore[no-untyped-def]
        return event

    @box.on("order.created")
    def typed(event: Paid) -> Paid:
        return event

    @box.on("order.**")
    def nosy(ctx: todoku.Context) -> str:
        return ctx.topic

    @box.on("order.created")
    def blind() -> str:
        return "blind"

    box.publish("order.created", {"orderId": 7, "amount": 42}, tx=None)
    found = attempt()
    assert len(found) == 4
    assert all(each in found for each in ({"orderId": 7, "amount": 42}, Paid(7, 42), "order.created", "blind"))


def test_bytes_arrive_as_bytes(box: todoku.App, attempt: Attempt) -> None:
    @box.on("file.uploaded")
    def raw(event: bytes) -> bytes:
        return event

    @box.on("file.*")
    def typed(event: Paid) -> Paid:
        return event

    box.publish("file.uploaded", b"\x00\xff", tx=None)
    found = attempt()
    refused = todoku.Abort("BAD_PAYLOAD", "typed takes JSON, and this message is application/octet-stream")
    assert sorted(found, key=repr) == [refused, b"\x00\xff"]


def test_an_event_that_breaks_its_schema_is_aborted_with_the_field(box: todoku.App, attempt: Attempt) -> None:
    box.event("order.created")(OrderCreated)

    @box.on(OrderCreated)
    def points(event: OrderCreated) -> None:
        raise AssertionError("nothing runs")

    box.publish("order.created", {"order_id": "7", "amount": 42, "occurred_at": "2026-01-01T00:00:00Z"}, tx=None)
    (outcome,) = attempt()
    assert outcome.reason == "BAD_PAYLOAD"
    assert outcome.detail.startswith(
        "points: order_id: Invalid UUID; sent (order_id: str, amount: int, occurred_at: str)"
    )


def test_one_commit_for_rows_and_event(box: todoku.App, world: World) -> None:
    """I2."""
    box.event("order.created")(OrderCreated)
    box.route("order.*", to="warehouse")
    db = world.connect()
    box.publish(event(), tx=db)
    db.rollback()
    assert world.deliveries() == []
    box.publish(event(), tx=db)
    box.publish_many([event(), ("order.paid", {"n": 1}), event()], tx=db)
    db.commit()
    db.close()
    topics = [delivery.topic for delivery in world.deliveries()]
    assert topics == ["order.created", "order.created", "order.paid", "order.created"]


async def test_async_code_publishes_events_too(box: todoku.App, world: World) -> None:
    box.event("order.created", key="amount")(OrderCreated)
    box.route("order.*", to="warehouse", ordered=True)
    message = await box.apublish(event(7), tx=None, key="another")
    many = await box.apublish_many([event(8)], tx=None)
    assert [message.key, many[0].key] == ["another", "8"]
    assert all(delivery.lane is not None for delivery in world.deliveries())


def test_options_of_a_consumer_are_its_delivery_s(box: todoku.App, world: World) -> None:
    @box.on("order.*", name="points", queue="slow", max_attempts=2, timeout=9, ordered=True)
    def add_points(event: Any) -> None: ...

    box.publish("order.created", {}, key="7", tx=None)
    (delivery,) = world.deliveries()
    assert (delivery.destination, delivery.queue, delivery.max_attempts) == ("points", "slow", 2)
    assert delivery.lane is not None
    assert add_points is box.jobs["points"]


def test_an_event_can_be_enqueued_for_one_consumer_alone(box: todoku.App, world: World, attempt: Attempt) -> None:
    box.event("order.created")(OrderCreated)
    box.route("order.*", to="warehouse")

    @box.on(OrderCreated)
    def points(ctx: todoku.Context, event: OrderCreated) -> Any:
        return ctx.topic, event

    @box.on("order.**")
    def audit(ctx: todoku.Context, event: Any) -> str:
        return ctx.topic

    sent = event()
    points.enqueue(sent)
    audit.enqueue({"any": "thing"})
    assert [delivery.destination for delivery in world.deliveries()] == ["points", "audit"]
    assert attempt() == [("order.created", sent), "audit"]
    with pytest.raises(todoku.InvalidMessage, match="amount: Expected `int`, got `str`"):
        points.enqueue({"order_id": str(uuid4()), "amount": "42", "occurred_at": NOW})  # type: ignore[arg-type]


def test_what_cannot_be_published_is_refused_with_the_way_out(box: todoku.App, world: World) -> None:
    box.event("order.created", key="order_id")(OrderCreated)
    box.route("**", to="warehouse")
    for call, text in (
        (lambda: box.publish(Paid(1, 2), tx=None), "Paid is not an event of this App .*@box.event"),
        (lambda: box.publish(event(), {"a": 1}, tx=None), "an event is its own payload"),
        (lambda: box.publish_many(["order.created"], tx=None), "'order.created' is a topic without its payload"),  # type: ignore[list-item]
        (lambda: box.publish(OrderCreated(None, 1, NOW), tx=None), "order_id is None, and it is the key"),  # type: ignore[arg-type]
        (lambda: box.publish(7, tx=None), "int is not an event"),  # type: ignore[arg-type]
    ):
        with pytest.raises(todoku.InvalidMessage, match=text):
            call()
    assert world.deliveries() == []


def test_a_subclass_of_an_event_is_that_event(box: todoku.App) -> None:
    box.event("order.created")(OrderCreated)
    box.route("**", to="warehouse")

    class Special(OrderCreated):
        pass

    assert box.publish(Special(uuid4(), 1, NOW), tx=None).topic == "order.created"
