"""The short ways of an enqueue give what the long ones give: JSON, arguments by name, ids (R16)."""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import todoku
from todoku.core.errors import InvalidMessage
from todoku.core.identity import uuid7, uuids7
from todoku.core.message import Alike
from todoku.core.topic_pattern import Route
from todoku.engine.outbox import new_ids
from todoku.engine.publish import Encoded, MessageOptions, check_sizes, encode, fill, prepare
from todoku.store.publish_parameters import alike_parameters, batch_parameters

NAME = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=10)
SCALAR = st.none() | st.booleans() | st.integers(-(2**80), 2**80) | NAME
FLAT = st.dictionaries(NAME, SCALAR, max_size=6)
LIMITS = [2**63 - 1, 2**63, 2**64, -(2**63), -(2**63) - 1]


@given(FLAT)
def test_R16_a_flat_payload_is_encoded_byte_by_byte_as_any_other(payload: dict[str, Any]) -> None:
    """A digest of an idempotency key is that of the stored text, by whichever encoder it was written."""
    assert encode(payload) == json.dumps(payload, ensure_ascii=False, separators=(",", ":"))


def test_R16_control_characters_and_large_numbers_are_encoded_as_by_json() -> None:
    payload = {chr(code): chr(code) for code in range(1, 0x300)} | {str(number): number for number in LIMITS}
    assert encode(payload) == json.dumps(payload, ensure_ascii=False, separators=(",", ":"))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "\ud800", "\0", b"bytes", object()])
def test_R16_what_has_no_json_is_refused_in_a_flat_payload_too(value: object) -> None:
    with pytest.raises(InvalidMessage):
        encode({"value": value})


def two(first: int, second: str = "b") -> None:
    """Positional, one with a default."""


def by_name(first: int, *, second: str, third: str = "c") -> None:
    """Some by name only."""


def only_by_place(first: int, /, second: str = "b") -> None:
    """One without a name."""


def rest(first: int, *others: int) -> None:
    """Any number."""


def extra(first: int, **others: int) -> None:
    """Any names."""


def none() -> None:
    """No parameter."""


def scalars(first: int, second: str) -> None:
    """Nothing but scalars."""


VALUES = {"first": 1, "second": "two", "third": "three", "fourth": "four"}


@given(
    function=st.sampled_from([two, by_name, only_by_place, rest, extra, none]),
    args=st.lists(st.sampled_from([1, "two"]), max_size=3),
    names=st.lists(st.sampled_from(sorted(VALUES)), unique=True),
)
def test_R16_arguments_are_bound_as_python_binds_them(function: Any, args: list[Any], names: list[str]) -> None:
    """In the order of the parameters, whatever the order of the call: equal calls have equal payloads."""
    box = todoku.App("sqlite:///unused.db")
    signature: Any = box.job(function).handler.signature
    kwargs = {name: VALUES[name] for name in names}
    shape = inspect.signature(function)
    try:
        bound = dict(shape.bind(*args, **kwargs).arguments)
    except TypeError as error:
        with pytest.raises(InvalidMessage, match=re.escape(str(error))):
            signature._document(tuple(args), kwargs)
        return
    if function is extra:
        bound |= bound.pop("others", {})
    document = signature._document(tuple(args), kwargs)
    assert list(document.items()) == list(bound.items())


@given(st.integers(0, 2**48 - 1), st.lists(st.binary(min_size=10, max_size=10), max_size=20))
def test_R16_ids_of_a_batch_are_those_of_single_messages_in_order(at: int, randomness: list[bytes]) -> None:
    assert uuids7(at, b"".join(randomness)) == sorted(uuid7(at, each) for each in randomness)


ROUTES = [
    Route(pattern="**", destination="first", queue="q", max_attempts=6),
    Route(pattern="**", destination="second", queue="q", max_attempts=1, timeout=2.5),
]
OPTIONS = st.builds(
    MessageOptions,
    key=st.none() | st.just("key"),
    headers=st.none() | st.just({"a": "b"}),
    delay=st.none() | st.just(1.5),
    expires=st.none() | st.just(60),
    priority=st.integers(0, 15),
)


@given(OPTIONS, st.lists(FLAT, min_size=1, max_size=5), st.sampled_from([ROUTES, ROUTES[:1], []]))
def test_I1_messages_that_are_alike_are_sent_as_any_others(
    options: MessageOptions, payloads: list[dict[str, Any]], routes: list[Route]
) -> None:
    """The same statement has the same parameters, whether each message was looked at or not."""
    prepared = prepare("order.created", options, routes, max_payload_bytes=10_000, no_route="dead_letter")
    ids, texts = new_ids(len(payloads)), [encode(payload) for payload in payloads]
    drafts = [fill(prepared, id, Encoded(text)) for id, text in zip(ids, texts, strict=True)]
    assert alike_parameters(Alike(prepared.draft, ids, texts)) == batch_parameters(drafts)


@given(st.lists(st.text(max_size=12), min_size=1, max_size=5), st.integers(1, 40))
def test_R16_the_sizes_of_messages_that_are_alike_are_those_of_each(texts: list[str], most: int) -> None:
    prepared = prepare("order.created", MessageOptions(), ROUTES, max_payload_bytes=most)
    if any(len(text.encode()) > most for text in texts):
        with pytest.raises(InvalidMessage, match=f"{most} are allowed"):
            check_sizes(prepared, texts)
    else:
        check_sizes(prepared, texts)


@given(st.integers(-(2**70), 2**70) | st.booleans() | st.just("1"), st.text(max_size=5) | st.just("\0") | st.none())
def test_R16_scalars_by_place_are_encoded_as_by_name(first: Any, second: Any) -> None:
    """The short way refuses what the long one refuses, and by the same error."""
    box = todoku.App("sqlite:///unused.db")
    signature: Any = box.job(scalars).handler.signature

    def outcome(args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        try:
            return signature.encoded(args, kwargs)
        except InvalidMessage as error:
            return str(error)

    assert outcome((first, second), {}) == outcome((), {"first": first, "second": second})
