"""tail: what happened lately, oldest first."""

from __future__ import annotations

from tests.support.world import SOMEBODY, World, failed
from todoku.store.deliveries import Filter


def test_what_one_transaction_wrote_is_told_in_its_order(world: World) -> None:
    """MEND-8: twelve messages of one moment; "10" would come before "9" where numbers are compared as text."""
    messages = world.publish(12)
    claims = world.claim(world.worker(), limit=12)
    assert [claim.id for claim in claims] == list(range(1, 13))
    world.settle(claims)
    told = world.store.attempts.tail(since=0)
    assert [event.message_id for event in told if event.what == "published"] == [message.id for message in messages]
    assert [event.delivery_id for event in told if event.what == "succeeded"] == list(range(1, 13))


def test_the_tail_shows_the_latest_acts_of_people(world: World) -> None:
    """The newest twelve by their number, not by its digits: the tenth comes after the ninth."""
    for number in range(12):
        world.store.queues.pause(f"q{number}", SOMEBODY, paused=True)
    acts = [event.destination for event in world.store.attempts.tail(since=0, limit=3)]
    assert acts == ["queue:q9", "queue:q10", "queue:q11"]


def test_the_tail_names_topic_and_destination_of_attempts_publishes_and_acts(world: World) -> None:
    """Also of a failed attempt whose delivery has succeeded since, and of an act on a delivery."""
    world.publish(topic="the.first", to=["mail", "billing"])
    worker = world.worker()
    world.settle(world.claim(worker, destinations=["mail"]), failed())
    world.settle(world.claim(worker, destinations=["mail"]))
    (left,) = world.deliveries()
    world.store.acts.cancel(Filter(ids=(left.id,)), SOMEBODY)
    told = {event.what: event for event in world.store.attempts.tail(since=0)}
    assert {what: (event.topic, event.destination) for what, event in told.items()} == {
        "published": ("the.first", "billing, mail"),
        "failed": ("the.first", "mail"),
        "succeeded": ("the.first", "mail"),
        "cancel": ("the.first", "billing"),
    }
    assert (told["cancel"].delivery_id, told["cancel"].message_id) == (left.id, left.message_id)
