"""Topic patterns: `*` is one word, `**` any number of them; each destination once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.making import quick
from todoku.core.errors import InvalidMessage
from todoku.core.topic_pattern import Route, check_topic, matches, pattern, resolve

words = st.from_regex(r"[A-Za-z0-9_:\-]{1,5}", fullmatch=True)
topics = st.lists(words, min_size=1, max_size=5).map(".".join)


@pytest.mark.parametrize(
    ("text", "taken", "left"),
    [
        ("order.created", ["order.created"], ["order", "order.created.eu", "order-created", "xorder.created"]),
        ("order.*", ["order.created", "order.paid"], ["order", "order.created.eu", "orders.created"]),
        ("*.created", ["order.created", "user.created"], ["created", "a.order.created"]),
        ("*", ["order"], ["order.created"]),
        ("*.*", ["a.b"], ["a", "a.b.c"]),
        ("order.**", ["order", "order.created", "order.created.eu"], ["orders", "my.order"]),
        ("**.failed", ["failed", "order.failed", "order.payment.failed"], ["failed.order"]),
        ("**", ["order", "order.created", "a.b.c.d"], []),
        ("order.**.eu", ["order.eu", "order.created.eu", "order.a.b.eu"], ["order.created", "order.created.us"]),
        ("order.*.**", ["order.created", "order.created.eu"], ["order"]),
        ("a-b_c:d", ["a-b_c:d"], ["a-b_c.d"]),
        ("stripe.payment_intent.*", ["stripe.payment_intent.succeeded"], ["stripe.payment_intent"]),
    ],
)  # fmt: skip
def test_a_pattern_takes_these_topics_and_leaves_those(text: str, taken: list[str], left: list[str]) -> None:
    assert [topic for topic in taken + left if matches(text, topic)] == taken


@pytest.mark.parametrize(
    "text", ["", ".", "a.", ".a", "a..b", "a*", "*a", "a.***", "a b", "a.b\n", "order.[a-z]", "ö", "a/b"]
)
def test_a_pattern_that_could_never_match_is_refused(text: str) -> None:
    with pytest.raises(InvalidMessage, match="is not a topic") as caught:
        pattern(text)
    assert caught.value.hint


@pytest.mark.parametrize("topic", ["", ".", "a.", "a..b", "a b", "order.*", "**", "a\n", "a.b\0", "naïve"])
def test_a_topic_is_words_with_dots_between_them(topic: str) -> None:
    with pytest.raises(InvalidMessage, match="is not a topic"):
        check_topic(topic)


@pytest.mark.parametrize("topic", ["order", "order.created", "Order.Created", "a-b.c_d.e:f", "2024.10"])
def test_a_good_topic_is_returned(topic: str) -> None:
    assert check_topic(topic) == topic


def route(text: str, destination: str, **more: object) -> Route:
    return Route(pattern=text, destination=destination, queue=destination, **more)  # type: ignore[arg-type]


def test_a_message_goes_to_every_route_that_takes_it_in_the_order_they_were_declared() -> None:
    routes = [route("order.*", "b"), route("user.*", "never"), route("order.created", "a"), route("**", "c")]
    assert [found.destination for found in resolve(routes, "order.created")] == ["b", "a", "c"]
    assert [found.destination for found in resolve(routes, "x")] == ["c"]
    assert resolve(routes[:3], "x") == []


def test_each_destination_gets_a_message_once() -> None:
    """§1 delivery: one message on its way to one destination; the first route that takes it decides how."""
    routes = [route("order.*", "a", ordered=True), route("order.created", "a"), route("**", "a")]
    assert resolve(routes, "order.created") == [routes[0]]
    assert resolve(iter(routes), "user.created") == [routes[2]]


@quick
@given(topics)
def test_every_topic_is_its_own_pattern_and_taken_by_two_stars(topic: str) -> None:
    assert check_topic(topic) == topic
    assert matches(topic, topic)
    assert matches("**", topic)
    assert matches(f"{topic}.**", topic)
    assert matches(f"**.{topic}", topic)
    assert not matches(f"{topic}.*", topic)


@quick
@given(topics, st.data())
def test_a_star_stands_for_any_one_word(topic: str, data: st.DataObject) -> None:
    parts = topic.split(".")
    place = data.draw(st.integers(0, len(parts) - 1))
    starred = ".".join([*parts[:place], "*", *parts[place + 1 :]])
    assert matches(starred, topic)
    assert not matches(starred, f"{topic}.more")
    assert matches(starred.replace("*", "**"), topic)


@quick
@given(topics, topics)
def test_a_pattern_without_stars_takes_one_topic(one: str, other: str) -> None:
    assert matches(one, other) == (one == other)
