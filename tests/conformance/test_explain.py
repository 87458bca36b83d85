"""`explain`: why has this not run? Each cause by its name, from the tables of a real database."""

from __future__ import annotations

import pytest

from tests.support.world import SOMEBODY, World, aborted, failed
from todoku.core.limit import Limit
from todoku.engine.diagnostics.explanation import Because, Sentence, explain
from todoku.store.deliveries import Filter

HOUR = 3600.0


def causes(world: World, delivery: int) -> dict[str, Because]:
    """Every cause, by its name, in order."""
    situation = world.store.situation(delivery)
    assert situation is not None
    return {because.cause: because for because in explain(situation)}


def one(world: World) -> int:
    """The only delivery there is."""
    (delivery,) = world.deliveries()
    return delivery.id


@pytest.fixture
def ready(world: World) -> World:
    """A worker is alive and has registered the destinations."""
    world.worker(lease=10 * HOUR)
    world.store.destinations.announce(["warehouse", "bank"])
    return world


def test_nothing_keeps_it_back(ready: World) -> None:
    ready.publish()
    assert list(causes(ready, one(ready))) == ["ready"]


def test_it_is_due_later(ready: World) -> None:
    ready.publish(delay=40)
    assert causes(ready, one(ready))["later"].text in ("it is due in 40 s", "it is due in 39 s")


def test_it_waits_for_its_back_off(ready: World) -> None:
    ready.publish()
    ready.settle(ready.claim(ready.worker(lease=HOUR)), failed("BROKER_TIMEOUT", delay=300))
    assert causes(ready, one(ready))["later"].text == "attempt 2 of 6 is due in 5 min after BROKER_TIMEOUT"
    assert "max_attempts of its publisher" in causes(ready, one(ready))["later"].hint


def test_its_queue_is_paused(ready: World) -> None:
    ready.publish(queue="mail")
    ready.store.queues.pause("mail", SOMEBODY, paused=True)
    (because,) = causes(ready, one(ready)).values()
    assert (because.cause, because.text, because.hint) == ("paused", "the queue mail is paused", "todoku resume mail")
    assert because.parts == (Sentence("the queue {name} is paused", {"name": "mail"}),)
    assert because.advice == (Sentence("todoku resume {name}", {"name": "mail"}),)


def test_the_breaker_of_its_destination_is_open(ready: World) -> None:
    ready.publish()
    ready.store.limits.set_breaker("warehouse", open_for=60, failures=5)
    text = causes(ready, one(ready))["breaker_open"].text
    assert text.startswith("the breaker of warehouse is open until 20")
    assert text.endswith("more, after 5 failures")
    ready.advance(61)
    ready.store.destinations.announce(["warehouse"])
    assert "breaker_open" not in causes(ready, one(ready))


@pytest.mark.parametrize("of", ["queue", "destination"])
def test_a_limit_is_reached(ready: World, of: str) -> None:
    ready.publish(3)
    first, second, last = (row.id for row in ready.deliveries())
    ready.store.limits.set("warehouse", SOMEBODY, of=of, concurrency=2, rate=0.5)  # type: ignore[arg-type]
    assert list(causes(ready, last)) == ["rate"]
    ready.claim(ready.worker(lease=HOUR), limit=2)
    found = causes(ready, last)
    assert list(found) == ["limit_reached", "rate"]
    assert found["limit_reached"].text == f"the {of} warehouse is at its limit: 2 of 2 at once"
    assert found["rate"].text == f"the {of} warehouse may start 0.5 a second"
    assert {first, second, last} == {row.id for row in ready.deliveries()}


def test_its_key_is_at_its_limit(ready: World) -> None:
    ready.publish(3, key="acme", per_key=Limit(concurrency=2))
    *_, last = (row.id for row in ready.deliveries())
    assert list(causes(ready, last)) == ["ready"]
    ready.claim_gates(ready.worker(lease=HOUR), Limit(concurrency=2))
    because = causes(ready, last)["key_limit_reached"]
    assert because.text == "key acme is at its limit of 2: 2 of it run now"


def test_the_rate_of_its_key_is_used_up(ready: World) -> None:
    ready.publish(2, key="acme", per_key=Limit(rate=0.01))
    *_, last = (row.id for row in ready.deliveries())
    ready.claim_gates(ready.worker(lease=HOUR), Limit(rate=0.01))
    assert causes(ready, last)["key_rate"].text.startswith("key acme may start 0.01 a second, the next in ")


def test_the_head_of_its_lane_fails(ready: World) -> None:
    """I10: a failing head blocks its lane."""
    ready.publish(3, key="k", ordered=True, to=["bank"])
    head, follower, _ = (row.id for row in ready.deliveries())
    assert causes(ready, follower)["lane_behind"].text == f"delivery {head} is before it in its lane (pending)"
    ready.settle(ready.claim_lanes(ready.worker(lease=HOUR), limit=1), failed("REFUSED", delay=60))
    because = causes(ready, follower)["lane_head_failing"]
    assert because.text.startswith(f"delivery {head} is first in its lane and fails (REFUSED), due in ")
    assert because.hint == f"todoku explain {head}"
    assert list(causes(ready, head)) == ["later"]


def test_a_dead_letter_parks_its_lane(ready: World) -> None:
    ready.publish(2, key="k", ordered=True, to=["bank"])
    head, follower = (row.id for row in ready.deliveries())
    ready.settle(ready.claim_lanes(ready.worker(lease=HOUR), limit=1), aborted("REFUSED"))
    because = causes(ready, follower)["lane_parked"]
    assert because.text == f"its lane is parked by the dead letter {head} (REFUSED)"
    told = f"todoku replay {head} sends it first, todoku clear {head} removes it; then its key goes on"
    assert because.hint == told
    dead = causes(ready, head)["aborted"]
    assert (dead.text.endswith("; later deliveries of its key wait for it"), dead.hint) == (True, told)
    ready.store.acts.replay(Filter(ids=(head,)), SOMEBODY)
    assert "lane_parked" not in causes(ready, follower)


def test_a_dead_letter_that_nothing_waits_for_says_no_more_than_that(ready: World) -> None:
    ready.publish(1, key="k", ordered=True, to=["bank"])
    head = one(ready)
    ready.settle(ready.claim_lanes(ready.worker(lease=HOUR)), aborted("REFUSED"))
    assert causes(ready, head)["aborted"].hint == f"todoku replay {head}"


def test_no_worker_is_alive(world: World) -> None:
    world.publish()
    world.worker(lease=5)
    world.advance(6)
    assert causes(world, one(world))["no_worker"].hint == "start one: todoku run --app module:box"


def test_nobody_has_registered_its_destination(world: World) -> None:
    world.publish()
    world.worker(lease=10 * HOUR)
    assert "no worker has ever registered" in causes(world, one(world))["unregistered"].text
    world.store.destinations.announce(["warehouse"])
    assert list(causes(world, one(world))) == ["ready"]
    world.advance(600)
    assert causes(world, one(world))["unregistered"].text.endswith("the last one did 10 min ago")


def test_every_worker_is_draining(world: World) -> None:
    world.publish()
    world.store.destinations.announce(["warehouse"])
    world.store.leases.set_state(world.worker(), "draining")
    assert list(causes(world, one(world))) == ["draining"]
    world.worker()
    assert list(causes(world, one(world))) == ["ready"]


def test_a_worker_executes_it(ready: World) -> None:
    ready.publish()
    worker = ready.worker(lease=HOUR, name="host:7")
    (claim,) = ready.claim(worker)
    ready.advance(30)
    assert causes(ready, claim.id)["sending"].text in (
        f"host:7 ({worker}) has held it for 30 s", f"host:7 ({worker}) has held it for 31 s",
    )  # fmt: skip
    ready.store.acts.cancel(Filter(ids=(claim.id,)), SOMEBODY)
    assert list(causes(ready, claim.id)) == ["sending", "cancel_requested"]
    ready.advance(2 * HOUR)
    assert next(iter(causes(ready, claim.id))) == "lease_ended"
    ready.sql(f"delete from todoku_worker where id = '{worker}'")
    assert next(iter(causes(ready, claim.id))) == "orphan"


def test_it_is_a_suspect(ready: World) -> None:
    """H6: a row whose owner died runs alone."""
    ready.publish()
    ready.claim(ready.worker(lease=5))
    ready.advance(6)
    ready.store.leases.reclaim()
    assert causes(ready, one(ready))["suspect"].text.startswith("its worker died once: it runs alone")


def test_it_expired(ready: World) -> None:
    ready.publish(expires=5)
    ready.advance(10)
    assert causes(ready, one(ready))["expired"].text.endswith("and will be a dead letter (EXPIRED)")


def test_it_is_a_dead_letter(ready: World) -> None:
    ready.publish()
    (claim,) = ready.claim(ready.worker(lease=HOUR))
    ready.settle([claim], aborted("REFUSED"))
    assert list(causes(ready, claim.id)) == ["aborted"]
    assert causes(ready, claim.id)["aborted"].text.endswith(": REFUSED (REFUSED in a test), after 1 of 6 attempts")


def test_what_is_not_there_has_no_situation(ready: World) -> None:
    ready.publish()
    (claim,) = ready.claim(ready.worker(lease=HOUR))
    ready.settle([claim])
    assert ready.store.situation(claim.id) is None
    assert ready.store.situation(999) is None
