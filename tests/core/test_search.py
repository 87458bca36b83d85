"""The words of a search: read from text, refused with what is possible, and written as the same text."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as some

from todoku.core.errors import InvalidAct
from todoku.core.search import (
    NAMES,
    Partial,
    Search,
    Term,
    check_path,
    criteria,
    last_word,
    parse,
    scalar_text,
    topic_expression,
    value_at,
)

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
ID = "01890a5d-ac96-774b-bcce-b302099a8057"


def test_every_word_has_its_place() -> None:
    query = parse(
        "status:failed status:aborted topic:order.* queue:mail destination:bank host:Shop.example key:k1 label:red "
        f'id:7 id:{ID} reason:TIMEOUT fingerprint:ab12 error:"no such card" worker:w1 payload.order.id:42 '
        "header.x-Tenant:t1 since:2h until:2026-05-01 12 word"
    )
    found = criteria(query, NOW)
    assert (found.statuses, found.topics, found.queues) == (("failed", "aborted"), ("order.*",), ("mail",))
    assert (found.destinations, found.hosts, found.keys) == (("bank",), ("shop.example",), ("k1",))
    assert (found.labels, found.ids, found.message_ids) == ((("red",),), (7, 12), (UUID(ID),))
    assert (found.reasons, found.fingerprints, found.errors) == (("TIMEOUT",), ("ab12",), ("no such card",))
    assert (found.workers, found.payload, found.headers) == (("w1",), (("order.id", "42"),), (("x-Tenant", "t1"),))
    assert (found.since, found.until) == (NOW - timedelta(hours=2), datetime(2026, 5, 1, tzinfo=UTC))
    assert found.words == ("word",)


@pytest.mark.parametrize(
    ("text", "told", "hint"),
    [
        ("colour:red", "there is no word 'colour'", '"colour:red"'),
        ("status:dead", "status cannot be 'dead'", "pending, sending, succeeded, failed, aborted"),
        ("id:x", "id cannot be 'x'", "the id of a message"),
        ("id:0", "id cannot be '0'", "number"),
        ("topic:a..b", "topic cannot be 'a..b'", "order.*"),
        ("topic:**.a", "topic cannot be '**.a'", "at the end"),
        ("since:yesterday", "since cannot be 'yesterday'", "2026-01-31"),
        ("status:", "status has no value", "status:value"),
        ('error:"open', "has no end", "close it"),
        ('"a"b', "'b' follows", "space"),
        ("-status:failed", "'-status:failed': a word cannot be excluded", "quote"),
        ("payload.a..b:1", "payload cannot be 'a..b'", "customer.id"),
        ("payload:1", "there is no word 'payload'", "payload.…"),
        ("status.x:1", "there is no word 'status.x'", "known"),
        ("a\0b", "no database stores", "leave it out"),
        ("a\ud800", "no database stores", "leave it out"),
        ("x" * 1001, "1001 characters", "1000"),
        ("x " * 21, "21 words", "20"),
    ],
)
def test_a_wrong_word_is_refused_with_what_is_possible(text: str, told: str, hint: str) -> None:
    with pytest.raises(InvalidAct) as refused:
        parse(text)
    assert told in str(refused.value)
    assert hint in refused.value.hint


values = some.text(some.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1, max_size=30)
free = some.sampled_from([name for name in NAMES if name not in ("status", "topic", "id", "since", "until")])
terms = some.one_of(
    some.builds(Term, free, values),
    some.builds(Term, some.just(""), values),
    some.builds(Term, some.just("payload"), values, some.sampled_from(["order_id", "customer.id", "a.0"])),
    some.builds(Term, some.just("header"), values, some.just("x-tenant")),
    some.builds(Term, some.just("status"), some.sampled_from(["failed", "pending"])),
)


@given(some.lists(terms, max_size=8))
def test_a_search_is_read_from_the_text_it_is_written_as(made: list[Term]) -> None:
    query = Search(tuple(made))
    assert parse(str(query)) == query


@given(some.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        query = parse(text)
    except InvalidAct:
        return  # the refusals have their own test
    assert parse(str(query)) == query


def test_one_name_can_be_replaced() -> None:
    query = parse("status:failed topic:a status:pending")
    assert str(query.replaced("status", "aborted")) == "status:aborted topic:a"
    assert str(query.replaced("status")) == "topic:a"


@pytest.mark.parametrize(
    ("pattern", "topic", "matches"),
    [("order.*", "order.paid", True), ("order.*", "order.a.b", False), ("order.**", "order", True), ("a", "a", True)],
)
def test_a_pattern_is_a_regular_expression_for_databases(pattern: str, topic: str, matches: bool) -> None:
    assert (re.search(topic_expression(pattern), f".{topic}") is not None) is matches


@pytest.mark.parametrize(
    ("value", "text"),
    [(42, "42"), ("x", "x"), (True, "true"), (1.5, "1.5"), (None, None), ([1], None), ({}, None), ("", None),
     ("x" * 201, None)],
)  # fmt: skip
def test_scalars_are_searched_as_text(value: object, text: str | None) -> None:
    assert scalar_text(value) == text


def test_a_path_leads_through_objects_and_lists() -> None:
    document = {"customer": {"id": 7}, "items": [{"sku": "a"}]}
    assert value_at(document, "customer.id") == 7
    assert value_at(document, "items.0.sku") == "a"
    assert value_at(document, "items.1.sku") is None
    assert value_at(document, "customer.id.x") is None


@pytest.mark.parametrize("path", ["", "a..b", "a b", 'a"b', "a:b", 7, "x" * 201, ".".join("a" * 11)])
def test_a_path_that_no_search_could_name_is_refused(path: object) -> None:
    with pytest.raises(InvalidAct):
        check_path(path)


@pytest.mark.parametrize(
    ("text", "partial"),
    [
        ("", Partial("", None, "")),
        ("sta", Partial("", None, "sta")),
        ("status:fa", Partial("", "status", "fa")),
        ("topic:a st", Partial("topic:a ", None, "st")),
        ("topic:a ", Partial("topic:a ", None, "")),
        ("payload.order_id:4", Partial("", "payload.order_id", "4")),
        ("http://x", Partial("", None, "http://x")),
    ],
)
def test_the_word_that_is_being_written(text: str, partial: Partial) -> None:
    assert last_word(text) == partial
