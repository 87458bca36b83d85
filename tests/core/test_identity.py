"""Identities made of arguments. Their golden values are stored in databases: they must never change."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.making import names, quick
from todoku.core.identity import destination_lock, effect_scope, key_hash, lane_id, publish_scope, uuid7

times = st.integers(0, 2**48 - 1)
chance = st.binary(min_size=10, max_size=10)


@pytest.mark.parametrize(
    ("unix_ms", "randomness", "expected"),
    [
        (0, bytes(10), "00000000-0000-7000-8000-000000000000"),
        (2**48 - 1, b"\xff" * 10, "ffffffff-ffff-7fff-bfff-ffffffffffff"),
        # The example of RFC 9562, appendix A.6.
        (0x017F22E279B0, bytes.fromhex("0cc318c4dc0c0c07398f"), "017f22e2-79b0-7cc3-98c4-dc0c0c07398f"),
    ],
)
def test_a_uuid7_is_made_like_this(unix_ms: int, randomness: bytes, expected: str) -> None:
    assert str(uuid7(unix_ms, randomness)) == expected


@quick
@given(times, chance)
def test_a_uuid7_has_version_variant_and_time(unix_ms: int, randomness: bytes) -> None:
    made = uuid7(unix_ms, randomness)
    assert made.version == 7
    assert made.variant == uuid.RFC_4122
    assert made.int >> 80 == unix_ms


@quick
@given(times, chance, times, chance)
def test_uuid7s_are_ordered_by_time_as_numbers_and_as_text(one: int, a: bytes, other: int, b: bytes) -> None:
    """§5: so the newest messages are neighbours in an index."""
    first, second = uuid7(one, a), uuid7(other, b)
    if one < other:
        assert first < second
        assert str(first) < str(second)


@quick
@given(times, chance, chance)
def test_a_uuid7_keeps_74_bits_of_chance(unix_ms: int, one: bytes, other: bytes) -> None:
    """§5: unguessable. Two ids of a millisecond are the same only where 6 of the 80 bits given differ."""
    kept = (1 << 80) - 1 & ~(0xF000 << 64) & ~(0xC000 << 48)
    differ = (int.from_bytes(one) ^ int.from_bytes(other)) & kept
    assert kept.bit_count() == 74
    assert (uuid7(unix_ms, one) == uuid7(unix_ms, other)) == (differ == 0)


def test_only_as_much_chance_is_used_as_there_is_room() -> None:
    assert uuid7(1, b"\x01" * 10 + b"more") == uuid7(1, b"\x01" * 10)


@pytest.mark.parametrize(
    ("destination", "key", "expected"),
    [
        ("warehouse", "order-1", 2_548_764_720_994_674_175),
        ("warehouse", "", -539_106_690_589_824_991),
        ("倉庫", "注文-1", -6_718_583_183_620_753_213),
    ],
)
def test_a_lane_is_the_same_number_for_ever(destination: str, key: str, expected: int) -> None:
    """I10: publishers of two versions of todoku must lock the same lane."""
    assert lane_id(destination, key) == expected


def test_the_lock_of_a_destination_is_the_same_number_for_ever() -> None:
    assert destination_lock("warehouse") == -2_749_413_089_731_370_306
    assert destination_lock("倉庫") == -417_200_617_125_192_228


@quick
@given(names, names)
def test_a_lane_fits_the_database(destination: str, key: str) -> None:
    """A signed 64-bit number: bigint on PostgreSQL, integer on SQLite, and a key of advisory locks."""
    assert -(2**63) <= lane_id(destination, key) < 2**63
    assert -(2**63) <= destination_lock(destination) < 2**63


def test_lanes_of_different_destinations_and_keys_are_different() -> None:
    made = {lane_id(destination, key) for destination in ("a", "b", "ab", "") for key in ("a", "b", "ab", "")}
    assert len(made) == 16
    assert any(lane < 0 for lane in made)
    assert any(lane > 0 for lane in made)


def test_a_lane_is_not_the_lock_of_a_destination() -> None:
    """Both are advisory locks of one database: a publisher takes one of each."""
    assert lane_id("warehouse", "") != destination_lock("warehouse")


def test_the_hash_of_a_key_is_the_same_for_ever_and_hides_it() -> None:
    """S0-76: the key itself is never logged."""
    assert key_hash("u7") == "e8180000fa67e824043aa522c6743de57dbc5de1d39d5483acb618b699a9dd00"
    assert key_hash("キー") == "1771ccbd34bfe4b97116b5a521d4e47d65323b2cef14ecbe5359998007097470"
    assert "u7" not in key_hash("u7")


def test_scopes_keep_publishing_and_effects_apart() -> None:
    """I5, H12: two scopes; and `welcome` and `goodbye`, both with key u7, do not meet."""
    assert publish_scope("order.created") == "publish:order.created"
    assert effect_scope("warehouse") == "effect:warehouse"
    assert publish_scope("welcome") != publish_scope("goodbye")
    assert publish_scope("x") != effect_scope("x")
