"""How far the protocol with all its fixes is searched: each scope, how large it is at least, and what it must reach.

A search that finds nothing proves nothing if it went nowhere: the floor and the events guard against that.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.model.hole import FANNED_OUT, KEYED, OTHER_DIGEST, POISONED, SAME_KEY
from tests.model.scenario import Message, Scenario
from tests.model.state import Budget


@dataclass(frozen=True)
class Scope:
    """A scenario, the least number of states it must have, and the events that must occur in it."""

    scenario: Scenario
    floor: int
    reaches: tuple[str, ...]


ONE_DELIVERY = (
    Scope(
        Scenario("owners", KEYED, Budget(lapses=2), batch=1, renewal_in_flight=True),
        4_000,
        ("reclaim", "reclaim skips", "lost", "look: Done before", "renew finds nothing", "renewal commits"),
    ),
    Scope(
        Scenario("replies", KEYED, Budget(crashes=1, lapses=1, ambiguous=1), batch=1, renewal_in_flight=True),
        20_000,
        (
            "adrift claim commits",
            "claim finds no worker row",
            "claim's reply is lost",
            "compare",
            "crash",
            "resolved: it was committed",
            "resolved: it was not committed",
        ),
    ),
    Scope(
        Scenario("people", KEYED, Budget(lapses=1, failures=1, cancels=1, replays=1), batch=1),
        15_000,
        ("ask to cancel", "cancel", "obey cancel", "replay", "failed: Abort", "failed: Retry"),
    ),
    Scope(
        Scenario("leaving", KEYED, Budget(drains=1, lapses=1, ambiguous=1), batch=1),
        9_000,
        ("drain", "exit", "released", "claim adrift"),
    ),
    Scope(
        Scenario("time-outs", KEYED, Budget(timeouts=1, lapses=1, failures=1), batch=1),
        4_000,
        ("time out", "stray sent", "stray ends"),
    ),
    Scope(
        Scenario("transactional", (Message(transactional=True),), Budget(lapses=1, ambiguous=1), batch=1),
        1_000,
        ("lost", "resolved: it was not committed"),
    ),
    Scope(
        Scenario("reopened", KEYED, Budget(failures=1, reopens=2, replays=1, lapses=1), batch=1),
        5_000,
        ("duplicate published", "reopen", "nothing to reopen"),
    ),
    Scope(
        Scenario(
            "reserved by the claim", KEYED, Budget(crashes=1, lapses=1, failures=1), batch=1, reserves_at_claim=True
        ),
        8_000,
        ("look: Done before", "crash"),
    ),
)

TWO_DELIVERIES = (
    Scope(
        Scenario("a poison and its neighbour", POISONED, Budget(crashes=1)),
        8_000,
        ("poison kills", "crash", "reclaim"),
    ),
    Scope(
        Scenario("a fan-out", FANNED_OUT, Budget(lapses=1)),
        12_000,
        ("lost", "look: Done before"),
    ),
    Scope(
        Scenario("one key twice", SAME_KEY, Budget(lapses=1)),
        8_000,
        ("look: Done before", "look: release"),
    ),
    Scope(
        Scenario("one key, two contents", OTHER_DIGEST, Budget(lapses=1)),
        8_000,
        ("look: conflict", "look: release"),
    ),
    Scope(
        Scenario(
            "one key, two contents, reserved by the claim", OTHER_DIGEST, Budget(lapses=1), reserves_at_claim=True
        ),
        3_000,
        ("look: conflict",),
    ),
    Scope(
        Scenario(
            "a publish refused", (Message(key="k"), Message(key="k", digest="else")), Budget(unanswered=1, crashes=1)
        ),
        2_000,
        ("publish.refused", "publish.repeated", "publish.unanswered"),
    ),
)

SCOPES = ONE_DELIVERY + TWO_DELIVERIES

DEEP = (
    Scope(
        Scenario("owners and replies", KEYED, Budget(crashes=1, lapses=2, ambiguous=1), batch=1),
        100_000,
        ("reclaim", "compare", "lost"),
    ),
    Scope(
        Scenario("two replies", KEYED, Budget(lapses=1, ambiguous=2), batch=1, renewal_in_flight=True),
        10_000,
        ("compare", "lost"),
    ),
    Scope(
        Scenario("people and crashes", KEYED, Budget(crashes=1, lapses=1, failures=1, cancels=1, replays=1), batch=1),
        90_000,
        ("replay", "cancel", "crash"),
    ),
    Scope(
        Scenario("leaving and crashes", KEYED, Budget(drains=1, lapses=1, ambiguous=1, crashes=1), batch=1),
        60_000,
        ("exit", "crash"),
    ),
    Scope(
        Scenario("time-outs and replies", KEYED, Budget(timeouts=1, lapses=1, failures=1, ambiguous=1), batch=1),
        50_000,
        ("stray sent", "lost"),
    ),
    Scope(
        Scenario("a poison, replayed", POISONED, Budget(lapses=1, replays=1)),
        50_000,
        ("poison kills", "replay"),
    ),
    Scope(
        Scenario("a fan-out and replies", FANNED_OUT, Budget(lapses=1, ambiguous=1)),
        150_000,
        ("resolved: it was committed", "look: Done before"),
    ),
    Scope(
        Scenario("one key twice and failures", SAME_KEY, Budget(lapses=1, failures=1, replays=1)),
        50_000,
        ("look: release", "replay"),
    ),
    Scope(
        Scenario("one key, two contents, and failures", OTHER_DIGEST, Budget(lapses=1, failures=1, replays=1)),
        50_000,
        ("look: conflict", "look: release", "replay"),
    ),
)
