"""The values that travel the line: frozen, and with the defaults of DESIGN."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import msgspec
import pytest

from tests.core.making import claimed
from todoku.core.message import MAX_KEY_LENGTH, PRIORITIES, Claimed, Draft, Idempotency, Leg, Message

ID = UUID(int=7)
VALUES = [
    Leg(destination="warehouse"),
    Idempotency("publish:x", "k", "hash", "1:digest"),
    Draft(id=ID, topic="order.created", type="order.created", legs=(Leg(destination="warehouse"),)),
    Message(id=ID, topic="order.created", key=None, duplicate=False, created_at=datetime(2024, 1, 1, tzinfo=UTC)),
    claimed(),
]


@pytest.mark.parametrize("value", VALUES, ids=[type(value).__name__ for value in VALUES])
def test_a_value_of_the_line_cannot_be_changed(value: msgspec.Struct) -> None:
    """§1: a message is an immutable fact; and a claim that could be changed could forge its token (I3)."""
    for name in value.__struct_fields__:
        with pytest.raises(AttributeError):
            setattr(value, name, None)


@pytest.mark.parametrize("value", VALUES, ids=[type(value).__name__ for value in VALUES])
def test_values_with_the_same_content_are_equal(value: msgspec.Struct) -> None:
    twin = msgspec.structs.replace(value)
    assert twin == value
    assert hash(twin) == hash(value)


def test_a_claim_carries_its_token() -> None:
    """I3: (id, epoch, worker). The worker comes last: the store adds it to the row it read. What is opened later
    and the list by which it was claimed are no part of that."""
    assert {"id", "epoch", "worker"} <= set(Claimed.__struct_fields__)
    assert Claimed.__struct_fields__[-3:] == ("worker", "secrets", "claim_list")
    assert claimed(epoch=1) != claimed(epoch=2)


def test_without_anything_said_a_delivery_is_like_this() -> None:
    """§4, §7: priority 0, six attempts, no lane, no timeout of its own."""
    leg = Leg(destination="warehouse")
    assert (leg.priority, leg.max_attempts, leg.lane, leg.timeout, leg.dead) == (0, 6, None, None, None)


def test_priorities_are_few_whole_numbers() -> None:
    """H20: claim looks into each of them by equality."""
    assert list(PRIORITIES) == list(range(16))


def test_a_key_has_room_for_512_characters() -> None:
    assert MAX_KEY_LENGTH == 512
