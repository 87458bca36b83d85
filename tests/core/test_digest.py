"""The digest of a body: equal bodies spelled differently have equal digests, and no others."""

from __future__ import annotations

import json
import random
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.making import bodies, names, quick
from todoku.core.identity import VERSION, Json, canonical, differing_fields, digest, digest_bytes

NFC, NFD = unicodedata.normalize("NFC", "Café が"), unicodedata.normalize("NFD", "Café が")
assert NFC != NFD

SAME: list[tuple[str, Json, Json]] = [
    ("the order of keys", {"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ("the order of keys, deep", {"x": [{"a": 1, "b": 2}]}, {"x": [{"b": 2, "a": 1}]}),
    ("NFC and NFD values", {"name": NFC}, {"name": NFD}),
    ("NFC and NFD names", {NFC: 1}, {NFD: 1}),
    ("NFC and NFD, deep", [[{"a": [NFC]}]], [[{"a": [NFD]}]]),
    ("1 and 1.0", {"n": 1}, {"n": 1.0}),
    ("-0.0 and 0", {"n": 0}, {"n": -0.0}),
    ("large whole numbers", 2**53 - 1, float(2**53 - 1)),
    ("1e2 and 100", 100, 1e2),
    ("at the top", NFC, NFD),
]
OTHER: list[tuple[str, Json, Json]] = [
    ("the order of a list", [1, 2], [2, 1]),
    ("a number and its text", {"n": 1}, {"n": "1"}),
    ("true and 1", {"n": True}, {"n": 1}),
    ("false and 0", False, 0),
    ("null and nothing", {"n": None}, {}),
    ("null and text", None, "null"),
    ("an empty list and an empty object", [], {}),
    ("1.5 and 1", 1.5, 1),
    ("upper and lower case", "A", "a"),
    ("a compatibility character", "ﬁ", "fi"),
    ("space inside a text", "a b", "ab"),
    ("nesting", [[1]], [1]),
]


@pytest.mark.parametrize(("what", "one", "other"), SAME)
def test_spelling_does_not_matter(what: str, one: Json, other: Json) -> None:
    """§4 Publish: sorted keys, no spaces, NFC strings."""
    assert canonical(one) == canonical(other)
    assert digest(one) == digest(other)
    assert differing_fields(one, other) == []


@pytest.mark.parametrize(("what", "one", "other"), OTHER)
def test_content_does(what: str, one: Json, other: Json) -> None:
    assert digest(one) != digest(other)
    assert differing_fields(one, other) != []


def test_the_spaces_of_the_text_it_came_from_do_not_matter() -> None:
    texts = ('{"a":[1,2],"b":null}', '{ "b" : null ,\n "a" : [ 1 , 2.0 ] }')
    assert len({digest(json.loads(text)) for text in texts}) == 1


# Never change these: a digest that changes turns every repetition into a conflict. A new form gets a new version.
GOLDEN: list[tuple[Json, str, str]] = [
    (None, "null", "74234e98afe7498fb5daf1f36ac2d78acc339464f950703b8c019892f982b90b"),
    ({}, "{}", "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"),
    (
        {"b": [1.0, -0.0, 1.5], "a": {"é": "が", "n": None}},
        '{"a":{"n":null,"é":"が"},"b":[1,0,1.5]}',
        "2e01fae9fe705fb40a1335b9dd396c5a28224f73270ead97be249fc6dd0941cb",
    ),
    (
        {"paid": True, "currency": "JPY", "amount": 1200},
        '{"amount":1200,"currency":"JPY","paid":true}',
        "84521d3ab211f8d81f8ad8d5ae905cf329cbef45a6a397793ca3de767336ceca",
    ),
    (
        'a "quoted" \\ line\n',
        r'"a \"quoted\" \\ line\n"',
        "c10bcdf854d90570b3bc0a64a3d0daa116177cd1dd596f823483d6086f223ab7",
    ),
]


@pytest.mark.parametrize(("body", "text", "sha256"), GOLDEN)
def test_a_digest_is_the_same_for_ever(body: Json, text: str, sha256: str) -> None:
    assert canonical(body) == text
    assert digest(body) == f"1:{sha256}"


def test_a_body_that_is_not_json_is_digested_as_it_is() -> None:
    assert digest_bytes(b"") == "1:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert digest_bytes(b"{} ") != digest({})


def test_a_digest_says_which_form_it_is_of() -> None:
    """A later canonical form must not be mistaken for a conflict."""
    assert VERSION == "1"
    assert digest(1).startswith("1:")


def test_excluded_fields_are_left_out_at_the_top_only() -> None:
    """§4 Publish: named fields excluded."""
    one: Json = {"order": {"at": 1}, "at": "12:03", "trace": "x"}
    other: Json = {"order": {"at": 1}, "at": "12:04"}
    assert (
        digest(one, excluded=("at", "trace")) == digest(other, excluded=("at", "trace")) == digest({"order": {"at": 1}})
    )
    assert digest({"order": {"at": 1}}, excluded=("at",)) != digest({"order": {"at": 2}}, excluded=("at",))
    assert digest(["at"], excluded=("at",)) == digest(["at"])


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_what_json_cannot_say_has_no_digest(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        digest({"n": [number]})


@pytest.mark.parametrize(
    ("one", "other", "fields"),
    [
        ({"amount": 1, "user": 7}, {"amount": 2, "user": 7}, ["amount"]),
        ({"a": 1}, {"b": 1}, ["a", "b"]),
        ({"a": None}, {}, ["a"]),
        ({"a": {"": None}}, {}, ["a"]),
        ({"a": {"x": 1, "y": 2}}, {"a": {"y": 2, "x": 1}}, []),
        ({NFC: 1, "n": 1}, {NFD: 1.0, "n": 2}, ["n"]),
        ([1], [1.0], []),
        ([1], [2], ["the body"]),
        ({"a": 1}, [1], ["the body"]),
    ],
)
def test_a_conflict_can_tell_where_bodies_differ(one: Json, other: Json, fields: list[str]) -> None:
    """API: "differs in: amount"."""
    assert differing_fields(one, other) == fields
    assert differing_fields(other, one) == fields


def shuffled(body: Json, chance: random.Random) -> Json:
    """The same body with its keys in another order, in NFD, and with 1.0 for 1."""
    match body:
        case dict():
            items = list(body.items())
            chance.shuffle(items)
            return {unicodedata.normalize("NFD", name): shuffled(item, chance) for name, item in items}
        case list():
            return [shuffled(item, chance) for item in body]
        case str():
            return unicodedata.normalize("NFD", body)
        case int() if not isinstance(body, bool) and abs(body) < 2**53:
            return float(body)
        case _:
            return body


def one_name_per_name(body: Json) -> bool:
    """Whether no object has two names that are one in NFC: such a body is not what anybody means."""
    match body:
        case dict():
            normal = {unicodedata.normalize("NFC", name) for name in body}
            return len(normal) == len(body) and all(map(one_name_per_name, body.values()))
        case list():
            return all(map(one_name_per_name, body))
        case _:
            return True


@quick
@given(bodies.filter(one_name_per_name), st.randoms(use_true_random=False))
def test_no_spelling_of_a_body_has_another_digest(body: Json, chance: random.Random) -> None:
    other = shuffled(body, chance)
    assert digest(other) == digest(body)
    assert differing_fields(body, other) == []


@quick
@given(bodies)
def test_canonical_text_is_json_and_its_own_canonical_form(body: Json) -> None:
    text = canonical(body)
    assert canonical(json.loads(text)) == text


@quick
@given(st.dictionaries(names, bodies, max_size=4), st.dictionaries(names, bodies, max_size=4))
def test_bodies_differ_in_some_field_exactly_if_their_digests_differ(
    one: dict[str, Json], other: dict[str, Json]
) -> None:
    assert (differing_fields(one, other) == []) == (digest(one) == digest(other))
