"""`search=[…]`: values of payload fields are kept as labels at publish, and found by them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

import todoku
from tests.support.world import World
from todoku.engine.publish import MessageOptions
from todoku.engine.search import Searcher
from todoku.store.publish import publish


def kept(world: World) -> list[str]:
    return [label for (label,) in world.sql("select label from todoku_label order by message_seq, label")]


def found(box: todoku.App, text: str) -> int:
    return len(Searcher(box.store, box.settings).search(text, reader="viewer").items)


def test_the_arguments_of_a_job_are_found(box: todoku.App, world: World) -> None:
    @box.job(search=["order_id", "customer.id", "express"])
    def pack(ctx: todoku.Context, order_id: int, customer: dict[str, Any], express: bool = False) -> None: ...

    pack.enqueue(42, {"id": "c1", "name": "Ada"}, express=True)
    pack.using(labels=["red"]).enqueue(43, {"id": ["no", "scalar"]})
    assert kept(world) == [
        "payload.customer.id:c1", "payload.express:true", "payload.order_id:42", "payload.order_id:43", "red",
    ]  # fmt: skip
    assert found(box, "payload.order_id:42") == 1
    assert found(box, "payload.order_id:42 payload.customer.id:c1") == 1
    assert found(box, "payload.order_id:43 payload.customer.id:c1") == 0
    assert found(box, "payload.order_id:4") == 0
    assert found(box, "payload.customer.name:Ada") == 1, "a field that is not declared is found by looking"


def test_events_routes_and_consumers_declare_fields_of_their_topics(box: todoku.App, world: World) -> None:
    @box.event("order.paid", search=["orderId"])
    class Paid(msgspec.Struct, rename="camel"):
        order_id: int

    @box.event("order.sent", search=["parcel"])
    @dataclass
    class Sent:
        parcel: str

    @box.on("user.*", search=["user"])
    def greet(event: dict[str, Any]) -> None: ...

    box.route("order.**", to="warehouse", search=["total"])
    box.publish(Paid(7), tx=None)
    box.publish(Sent("p1"), tx=None)
    box.publish("user.created", {"user": 1}, tx=None)
    box.publish_many([("order.x.y", {"total": 1.5, "user": 2}), ("order.z", [1])], tx=None)
    assert kept(world) == ["payload.orderId:7", "payload.parcel:p1", "payload.user:1", "payload.total:1.5"]


def test_a_long_value_and_an_unknown_shape_are_left_out(box: todoku.App, world: World) -> None:
    box.route("**", to="warehouse", search=["a.b"])
    for payload in ({"a": {"b": "x" * 201}}, {"a": 1}, {"a": {"b": None}}, {"a": {"b": ""}}, "text", 7, None, b"raw"):
        box.publish("order.created", payload, tx=None)
    assert kept(world) == []


def test_publishing_without_labels_runs_no_further_statement(box: todoku.App, world: World) -> None:
    box.route("**", to="warehouse")
    draft = box.outbox.draft("order.created", {"a": 1}, MessageOptions(), box.routes)
    statements = [step.sql for step in _steps(box, draft)]
    assert not any("todoku_label" in sql for sql in statements)


def _steps(box: todoku.App, draft: Any) -> list[Any]:
    steps, ran = publish(box.outbox.publishing(), [draft]), []
    try:
        ran.append(next(steps))
        while True:
            ran.append(steps.send([(0.0, 0)]))
    except StopIteration:
        return ran


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ("order_id", "search cannot be 'order_id'"),
        (["nothing"], "has no field 'nothing' to search"),
        (["order_id", "a..b"], "'a..b' is no field"),
        ([7], "7 is no field"),
        ([f"f{number}" for number in range(17)], "17 fields"),
        (["email"], "email is masked"),
        (["order_id.card"], "order_id.card is masked"),
    ],
)
def test_a_field_that_cannot_be_kept_is_refused_where_it_is_declared(box: todoku.App, fields: Any, told: str) -> None:
    with pytest.raises(todoku.InvalidSetting) as refused:

        @box.job(search=fields)
        def pack(order_id: int, email: str = "") -> None: ...

    assert told in str(refused.value)
    assert "(" in str(refused.value), "with a hint"


def test_an_unknown_option_of_an_event_is_refused(box: todoku.App) -> None:
    with pytest.raises(todoku.InvalidSetting, match="no option colour"):
        box.event("order.paid", colour="red")  # type: ignore[call-arg]
