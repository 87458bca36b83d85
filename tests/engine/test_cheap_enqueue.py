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
from todoku.engine.publish import encode

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
