"""Events of several callers share a commit, and each is stored once for as long as its key lasts."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

import todoku
from tests.engine.test_telemetry import counted
from tests.engine.test_together import Outcome, gated, gathered, stored
from tests.support.world import World
from todoku.core.identity import key_hash
from todoku.core.message import Draft, Idempotency, Message
from todoku.engine.publish import MessageOptions


@pytest.fixture
def box(world: World) -> Iterator[todoku.App]:
    box = todoku.App(world.url)
    box.route("**", to=todoku.log(), name="warehouse")
    yield box
    box.close()


def event(box: todoku.App, key: str, *, digest: str | None = None, lasts: float = 3600, topic: str = "paid") -> Draft:
    """A draft as ingest makes it: with headers of its own, and a key that lasts for a time."""
    made = box.outbox.draft(topic, {"key": key}, MessageOptions(headers={"x-event-id": key}), box.routes)
    hashed = key_hash(key)
    return msgspec.structs.replace(
        made, idempotency=Idempotency("ingest:s", key, hashed, digest or hashed, lasts=lasts)
    )


def only(outcome: Outcome) -> Message:
    assert isinstance(outcome, list)
    (message,) = outcome
    return message


def test_a_batch_of_new_events_is_one_commit(box: todoku.App, world: World) -> None:
    drafts = [event(box, f"evt_{n}", topic=f"paid.{n % 3}") for n in range(20)]
    with gated() as gate:
        outcomes = gathered(box, *([draft] for draft in drafts), gate=gate)
    assert gate.commits == 2  # the one that came alone, and all who came meanwhile
    assert [only(outcome).id for outcome in outcomes] == [draft.id for draft in drafts]
    assert not any(only(outcome).duplicate for outcome in outcomes)
    assert stored(world) == {str(draft.id) for draft in drafts}
    rows = world.sql("select cast(id as text), topic, cast(headers as text) from todoku_message")
    assert sorted((id, topic) for id, topic, _ in rows) == sorted((str(draft.id), draft.topic) for draft in drafts)
    headers = {id: msgspec.json.decode(text) for id, _, text in rows}
    assert [headers[str(draft.id)]["x-event-id"] for draft in drafts] == [f"evt_{n}" for n in range(20)]


def test_repeated_events_get_the_message_of_the_first(box: todoku.App, world: World) -> None:
    first, again, new = event(box, "evt_1"), event(box, "evt_1"), event(box, "evt_2")
    same = event(box, "evt_2")  # in one batch with the other
    with gated() as gate:
        outcomes = gathered(box, [first], [again], [new], [same], gate=gate)
    assert [only(outcome).id for outcome in outcomes] == [first.id, first.id, new.id, new.id]
    assert [only(outcome).duplicate for outcome in outcomes] == [False, True, False, True]
    assert stored(world) == {str(first.id), str(new.id)}
    assert counted(box.telemetry)["outbox_publish_total{ok}"] == 2
    assert counted(box.telemetry)["outbox_publish_total{duplicate}"] == 2


def test_a_conflict_is_the_error_of_its_caller_alone(box: todoku.App, world: World) -> None:
    first, other, new = event(box, "evt_1"), event(box, "evt_1", digest="v1:other"), event(box, "evt_2")
    with gated() as gate:
        outcomes = gathered(box, [first], [other], [new], gate=gate)
    assert isinstance(outcomes[1], todoku.IdempotencyConflict)
    assert [only(outcomes[0]).id, only(outcomes[2]).id] == [first.id, new.id]
    assert stored(world) == {str(first.id), str(new.id)}


def test_an_expired_key_is_free_again(box: todoku.App, world: World) -> None:
    first, later, once_more = event(box, "evt_1", lasts=0), event(box, "evt_1"), event(box, "evt_1")
    with gated() as gate:
        outcomes = gathered(box, [first], [later], [event(box, "evt_2")], gate=gate)
    assert [only(outcome).duplicate for outcome in outcomes] == [False, False, False]
    with gated() as gate:
        (outcome,) = gathered(box, [once_more], gate=gate)
    assert only(outcome).id == later.id
    assert str(once_more.id) not in stored(world)


def test_drafts_of_one_caller_stay_one_transaction(box: todoku.App, world: World) -> None:
    first, other, new = event(box, "evt_1"), event(box, "evt_1", digest="v1:other"), event(box, "evt_2")
    with gated() as gate:
        outcomes = gathered(box, [first], [new, other], gate=gate)
    assert isinstance(outcomes[1], todoku.IdempotencyConflict)
    assert stored(world) == {str(first.id)}


def test_a_draft_that_cannot_be_stored_fails_alone(box: todoku.App, world: World) -> None:
    good = [event(box, f"evt_{n}") for n in range(5)]
    bad = msgspec.structs.replace(event(box, "evt_bad"), id=good[0].id)
    with gated() as gate:
        outcomes = gathered(box, [good[0]], [good[1]], [bad], *([draft] for draft in good[2:]), gate=gate)
    assert isinstance(outcomes[2], Exception)
    assert [only(outcome).id for outcome in (*outcomes[:2], *outcomes[3:])] == [draft.id for draft in good]
    assert stored(world) == {str(draft.id) for draft in good}
