"""Sealed bytes: their layout, what they are bound to, and how they are named."""

from __future__ import annotations

from itertools import combinations
from uuid import UUID, uuid4

import pytest

from todoku.core.sealed import (
    SEALED,
    Kind,
    Sealed,
    SealedPlace,
    inner_type,
    key_associated,
    kind_of,
    pack,
    parse_sealed_result,
    payload_placeholder,
    result_text,
    unpack,
)

ID = UUID("018f0000-0000-7000-8000-000000000001")


def test_what_is_packed_is_unpacked() -> None:
    sealed = Sealed(uuid4(), bytes(range(12)), b"ciphertext and a tag of 16")
    assert unpack(pack(sealed)) == sealed


@pytest.mark.parametrize(
    "raw", [b"", b"\x01short", b"\x03" + bytes(100), b'{"name": "not sealed at all, but long enough"}']
)
def test_what_is_no_sealed_bytes_is_not_taken_for_it(raw: bytes) -> None:
    assert unpack(raw) is None


def test_every_place_has_associated_data_of_its_own() -> None:
    """No two places are alike, however their parts are cut."""
    places = [
        SealedPlace("payload", str(ID), "a.b"),
        SealedPlace("result", str(ID), "a.b"),
        SealedPlace("payload", str(uuid4()), "a.b"),
        SealedPlace("payload", str(ID), "a"),
        SealedPlace("payload", str(ID), "a.b", "application/octet-stream"),
        SealedPlace("payload", str(ID) + "a", ".b"),
    ]
    for version in (1, 2):
        bound = [place.associated(version) for place in places]
        assert all(one != other for one, other in combinations(bound, 2))


def test_a_wrapped_key_is_bound_to_its_day_and_master_key() -> None:
    bound = {key_associated(ID, day, master) for day in ("2026-11-16", "2026-11-17") for master in ("a", "b")}
    assert len(bound) == 4


@pytest.mark.parametrize("kind", [Kind("application/json"), Kind("text/plain;charset=utf-8"), Kind("a/b", ID)])
def test_a_content_type_says_what_is_inside_and_which_key_opened_it(kind: Kind) -> None:
    assert kind_of(str(kind)) == kind
    assert inner_type(str(kind)) == kind.inner


def test_what_is_not_sealed_is_its_own_content_type() -> None:
    assert kind_of("application/json") is None
    assert inner_type("application/json") == "application/json"
    assert kind_of(SEALED) is None


def test_a_sealed_result_is_json_and_a_plain_one_is_not_taken_for_it() -> None:
    assert parse_sealed_result(result_text(b"\x01\x02")) == b"\x01\x02"
    for plain in (
        "null",
        '"text"',
        '{"todoku.sealed":7}',
        '{"todoku.sealed":"no base64!"}',
        '{"todoku.sealed":"YQ=A"}',
    ):
        assert parse_sealed_result(plain) is None


def test_people_are_shown_that_it_is_encrypted_and_how_large() -> None:
    assert payload_placeholder(str(Kind("application/json")), 120) == "encrypted (120 bytes)"
    assert payload_placeholder("application/octet-stream", 3) == "(3 bytes of application/octet-stream)"
