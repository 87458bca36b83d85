"""What Stripe will tell in the show, in the worst order, and how every payment must end. Pure: dice are given."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from payments_example.events import Status
from payments_example.show.stripe_side import intent_event, refund_event

BEGAN = 1_800_000_000


class Story(msgspec.Struct, frozen=True):
    """`posts`: events in the order they are posted, repetitions among them. `ends`: how each payment must end.

    `nobodys`: events that do not say whose payment it is; `whose`: what a person finds out about them.
    """

    posts: tuple[dict[str, Any], ...]
    ends: dict[str, Status]
    nobodys: frozenset[str]
    whose: dict[str, str]

    @property
    def ids(self) -> frozenset[str]:
        """All events, each once."""
        return frozenset(event["id"] for event in self.posts)


def told(payments: int, dice: random.Random) -> Story:
    """A story of so many payments: failed, paid, refunded; every tenth is nobody's."""
    posts: list[dict[str, Any]] = []
    ends: dict[str, Status] = {}
    nobodys: set[str] = set()
    whose: dict[str, str] = {}
    for n in range(payments):
        intent, participant = f"pi_{n}", f"participant-{n}"
        says = None if n % 10 == 9 else participant
        events = [intent_event(f"evt_{n}_paid", "payment_intent.succeeded", intent, at=BEGAN + 10, participant=says)]
        ends[intent] = "succeeded"
        if n % 3 == 0:
            failed = "payment_intent.payment_failed"
            events.append(intent_event(f"evt_{n}_failed", failed, intent, at=BEGAN, participant=says))
        if n % 4 == 0:
            events.append(refund_event(f"evt_{n}_refunded", intent, at=BEGAN + 10, participant=says))
            ends[intent] = "refunded"  # in the very second in which it was paid, as far as Stripe's clock can tell
        if says is None:
            nobodys.update(event["id"] for event in events)
            whose[intent] = participant
        posts += events
    repeated = dice.sample(posts, k=len(posts) // 3)
    posts += repeated
    dice.shuffle(posts)  # so half of all refunds come before the success they undo
    return Story(tuple(posts), ends, frozenset(nobodys), whose)
