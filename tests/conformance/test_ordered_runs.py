"""Runs that hold their lane while they wait: one run of a key after the other, and a woken one is claimed (R7, I10)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from tests.conformance.test_runs import beginning, calls, children, send, take, wait_parked
from tests.support.world import SOMEBODY, World, aborted, failed
from todoku.core.decision import park
from todoku.core.message import Claimed
from todoku.engine.diagnostics.explanation import explain
from todoku.store.deliveries import Filter

LANE = "select ready_at, failures, worker_id, parked from todoku_lane order by id"
FAR = park(float("inf"))


def start(world: World, number: int = 2, key: str = "a", **options: Any) -> None:
    world.publish(number, to=("fulfil",), ordered=True, key=key, **options)


def claim_all(world: World, *, lease: float = 600) -> list[Claimed]:
    return world.claim_lanes(world.worker(lease=lease))


def claim_head(world: World) -> Claimed:
    """Claims the lane, runs its head, and gives back the others, as a worker does whose run parks."""
    head, *rest = claim_all(world)
    world.store.claims.release(rest)
    return head


def heed(world: World) -> int:
    return world.store.runs.heed_calls()


def attempts(world: World) -> list[tuple[str, int]]:
    return [(row.status, row.attempts) for row in world.deliveries(destination="fulfil")]


def times(world: World) -> tuple[Any, Any]:
    """When the lane is due, and its head."""
    ((ready,),) = world.sql("select ready_at from todoku_lane")
    ((due,),) = world.sql("select next_run_at from todoku_delivery where status <> 'aborted' order by id limit 1")
    return ready, due


def assert_sound(world: World) -> None:
    assert world.store.broken(history_ttl=1e9, ledger_ttl=1e9) == {}


# ------------------------------------------------------------------------------------------- the head parks


@pytest.mark.parametrize("order", ["the head first", "the followers first"])
def test_a_parked_head_holds_its_lane_and_its_followers_keep_their_attempts(world: World, order: str) -> None:
    """R7: the worker gives back what it has claimed behind the head, before or after it settles that."""
    start(world, 3)
    head, *rest = claim_all(world)
    assert len(rest) == 2
    if order == "the followers first":
        world.store.claims.release(rest)
    world.settle([head], FAR)
    if order == "the head first":
        world.store.claims.release(rest)
    assert attempts(world) == [("pending", 0)] * 3
    ((_, failures, owner, parked),) = world.sql(LANE)
    assert (failures, owner, bool(parked)) == (0, None, False)
    ready, due = times(world)
    assert ready == due
    assert claim_all(world) == []
    assert_sound(world)


def test_a_head_that_sleeps_holds_its_lane_until_its_time_and_is_then_the_first(world: World) -> None:
    """R7"""
    start(world)
    head = claim_head(world)
    world.settle([head], park(60))
    world.advance(59)
    assert claim_all(world) == []
    world.advance(2)
    claims = claim_all(world)
    assert [claim.id for claim in claims] == [row.id for row in world.deliveries()]
    world.settle(claims[:1])
    world.settle(claims[1:])
    assert world.sql(LANE) == []
    assert_sound(world)


def test_another_key_is_not_held_up(world: World) -> None:
    """R7"""
    start(world, key="a")
    world.settle([claim_head(world)], FAR)
    start(world, key="b")
    start(world, key="a")
    others = claim_all(world)
    assert {claim.key for claim in others} == {"b"}
    assert len(others) == 2


# ------------------------------------------------------------------------------------------- what wakes it


def test_a_signal_makes_the_lane_of_a_parked_head_ready(world: World) -> None:
    """R7, R2: otherwise no claim would look at the lane before the run's own time, which is the end of all times."""
    start(world)
    head = claim_head(world)
    wait_parked(world, head)
    send(world, head)
    assert claim_all(world) == []
    assert heed(world) == 1
    ready, due = times(world)
    assert ready == due
    woken, *rest = claim_all(world)
    assert (woken.id, woken.attempt, len(rest)) == (head.id, 1, 1)
    assert take(world, woken).state == "done"
    assert_sound(world)


def test_a_head_that_is_woken_before_its_followers_were_given_back_is_claimed(world: World) -> None:
    """R7: the lane still belongs to the worker; what it gives back leaves the lane ready."""
    start(world)
    head, follower = claim_all(world)
    wait_parked(world, head)
    send(world, head)
    assert heed(world) == 1
    assert claim_all(world) == []
    world.store.claims.release([follower])
    assert [claim.id for claim in claim_all(world)] == [head.id, follower.id]
    assert_sound(world)


def test_the_end_of_its_children_which_are_in_no_lane_of_its_wakes_the_head(world: World) -> None:
    """R7, R11"""
    start(world)
    head = claim_head(world)
    world.store.runs.publish(head, *children(world))
    world.settle([head], FAR)
    picked = world.claim(world.worker(), destinations=["pick"])
    assert [claim.lane for claim in picked] == [None, None]
    world.settle(picked)
    assert heed(world) == 1
    assert next(claim.id for claim in claim_all(world)) == head.id


def test_a_signal_to_a_follower_does_not_let_it_overtake(world: World) -> None:
    """R7: it is there when the run begins."""
    start(world)
    head, follower = claim_all(world)
    world.store.claims.release([follower])
    wait_parked(world, head)
    send(world, follower)
    assert heed(world) == 0
    assert calls(world) == []
    assert claim_all(world) == []
    world.store.acts.cancel(Filter(ids=(head.id,)), SOMEBODY)
    (claim,) = claim_all(world)
    assert (claim.id, take(world, claim).state) == (follower.id, "done")


def test_a_woken_run_behind_a_dead_letter_that_parks_the_lane_leaves_it_parked(world: World) -> None:
    """R7: the first run was cancelled and replayed while the second waited, and became a dead letter."""
    start(world)
    first, second = claim_all(world)
    world.store.claims.release([second])
    world.settle([first], aborted("CANCELLED"))
    (second,) = claim_all(world)
    wait_parked(world, second)
    world.store.acts.replay(Filter(ids=(first.id,)), SOMEBODY)
    (again,) = claim_all(world)
    assert again.id == first.id
    world.settle([again], aborted())
    send(world, second)
    assert heed(world) == 1
    assert claim_all(world) == []
    assert bool(world.sql(LANE)[0][3])
    assert_sound(world)


@pytest.mark.parametrize("backend", ["postgres"], indirect=True)  # SQLite has one writer at a time
def test_a_claim_that_meets_a_head_that_is_being_woken_leaves_the_lane_ready(world: World) -> None:
    """R7: it finds the head locked and gives the lane back with the old time; the waking comes after it, and looks."""
    start(world)
    head = claim_head(world)
    wait_parked(world, head)
    send(world, head)
    claiming = world.connect()
    claiming.execute("select 1 from todoku_lane for update")
    with beginning(lambda: heed(world)) as woken:
        world.until_blocked()
        claiming.execute("update todoku_lane set ready_at = (select max(next_run_at) from todoku_delivery)")
        claiming.commit()
        claiming.close()
        assert woken.result() == 1
    assert next(claim.id for claim in claim_all(world)) == head.id
    assert_sound(world)


# --------------------------------------------------------------------------------------------- what ends it


@pytest.mark.parametrize("act", ["cancel", "succeed", "expire", "abort"])
def test_a_parked_head_that_a_person_or_its_time_ends_lets_the_next_run_go(world: World, act: str) -> None:
    """R7: none of these is a failure of the run, so none parks the lane."""
    start(world, 1, expires=60)
    start(world, 1)
    head = claim_head(world)
    wait_parked(world, head)
    which = Filter(ids=(head.id,))
    match act:
        case "cancel":
            world.store.acts.cancel(which, SOMEBODY)
        case "succeed":
            world.store.acts.settle_by_hand(which, SOMEBODY, succeeded=True)
        case "abort":
            world.store.acts.settle_by_hand(which, SOMEBODY, succeeded=False)
        case _:
            world.advance(61)
            assert world.store.retention.expire(unknown_after=1e9) == (1, 0)
    (follower,) = claim_all(world)
    assert follower.id > head.id
    assert_sound(world)


@pytest.mark.parametrize("backend", ["postgres"], indirect=True)  # SQLite has one writer at a time
def test_a_head_that_is_cancelled_while_the_next_run_is_woken_leaves_the_lane_ready(world: World) -> None:
    """R7: each alone sees the other's run as it was before: the cancel looks at the lane once it has locked it."""
    start(world)
    head, follower = claim_all(world)
    world.settle([head, follower], FAR)
    waking = world.connect()
    waking.execute("select 1 from todoku_lane for update")
    waking.execute("update todoku_delivery set next_run_at = todoku_now() where id = %s", (follower.id,))
    with beginning(lambda: world.store.acts.cancel(Filter(ids=(head.id,)), SOMEBODY)) as cancelling:
        world.until_blocked()
        waking.commit()
        waking.close()
        assert cancelling.result().changed == (head.id,)
    assert [claim.id for claim in claim_all(world)] == [follower.id]
    assert_sound(world)


def test_a_run_that_is_cancelled_while_it_parks_lets_the_next_run_go(world: World) -> None:
    """R7"""
    start(world)
    head, follower = claim_all(world)
    world.store.acts.cancel(Filter(ids=(head.id,)), SOMEBODY)
    world.settle([head], FAR)
    world.store.claims.release([follower])
    (claim,) = claim_all(world)
    assert claim.id == follower.id


@pytest.mark.parametrize("skip", [False, True])
def test_a_dead_letter_parks_the_lane_unless_it_is_to_be_skipped(world: World, skip: bool) -> None:
    """R7: as of any ordered job. Replayed, it is the first again and holds the lane while it waits."""
    world.store.destinations.announce(["fulfil"])
    world.store.destinations.set_on_abort("fulfil", skip=skip)
    start(world)
    head = claim_head(world)
    wait_parked(world, head)
    send(world, head)
    assert heed(world) == 1
    head = claim_head(world)
    world.settle([head], aborted())
    assert bool(claim_all(world)) == skip
    if not skip:
        world.store.acts.replay(Filter(ids=(head.id,)), SOMEBODY)
        head = claim_head(world)
        world.settle([head], FAR)
        assert claim_all(world) == []
    assert_sound(world)


def test_a_run_that_is_rewound_is_the_first_of_its_lane_again(world: World) -> None:
    """R7, R12"""
    start(world)
    head = claim_head(world)
    wait_parked(world, head)
    send(world, head)
    heed(world)
    head = claim_head(world)
    assert take(world, head).state == "done"
    world.settle([head], aborted())
    assert claim_all(world) == []
    world.store.run_acts.rewind(UUID(head.message_id), list, SOMEBODY, to="wait")
    head = claim_head(world)
    assert take(world, head).state == "done"  # the signal is there again
    world.settle([head], FAR)
    assert claim_all(world) == []
    assert_sound(world)


def test_a_worker_that_dies_with_the_lane_leaves_its_order(world: World) -> None:
    """R7: the followers were never started, so they are no suspects for longer than their head is."""
    start(world)
    head, _ = claim_all(world, lease=10)
    world.advance(11)
    world.store.leases.reclaim()
    (again,) = claim_all(world)
    assert again.id == head.id
    world.settle([again], FAR)
    assert claim_all(world) == []
    assert_sound(world)


def test_a_head_that_fails_waits_for_its_next_attempt_with_its_lane(world: World) -> None:
    start(world)
    head = claim_head(world)
    world.settle([head], failed(delay=60))
    assert claim_all(world) == []
    assert world.sql(LANE)[0][1] == 1


# ------------------------------------------------------------------------------------------------ explain


def test_explain_names_what_the_head_waits_for_and_the_head_to_its_followers(world: World) -> None:
    """R7"""
    world.store.destinations.announce(["fulfil"])
    start(world)
    head = claim_head(world)
    wait_parked(world, head)
    follower = world.deliveries()[1].id
    (waits,) = explains(world, head.id)
    assert (waits.cause, waits.text) == ("waiting_for_signal", "it is waiting for the signal approval")
    (behind,) = explains(world, follower)
    assert behind.text == f"delivery {head.id} is before it in its lane (pending)"
    assert behind.hint == f"todoku explain {head.id}"


def explains(world: World, delivery: int) -> tuple[Any, ...]:
    situation = world.store.situation(delivery)
    assert situation is not None
    return explain(situation)
