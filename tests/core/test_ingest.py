"""Topics made of events: paths into JSON, and templates that are filled with what a source calls its type."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from todoku.core.errors import InvalidMessage, InvalidSetting
from todoku.core.ingest import Identity, template, text_at, value_at
from todoku.core.topic_pattern import check_topic

EVENT = {"type": "a.b", "data": {"object": {"id": "pi_1", "n": 7, "on": True}}, "items": [{"sku": "x"}]}


@pytest.mark.parametrize(
    ("path", "value"),
    [("type", "a.b"), ("data.object.id", "pi_1"), ("data.object.n", "7"), ("items.0.sku", "x"), ("items.1.sku", None),
     ("data.object.on", None), ("data.object", None), ("nothing.at.all", None), ("type.more", None), ("items.x", None)],
)  # fmt: skip
def test_a_path_leads_to_a_text_or_a_whole_number_or_nowhere(path: str, value: str | None) -> None:
    assert text_at(path, EVENT) == value


def test_a_path_leads_to_whatever_is_there() -> None:
    assert value_at("data.object", EVENT) == {"id": "pi_1", "n": 7, "on": True}


@pytest.mark.parametrize(
    ("text", "type", "topic"),
    [
        ("stripe.{type}", "payment_intent.succeeded", "stripe.payment_intent.succeeded"),
        ("stripe.{type}", None, "stripe.a.b"),
        ("shop.{type}", "orders/create", "shop.orders.create"),
        ("x.{type}.{items.0.sku}", "one two\tthree", "x.one_two_three.x"),
        ("x.{data.object.n}", "unused", "x.7"),
        ("fixed.topic", "unused", "fixed.topic"),
        ("x.{type}", "../..//", "x._"),
    ],
)
def test_a_template_is_filled_with_the_type_of_the_source_or_from_the_json(
    text: str, type: str | None, topic: str
) -> None:
    assert template(text).topic(Identity("1", type), EVENT) == topic


@given(st.text(min_size=1))
def test_whatever_a_source_says_the_topic_is_one(type: str) -> None:
    assert check_topic(template("x.{type}").topic(Identity("1", type), {}))


def test_an_event_without_what_its_topic_needs_is_refused_by_its_name() -> None:
    with pytest.raises(InvalidMessage, match=r"data\.kind"):
        template("x.{data.kind}").topic(Identity("1"), EVENT)


@pytest.mark.parametrize(
    "text", ["", "a..b", "a b", "{", "x.{}", "x.{a b}", "x.{a..b}", "x.{type", "*", "x.*", None, 7]
)
def test_a_template_that_can_make_no_topic_is_refused_where_it_is_declared(text: object) -> None:
    with pytest.raises(InvalidSetting, match="topic"):
        template(text)
