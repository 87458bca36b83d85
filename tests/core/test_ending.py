"""How deliveries end, as values: who hears of it, who belongs to a batch, what follows what."""

from __future__ import annotations

from uuid import UUID, uuid4

import msgspec
import pytest

from todoku.core.ending import (
    BATCH,
    Following,
    Hook,
    NewBatch,
    add_to_batch,
    batch_of,
    chain_drafts,
    following_drafts,
    without_keys,
)
from todoku.core.message import Draft, Leg
from todoku.core.sealed import WrappedKey


def draft(topic: str, **more: object) -> Draft:
    return Draft(id=uuid4(), topic=topic, type=topic, legs=(Leg(destination=topic),), **more)  # type: ignore[arg-type]


def hook(**more: object) -> Hook:
    return Hook(name="h", event="aborted", queue="q", max_attempts=1, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("more", "end", "hears"),
    [
        ({}, ("aborted", "order.created", "mail", "default"), True),
        ({}, ("succeeded", "order.created", "mail", "default"), False),
        ({"topic": "order.*"}, ("aborted", "order.created", "mail", "default"), True),
        ({"topic": "order.*"}, ("aborted", "user.created", "mail", "default"), False),
        ({"destination": "mail"}, ("aborted", "x", "mail", "default"), True),
        ({"destination": "mail"}, ("aborted", "x", "crm", "default"), False),
        ({"from_queue": "fast"}, ("aborted", "x", "crm", "fast"), True),
        ({"from_queue": "fast"}, ("aborted", "x", "crm", "slow"), False),
        ({}, ("aborted", "todoku.aborted", "h", "q"), False),
        ({"topic": "todoku.**"}, ("aborted", "todoku.aborted", "h", "q"), False),
    ],
)
def test_a_hook_hears_what_it_asked_for_and_never_of_hooks(
    more: dict[str, str], end: tuple[str, str, str, str], hears: bool
) -> None:
    assert hook(**more).fires_for(*end) is hears


@pytest.mark.parametrize("headers", [None, '{"tenant":"a"}'])
def test_a_member_carries_its_batch_and_keeps_its_headers(headers: str | None) -> None:
    id = uuid4()
    made = add_to_batch(draft("a", headers=headers), id)
    assert batch_of(made.headers) == id
    kept = msgspec.json.decode(made.headers or "")
    del kept[BATCH]
    assert kept == (msgspec.json.decode(headers) if headers else {})


@pytest.mark.parametrize(
    "headers",
    [
        None,
        "{}",
        '{"todoku-batch":"nonsense"}',
        '{"x":"todoku-batch"}',
        '["todoku-batch"]',
        '{"todoku-batch":7}',
        "{bad",
    ],
)
def test_what_is_no_id_of_a_batch_is_nobodys(headers: str | None) -> None:
    assert batch_of(headers) is None


def test_a_chain_is_nested_batches_of_one() -> None:
    drafts, ids = [draft(name) for name in "abc"], [uuid4(), uuid4()]
    first = chain_drafts(drafts, ids)
    assert first.batch is not None
    assert (first.batch.id, first.batch.total, first.batch.on) == (ids[0], 1, "succeeded")
    assert [each.topic for each in following_drafts(first.batch)] == ["b", "c"]
    second = first.batch.next
    assert second is not None
    assert second.batch is not None
    assert [batch_of(each.headers) for each in (*first.drafts, *second.drafts)] == ids
    assert second.batch.next == Following((drafts[2],))
    assert chain_drafts(drafts[:1], []) == Following((drafts[0],))


def test_what_is_stored_for_later_is_read_back_the_same() -> None:
    first = chain_drafts(
        [draft("a"), draft("b", payload_bytes=b"\x00\xff"), draft("c", payload='"c"')], [uuid4(), uuid4()]
    )
    assert msgspec.json.decode(msgspec.json.encode(first), type=Following) == first


def test_what_is_stored_for_later_brings_no_data_key_along() -> None:
    key = WrappedKey(UUID(int=1), "2026-01-31", "master", b"wrapped")
    drafts = [draft(name, sealed_with=key) for name in "abc"]
    first = chain_drafts(drafts, [uuid4(), uuid4()])
    assert first.batch is not None
    assert [each.sealed_with for each in following_drafts(without_keys(first.batch))] == [None, None]
    assert without_keys(NewBatch(id=UUID(int=2), total=1, on="finished")).next is None
