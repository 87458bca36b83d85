"""What the store reads and writes for the page of one message: followers, one delivery by its number, signed acts."""

from __future__ import annotations

from datetime import timedelta

import msgspec
import pytest

from tests.support.world import SOMEBODY, World, aborted, failed
from todoku.core.message import Draft
from todoku.store import deliveries
from todoku.store.columns import moment
from todoku.store.store import Store


def around(store: Store, seconds: float = 5.0) -> tuple[object, object]:
    now = moment(store.ping())
    return now - timedelta(seconds=seconds), now + timedelta(seconds=seconds)


def test_followers_are_found_by_a_text_in_their_headers_or_labels(world: World) -> None:
    (first,) = world.publish(headers={"x-correlation-id": "trip 7"})
    (child,) = world.publish(topic="order.paid", headers={"x-correlation-id": "trip 7"}, key="k")
    (labelled,) = world.publish(labels=[f"todoku.again_of:{first.id}"])
    world.publish(3, headers={"x-correlation-id": "trip 8"})
    needles = ["trip 7", str(first.id)]
    found = world.store.messages.find_followers(first.id, [around(world.store)], needles=needles)  # type: ignore[list-item]
    assert {each.id for each in found.items} == {child.id, labelled.id}
    assert found.complete
    (one,) = (each for each in found.items if each.id == child.id)
    assert (one.topic, one.key) == ("order.paid", "k")
    assert msgspec.json.decode(one.headers or "") == {"x-correlation-id": "trip 7"}


def test_messages_are_found_by_a_label(world: World) -> None:
    made = [world.publish(labels=["blue", f"mark:{number}"])[0] for number in range(3)]
    world.publish(labels=["red"])
    found = world.store.messages.find_labelled(["blue", "green"], limit=2)
    assert [each.id for each in found] == [message.id for message in made[:2]]
    assert [each.id for each in world.store.messages.find_labelled(["mark:2"])] == [made[2].id]
    assert world.store.messages.find_labelled([]) == ()


def test_the_call_of_a_hook_is_found_by_its_payload(world: World) -> None:
    (first,) = world.publish()
    (hook,) = world.publish(topic="todoku.succeeded", payload=lambda _: {"message_id": str(first.id)})
    world.publish(topic="todoku.aborted", payload=lambda _: {"message_id": "another"})
    world.publish(topic="order.created", payload=lambda _: {"message_id": str(first.id)})
    found = world.store.messages.find_followers(first.id, [around(world.store)])  # type: ignore[list-item]
    assert [each.id for each in found.items] == [hook.id]


def test_a_window_that_is_not_looked_at_whole_is_not_complete(world: World) -> None:
    (first,) = world.publish()
    world.publish(5, headers={"x-correlation-id": "a"})
    window = around(world.store)
    few = world.store.messages.find_followers(first.id, [window], needles=["a"], look=3)  # type: ignore[list-item]
    assert not few.complete
    assert len(few.items) < 5
    before = window[0] - timedelta(hours=1), window[0] - timedelta(minutes=59)  # type: ignore[operator]
    assert world.store.messages.find_followers(first.id, [before], needles=["a"]).items == ()  # type: ignore[list-item]


def test_a_delivery_is_got_by_its_number_wherever_it_is(world: World) -> None:
    world.publish(40, to=("a", "b"))
    worker = world.worker()
    claims = sorted(world.claim(worker), key=lambda claim: claim.id)
    world.settle(claims[:60])
    world.settle(claims[60:61], aborted())
    world.settle(claims[61:62], failed(delay=60))
    for claim in claims:
        found = world.store.deliveries.get(claim.id)
        assert found is not None
        assert (found.id, found.message_id is not None) == (claim.id, True)
    statuses = [world.store.deliveries.get(claims[place].id).status for place in (0, 59, 60, 61, 62)]  # type: ignore[union-attr]
    assert statuses == ["succeeded", "succeeded", "aborted", "failed", "sending"]
    assert world.store.deliveries.get(10_000) is None


def test_a_delivery_is_found_by_bisection_in_a_long_history(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Among few neighbours: the place is found without reading the rest, also where messages were removed."""
    monkeypatch.setattr(deliveries, "_NEIGHBOURS", (4,))
    world.publish(90)
    claims = sorted(world.claim(world.worker()), key=lambda claim: claim.id)
    world.settle(claims)
    world.sql(f"delete from todoku_history where delivery_id between {claims[30].id} and {claims[50].id}")
    for place, claim in enumerate(claims):
        assert (world.store.deliveries.get(claim.id) is None) == (30 <= place <= 50)


def test_a_delivery_far_from_its_neighbours_is_found_among_more_of_them(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its publisher numbered its messages, waited, and then numbered its deliveries."""
    monkeypatch.setattr(deliveries, "_NEIGHBOURS", (4, 90))
    world.publish(90)
    claims = sorted(world.claim(world.worker()), key=lambda claim: claim.id)
    world.settle(claims)
    late = claims[10].id
    world.sql(f"update todoku_history set delivery_id = {claims[-1].id + 7} where delivery_id = {late}")
    found = world.store.deliveries.get(claims[-1].id + 7)
    assert found is not None
    assert str(found.message_id) == claims[10].message_id
    assert world.store.deliveries.get(late) is None


def test_a_message_that_an_operator_writes_is_audited_and_a_duplicate_is_not(world: World) -> None:
    draft: Draft
    (draft,) = world.drafts(idempotency_key="once")
    message = world.store.acts.publish(draft, SOMEBODY)
    (again,) = world.drafts(idempotency_key="once")
    assert world.store.acts.publish(again, SOMEBODY).id == message.id
    assert [(act.act.action, act.act.target) for act in world.store.audit.page()] == [
        ("publish", f"message:{message.id}")
    ]  # fmt: skip
    assert [row.message_id for row in world.deliveries()] == [message.id]


def test_an_edited_repetition_is_audited_with_the_digest_of_the_change(world: World) -> None:
    world.publish()
    (claim,) = world.claim(world.worker())
    world.settle([claim], aborted())
    (new,) = world.store.acts.repeat([(claim.id, world.drafts()[0])], SOMEBODY, change="1:abc")
    assert {(act.act.target, act.act.action) for act in world.store.audit.page()} == {
        (f"delivery:{claim.id}", f"run edited as {new}, 1:abc"),
        (f"message:{new}", f"delivery {claim.id} edited, 1:abc"),
    }


def test_an_act_that_changes_nothing_is_recorded(world: World) -> None:
    world.store.acts.record("open", "message:x", SOMEBODY)
    (entry,) = world.store.audit.page()
    assert (entry.act.action, entry.act.target, entry.act.by) == ("open", "message:x", "somebody")
