"""Claims by list on PostgreSQL: a listed delivery has one owner, and fares like any other delivery."""

from __future__ import annotations

import asyncio
import threading
import time
from uuid import UUID

import psycopg
import pytest

from tests.postgres.listed import CHANGING, EVERYTHING, lists, register_old_worker, states
from tests.support.crew import Crew, until
from tests.support.world import SOMEBODY, World
from todoku.core.decision import SUCCEEDED, Settlement
from todoku.core.message import Claimed
from todoku.core.status import Status
from todoku.engine.claim import FEWEST, ClaimCursor
from todoku.engine.context import Context
from todoku.store.claim_lists import Listing
from todoku.store.database import Slice
from todoku.store.failpoint import armed, lose

pytestmark = pytest.mark.postgres

PLACE = Slice("warehouse", "warehouse", 0)
RETRY = Settlement(status=Status.FAILED, delay=0.0, reason="RETRY", error="no")


def claim_list(world: World, worker: UUID | None = None, *, limit: int = 100, fewest: int = 1) -> list[Claimed]:
    return world.store.claims.take(
        worker or world.worker(), [PLACE], limit=limit, listing=Listing(("warehouse",), fewest)
    )


def test_a_claim_by_list_leaves_its_deliveries_alone_and_its_success_is_in_the_history(world: World) -> None:
    world.publish(3)
    claims = claim_list(world)
    assert [(claim.epoch, claim.attempt) for claim in claims] == [(0, 1)] * 3
    assert len({claim.claim_list for claim in claims}) == 1
    assert states(world) == [("pending", 0, 0, 0)] * 3

    assert world.settle(claims).lost == ()
    assert [(row.status, row.attempts) for row in world.history()] == [("succeeded", 1)] * 3
    assert world.deliveries() == []


@pytest.mark.parametrize("fewest", [1, 1000], ids=["by list", "by row"])
def test_I3_what_is_listed_is_claimed_by_nobody_else(world: World, fewest: int) -> None:
    world.publish(10)
    first = claim_list(world, limit=4)
    second = claim_list(world, limit=100, fewest=fewest)
    assert len(first) == 4
    assert len(second) == 6
    assert not {claim.id for claim in first} & {claim.id for claim in second}


def test_I3_a_claim_sees_what_was_listed_after_its_snapshot(world: World) -> None:
    """A lock makes nobody look again at a row that has not changed: the function has a snapshot of its own."""
    world.publish(1)
    (delivery,) = world.deliveries()
    seen: list[tuple[int, list[int]]] = []
    with psycopg.connect(world.url) as gate, psycopg.connect(world.url) as late:
        gate.execute("select pg_advisory_lock(7)")
        statement = (
            "with waits as materialized (select pg_advisory_xact_lock(7)::text as done)"
            " select (select count(*) from todoku_claim_list), todoku_listed(array[%s + length(done)]::bigint[])"
            " from waits"
        )
        thread = threading.Thread(target=lambda: seen.extend(late.execute(statement, (delivery.id,)).fetchall()))
        thread.start()
        world.until_blocked()  # its snapshot is taken
        claim_list(world)
        gate.commit()
        gate.execute("select pg_advisory_unlock(7)")
        thread.join()
    assert seen == [(0, [delivery.id])]


def test_a_claim_from_a_position_begins_behind_lists_and_a_scan_finds_what_was_left(world: World) -> None:
    world.publish(6)
    ids = [row.id for row in world.deliveries()]
    with psycopg.connect(world.url) as other:
        other.execute("select from todoku_delivery where id = %s for update", (ids[1],))
        listed = claim_list(world, limit=4)
    assert [claim.id for claim in listed] == [ids[0], *ids[2:5]]

    behind = Slice("warehouse", "warehouse", 0, listed[0].next_run_at, listed[0].id)
    worker, listing = world.worker(), Listing(("warehouse",), 1)
    from_position = world.store.claims.take(worker, [behind], limit=100, listing=listing)
    assert [claim.id for claim in from_position] == [ids[5]]
    assert [claim.id for claim in claim_list(world, worker)] == [ids[1]]


def test_a_list_whose_last_delivery_waits_again_holds_no_claim_back(world: World) -> None:
    world.publish(4)
    listed = claim_list(world, limit=3)
    later = Settlement(status=Status.FAILED, delay=60.0, reason="RETRY", error="no")
    world.settle(listed[2:], later)
    behind = Slice("warehouse", "warehouse", 0, listed[0].next_run_at, listed[0].id)
    found = world.store.claims.take(world.worker(), [behind], limit=100, listing=Listing(("warehouse",), 1))
    assert len(found) == 1
    assert found[0].id not in {claim.id for claim in listed}


def test_I3_two_workers_that_list_at_once_share_nothing(world: World) -> None:
    """Many claims of a few rows by threads, by list and by row, until nothing is left: each delivery once."""
    world.publish(2000)
    taken: list[int] = []
    lock = threading.Lock()

    def work(fewest: int) -> None:
        store = world.another_store()
        worker = world.worker()
        while claims := store.claims.take(worker, [PLACE], limit=7, listing=Listing(("warehouse",), fewest)):
            with lock:
                taken.extend(claim.id for claim in claims)

    threads = [threading.Thread(target=work, args=(fewest,)) for fewest in (1, 1, 1, 1000, 1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    while more := claim_list(world):  # what everybody had locked at the same moment
        taken.extend(claim.id for claim in more)
    assert len(taken) == 2000
    assert len(set(taken)) == 2000


def test_a_retry_of_a_listed_delivery_is_a_failed_attempt_like_any_other(world: World) -> None:
    world.publish(2)
    done, failed = claim_list(world)
    assert world.store.claims.settle([(done, SUCCEEDED), (failed, RETRY)]).lost == ()
    assert states(world) == [("failed", 1, 0, 1)]
    (again,) = claim_list(world)
    assert (again.id, again.epoch, again.attempt, again.claim_list) == (failed.id, 2, 2, None)


def test_I4_what_is_released_has_another_epoch_and_its_old_token_is_lost(world: World) -> None:
    world.publish(1)
    worker = world.worker()
    (claim,) = claim_list(world, worker)
    assert world.store.claims.release([claim]) == ()
    assert states(world) == [("pending", 0, 0, 1)]
    assert world.settle([claim]).lost == (claim,)
    (again,) = claim_list(world, worker)
    assert again.epoch == 2


def test_H22_cancelling_a_listed_delivery_asks_its_worker_and_a_success_that_came_first_wins(world: World) -> None:
    world.publish(2)
    worker = world.worker()
    one, other = claim_list(world, worker)
    assert world.store.acts.cancel(EVERYTHING, SOMEBODY).changed == (one.id, other.id)
    assert {(held.id, held.epoch, held.cancel_requested) for held in world.store.leases.owned(worker)} == {
        (one.id, 0, True), (other.id, 0, True)
    }  # fmt: skip
    assert world.settle([one]).lost == ()
    assert world.settle([other], RETRY).lost == ()
    assert [(row.id, row.status, row.reason) for row in world.deliveries()] == [(other.id, "aborted", "CANCELLED")]


@pytest.mark.parametrize("succeeded", [True, False])
def test_a_listed_delivery_runs_so_nobody_settles_it_by_hand(world: World, *, succeeded: bool) -> None:
    world.publish(1)
    (claim,) = claim_list(world)
    acted = world.store.acts.settle_by_hand(EVERYTHING, SOMEBODY, succeeded=succeeded)
    assert (acted.changed, acted.skipped) == ((), {"is sending": 1})
    assert world.settle([claim]).lost == ()


def test_I1_what_a_dead_worker_had_listed_is_freed_counted_as_lost_and_its_zombie_is_fenced(world: World) -> None:
    world.publish(2)
    claims = claim_list(world, world.worker(lease=10))
    world.advance(11)
    assert world.store.leases.reclaim().freed == 2
    assert lists(world) == 0
    assert states(world) == [("pending", 0, 1, 1)] * 2
    assert world.settle(claims).lost == tuple(claims)
    assert len(world.deliveries()) == 2


def test_I11_the_last_act_of_a_worker_frees_what_it_has_listed_without_a_loss(world: World) -> None:
    world.publish(2)
    worker = world.worker()
    claim_list(world, worker)
    assert world.store.leases.end(worker, lost=False).freed == 2
    assert states(world) == [("pending", 0, 0, 1)] * 2
    assert lists(world) == 0


def test_a_list_that_is_a_second_old_is_written_out_and_its_tokens_stay_good(world: World) -> None:
    world.publish(3)
    worker = world.worker()
    claims = claim_list(world, worker)
    assert world.store.leases.owned(worker) == []
    world.advance(2)
    owned = sorted((held.id, held.epoch) for held in world.store.leases.owned(worker))
    assert owned == [(one.id, 0) for one in claims]
    assert states(world) == [("sending", 1, 0, 0)] * 3
    assert lists(world) == 0
    assert world.store.claims.settle([(claims[0], SUCCEEDED), (claims[1], RETRY), (claims[2], SUCCEEDED)]).lost == ()
    assert states(world) == [("failed", 1, 0, 1)]


def test_a_list_of_which_all_has_ended_is_removed_by_the_next_settle(world: World) -> None:
    world.publish(4)
    worker = world.worker()
    first, second = claim_list(world, worker, limit=2), claim_list(world, worker, limit=2)
    world.settle(first)
    world.settle(second[:1])
    assert lists(world) == 1
    world.settle(second[1:])
    world.publish(1)
    world.settle(claim_list(world, worker))
    assert lists(world) == 1


def test_I5_a_key_is_in_the_ledger_before_a_listed_delivery_is_over(world: World) -> None:
    world.publish(1, idempotency_key="k")
    claims = claim_list(world)
    assert world.settle(claims).lost == ()
    assert [state for (state,) in world.sql("select state from todoku_ledger where scope like 'effect:%'")] == [
        "succeeded"
    ]


def test_a_worker_that_knows_no_lists_keeps_everybody_from_making_them(world: World) -> None:
    world.publish(2)
    register_old_worker(world)
    assert [(claim.epoch, claim.claim_list) for claim in claim_list(world)] == [(1, None)] * 2


def test_what_expires_or_was_tried_before_is_claimed_by_its_row_in_the_same_order(world: World) -> None:
    world.publish(1)
    (tried,) = claim_list(world)
    world.settle([tried], RETRY)
    world.publish(1, expires=3600)
    world.publish(1)
    claims = claim_list(world)
    assert [(claim.epoch, claim.claim_list is None) for claim in claims] == [(2, True), (1, True), (0, False)]


def test_a_claim_by_list_says_what_a_claim_by_row_says(world: World) -> None:
    """Though the database does not send what is known of a listed delivery."""
    world.publish(2, headers={"a": "b"}, key="k")
    world.sql("update todoku_delivery set timeout = 1.5 returning id")
    world.publish(1, idempotency_key="done", max_attempts=3)
    world.publish(1, priority=3)
    world.publish(1, queue="other")
    world.publish(1, payload=lambda _: b"bytes")
    (keyed,) = world.sql("select key_hash, digest from todoku_message where key_hash is not null")
    world.sql("insert into todoku_ledger (scope, key_hash, digest, state, created_at, updated_at, expires_at)"
              " values ('effect:warehouse', ?, ?, 'succeeded', now(), now(), now() + interval '1 day') returning scope",
              *keyed)  # fmt: skip
    places = [Slice(queue, "warehouse", priority) for queue, priority in (("warehouse", 3), ("other", 0), ("none", 0))]
    told = []
    for fewest in (1, 1000):
        store = world.another_store()
        claims = store.claims.take(world.worker(), [*places, PLACE], limit=100, listing=Listing(("warehouse",), fewest))
        assert {claim.claim_list is None for claim in claims} == {fewest == 1000}
        told.append(
            [
                {name: getattr(claim, name) for name in Claimed.__struct_fields__ if name not in CHANGING}
                for claim in claims
            ]
        )
        world.sql("delete from todoku_claim_list returning id")
    assert told[0] == told[1]
    assert [claim["priority"] for claim in told[0]] == [3, 0, 0, 0, 0, 0]
    assert [claim["queue"] for claim in told[0]].count("other") == 1
    assert [claim["effect_state"] for claim in told[0]].count("succeeded") == 1


def test_a_claim_by_list_whose_reply_was_lost_is_found_and_released(world: World) -> None:
    """H3: nothing of it is known to the worker; its heartbeat asks the database."""
    world.publish(2)
    worker = world.worker()
    claim_list(world, worker)
    world.advance(2)
    owned = world.store.leases.owned(worker)
    assert world.store.claims.release(owned) == ()
    assert len(claim_list(world)) == 2


def test_an_idle_worker_releases_a_claim_by_list_whose_reply_was_lost_before_it_renews(world: World) -> None:
    """H3: it compares at once, so the list is younger than those that are written out otherwise."""
    crew, lost = Crew(world), threading.Event()

    async def end_when_a_list_is_lost(_ctx: Context) -> None:
        await asyncio.to_thread(lost.wait, 60)

    def lose_the_first_list() -> None:
        if not lost.is_set() and lists(world):
            lost.set()
            lose()

    crew.handles("warehouse", end_when_a_list_is_lost)
    world.publish(2 * FEWEST)  # half of them are claimed by row: a backlog, so the others are claimed by list
    slots = {"batch": FEWEST, "concurrency": 2 * FEWEST}
    with armed("claim.after_commit", lose_the_first_list), crew.running(lease_sec=3600.0, **slots):
        until(lambda: len(world.history()) == 2 * FEWEST, what="everything")
    assert lost.is_set()
    assert {row.attempts for row in world.history()} == {1}


@pytest.mark.parametrize("ordered", [False, True], ids=["plain", "in lanes"])
def test_a_worker_claims_by_list_only_after_a_claim_that_found_a_backlog(world: World, *, ordered: bool) -> None:
    """A list is worth its row for many deliveries; for a lone one the statement without lists is cheaper."""
    cursor = ClaimCursor(world.store, world.worker(), ("warehouse",), monotonic=time.monotonic, listable=("warehouse",))

    def publish(number: int) -> None:
        world.publish(number, ordered=ordered, key="k" if ordered else None)

    def claim(limit: int = FEWEST) -> tuple[int, bool]:
        """How many were claimed, and whether by list. All succeed, so that a lane is free for the next claim."""
        claims = cursor.claim_lanes(lanes=1, limit=limit) if ordered else cursor.claim(limit)
        world.settle(claims)
        return len(claims), any(one.claim_list is not None for one in claims)

    publish(3 * FEWEST)
    assert [claim(), claim(), claim(FEWEST - 1)] == [(FEWEST, False), (FEWEST, True), (FEWEST - 1, False)]
    assert claim() == (1, False), "fewer than are worth a list"
    publish(FEWEST)
    assert claim() == (FEWEST, True), "one short claim is no end of a backlog"
    for _ in range(2):
        publish(1)
        assert claim() == (1, False)
    publish(2 * FEWEST)
    assert [claim(), claim()] == [(FEWEST, False), (FEWEST, True)], "the two claims before these found no backlog"


def test_a_claim_by_list_that_finds_all_rows_taken_by_another_worker_looks_again_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers may choose the same rows; the one that comes too late must not fall back to a claim by row."""
    cursor = ClaimCursor(world.store, world.worker(), ("warehouse",), monotonic=time.monotonic, listable=("warehouse",))
    world.publish(2 * FEWEST)
    cursor.claim(FEWEST)
    claims, tries = world.store.claims, list[tuple[bool, int]]()
    with psycopg.connect(world.url) as other:
        other.execute("select from todoku_delivery for update")
        take = claims.take

        def noted(*places: object, listing: Listing | None = None, **rest: object) -> list[Claimed]:
            found = take(*places, listing=listing, **rest)  # type: ignore[arg-type]
            tries.append((listing is not None, len(found)))
            other.rollback()
            return found

        monkeypatch.setattr(claims, "take", noted)
        assert len(cursor.claim(FEWEST)) == FEWEST
    assert tries == [(True, 0), (True, FEWEST)]
