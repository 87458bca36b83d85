"""The lease: who owns what, for how long, and what becomes of it when the owner is gone (H1–H7, H10, H13)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import TypeVar
from uuid import UUID, uuid4

import pytest

from tests.support.world import SOMEBODY, World, failed
from todoku.core.decision import SUCCEEDED, decide_by_ledger
from todoku.core.errors import DatabaseUnavailable
from todoku.store.deliveries import Filter
from todoku.store.failpoint import armed, lose
from todoku.store.leases import Reclaimed

T = TypeVar("T")
NOTHING = Reclaimed(workers=0, freed=0, aborted=0)
PATIENCE = 20.0


@pytest.fixture
def pg(postgres_url: str) -> Iterator[World]:
    """PostgreSQL, where two transactions are open at once, and wait for each other longer than any test takes."""
    world = World("postgres", postgres_url, lock_timeout_sec=PATIENCE)
    yield world
    world.close()


@pytest.fixture
def meanwhile() -> Iterator[ThreadPoolExecutor]:
    """Threads for what happens at the same time."""
    with ThreadPoolExecutor(4) as threads:
        yield threads


@contextmanager
def uncommitted(
    threads: ThreadPoolExecutor, operation: str, call: Callable[[], T], *, then: Callable[[], None] | None = None
) -> Iterator[tuple[Future[T], Event]]:
    """`call` under way in its transaction, all done but the commit, which waits for the event (and then, `then`)."""
    reached, go = Event(), Event()

    def hold() -> None:
        reached.set()
        assert go.wait(PATIENCE)
        if then is not None:
            then()

    with armed(f"{operation}.before_commit", hold):
        under_way = threads.submit(call)
        assert reached.wait(PATIENCE)
    try:
        yield under_way, go
    finally:
        go.set()


def states(world: World) -> list[tuple[str, int, int]]:
    """(status, attempts, lost) of each delivery."""
    return [(row.status, row.attempts, row.lost) for row in world.deliveries()]


def workers(world: World) -> set[UUID]:
    """The workers that have a row."""
    return {UUID(str(id)) for (id,) in world.sql("select id from todoku_worker")}


def dies(world: World, worker: UUID) -> Reclaimed:
    """A supervisor sees its child die."""
    return world.store.leases.end(worker, lost=True)


# ------------------------------------------------------------------------------------------- renewal and reclaim


def test_a_lease_is_renewed_while_it_lasts(world: World) -> None:
    """Lease: renewed in time, it outlives its first term, and reclaim leaves it alone."""
    world.publish()
    worker = world.worker(lease=10)
    (claim,) = world.claim(worker)
    for _ in range(3):
        world.advance(8)
        assert world.store.leases.renew(worker, lease=10)
        assert world.store.leases.reclaim() == NOTHING
    assert world.settle([claim]).lost == ()


def test_a_lease_that_ended_is_never_renewed(world: World) -> None:
    """H1: not even when nobody has reclaimed it yet: somebody may be about to."""
    worker = world.worker(lease=10)
    world.advance(10.001)
    assert not world.store.leases.renew(worker, lease=60)
    assert not world.store.leases.renew(worker, lease=60), "asking twice does not help"
    assert world.store.leases.reclaim() == Reclaimed(workers=1, freed=0, aborted=0)
    assert not world.store.leases.renew(worker, lease=60)
    assert workers(world) == set()


def test_a_worker_whose_lease_ended_claims_nothing(world: World) -> None:
    """H1, H2: before its burial and after it, from the line, the suspects and the lanes."""
    world.publish(3)
    world.publish(3, to=["ordered"], ordered=True, key="k")
    first = world.worker()
    assert len(world.claim(first, limit=1)) == 1
    dies(world, first)  # leaves a suspect
    worker = world.worker(lease=10)
    world.advance(11)
    for _ in ("ended", "buried"):
        assert world.claim(worker) == []
        assert world.claim_suspect(worker) == []
        assert world.claim_lanes(worker) == []
        world.store.leases.reclaim()
    alive = world.worker()
    assert (len(world.claim(alive)), len(world.claim_suspect(alive)), len(world.claim_lanes(alive))) == (2, 1, 3)


def test_a_worker_that_was_never_registered_claims_nothing(world: World) -> None:
    """H2: an id without a row is as good as buried."""
    world.publish()
    assert world.claim(uuid4()) == []
    assert states(world) == [("pending", 0, 0)]


@pytest.mark.postgres
def test_a_renewal_under_way_when_the_lease_passes_is_passed_over_by_reclaim(
    pg: World, meanwhile: ThreadPoolExecutor
) -> None:
    """H1, first order: the worker row's lock decides; reclaim does not wait for it, and changes nothing."""
    pg.publish()
    worker = pg.worker(lease=10)
    (claim,) = pg.claim(worker)
    with uncommitted(meanwhile, "renew", lambda: pg.store.leases.renew(worker, lease=60)) as (renewing, go):
        pg.advance(11)
        assert pg.store.leases.reclaim() == NOTHING
        go.set()
        assert renewing.result(PATIENCE) is True
    assert pg.store.leases.reclaim() == NOTHING
    (row,) = pg.deliveries()
    assert (row.status, row.worker, row.epoch) == ("sending", worker, claim.epoch)
    assert pg.settle([claim]).lost == ()


@pytest.mark.postgres
def test_a_renewal_that_waited_for_a_reclaim_is_told_that_the_lease_ended(
    pg: World, meanwhile: ThreadPoolExecutor
) -> None:
    """H1, other order: the renewal began in time but reclaim has the row; the clock goes back to where it began."""
    pg.publish()
    worker = pg.worker(lease=10)
    (claim,) = pg.claim(worker)
    pg.advance(11)
    with uncommitted(meanwhile, "reclaim", pg.store.leases.reclaim) as (reclaiming, go):
        pg.advance(-11)
        renewing = meanwhile.submit(pg.store.leases.renew, worker, lease=60)
        pg.until_blocked()
        go.set()
        assert reclaiming.result(PATIENCE) == Reclaimed(workers=1, freed=1, aborted=0)
        assert renewing.result(PATIENCE) is False
    assert pg.claim(worker) == pg.claim_suspect(worker) == []
    assert pg.settle([claim]).lost == (claim,)
    assert states(pg) == [("pending", 0, 1)]


@pytest.mark.postgres
def test_a_reclaim_that_never_commits_leaves_the_lease_to_the_renewal_that_waited(
    pg: World, meanwhile: ThreadPoolExecutor
) -> None:
    """H1: the reclaimer's connection breaks; whoever waited for it finds the lease as it was."""
    pg.publish()
    worker = pg.worker(lease=10)
    (claim,) = pg.claim(worker)
    pg.advance(11)
    with uncommitted(meanwhile, "reclaim", pg.store.leases.reclaim, then=lose) as (reclaiming, go):
        pg.advance(-11)
        renewing = meanwhile.submit(pg.store.leases.renew, worker, lease=60)
        pg.until_blocked()
        go.set()
        with pytest.raises(DatabaseUnavailable):
            reclaiming.result(PATIENCE)
        assert renewing.result(PATIENCE) is True
    assert pg.settle([claim]).lost == ()


# --------------------------------------------------------------------------------------- claims without an owner


@pytest.mark.postgres
def test_a_burial_waits_for_a_claim_under_way_and_frees_its_rows(pg: World, meanwhile: ThreadPoolExecutor) -> None:
    """H2: the child is killed, its claim still runs in the server; it commits, and its rows are found all the same."""
    pg.publish(5)
    worker = pg.worker()
    three_trips = pg.another_store(prepare_statements=False)  # in one trip it is never seen before its commit
    with uncommitted(meanwhile, "claim", lambda: pg.claim(worker, store=three_trips)) as (claiming, go):
        burying = meanwhile.submit(dies, pg, worker)
        pg.until_blocked()
        go.set()
        assert len(claiming.result(PATIENCE)) == 5
        assert burying.result(PATIENCE) == Reclaimed(workers=1, freed=5, aborted=0)
    assert states(pg) == [("pending", 0, 1)] * 5
    assert pg.settle(claiming.result()).lost == tuple(claiming.result())


@pytest.mark.postgres
def test_a_claim_under_way_when_its_lease_passes_is_freed_in_the_next_round(
    pg: World, meanwhile: ThreadPoolExecutor
) -> None:
    """H2: its worker row is locked, so reclaim passes it over; then it is buried, and what it claimed is found."""
    pg.publish(5)
    worker = pg.worker(lease=10)
    three_trips = pg.another_store(prepare_statements=False)  # in one trip it is never seen before its commit
    with uncommitted(meanwhile, "claim", lambda: pg.claim(worker, store=three_trips)) as (claiming, go):
        pg.advance(11)
        assert pg.store.leases.reclaim() == NOTHING
        go.set()
        assert len(claiming.result(PATIENCE)) == 5
    assert pg.store.leases.reclaim() == Reclaimed(workers=1, freed=5, aborted=0)


@pytest.mark.postgres
@pytest.mark.parametrize("kind", ["claim", "claim_suspect", "claim_lanes"])
def test_a_claim_that_waited_for_a_burial_takes_nothing(pg: World, meanwhile: ThreadPoolExecutor, kind: str) -> None:
    """H2, other order: the worker row is gone when the claim gets to it."""
    pg.publish(2)
    pg.publish(to=["ordered"], ordered=True, key="k")
    first, worker = pg.worker(), pg.worker()
    pg.claim(first, limit=1)
    dies(pg, first)
    before = states(pg)
    with uncommitted(meanwhile, "end_lease", lambda: dies(pg, worker)) as (burying, go):
        claiming = meanwhile.submit(getattr(pg, kind), worker)
        pg.until_blocked()
        go.set()
        assert burying.result(PATIENCE).workers == 1
        assert claiming.result(PATIENCE) == []
    assert states(pg) == before
    assert pg.sql("select count(*) from todoku_lane where worker_id is not null") == [(0,)]


def test_a_delivery_in_flight_whose_worker_has_no_row_is_freed(world: World) -> None:
    """H2: reclaim is an anti-join; one that joined `worker` would leave these rows in flight for ever."""
    world.publish(2)
    world.publish(2, to=["ordered"], ordered=True, key="k")
    ghost, alive = world.worker(), world.worker()
    assert len(world.claim(ghost, limit=1)) == 1
    assert len(world.claim_lanes(ghost)) == 2
    assert len(world.claim(alive)) == 1
    world.sql("delete from todoku_worker where id = ?", str(ghost))
    assert world.store.leases.reclaim() == Reclaimed(workers=0, freed=3, aborted=0)
    assert [held.lane for held in world.store.leases.owned(alive)] == [None]
    assert world.store.leases.owned(ghost) == []
    assert len(world.claim_suspect(alive)) == 1
    assert len(world.claim_lanes(alive)) == 1, "a lane whose owner died is taken up again, one row at a time"


@pytest.mark.postgres
def test_a_reclaim_with_an_old_look_at_things_takes_nothing_from_a_live_worker(
    pg: World, meanwhile: ThreadPoolExecutor
) -> None:
    """H2, H7: between its snapshot and its lock, another reclaim frees the row and a live worker claims it.

    The pause comes from the ledger, which reclaim asks only at the last loss: so the other reclaim passes it by.
    """
    pg.publish()
    ghost, alive = pg.worker(), pg.worker()
    pg.claim(ghost)
    pg.sql("delete from todoku_worker where id = ?", ghost)
    pg.sql(
        "create function pause() returns boolean language plpgsql as"
        " $$ begin perform pg_advisory_xact_lock_shared(1); return true; end $$;"
        " alter table todoku_ledger rename to ledger_itself;"
        " create view todoku_ledger as select * from ledger_itself where (select pause())"
    )
    with pg.connect() as holding:
        holding.execute("select pg_advisory_xact_lock(1)")
        old = meanwhile.submit(pg.store.leases.reclaim, max_lost=1)
        pg.until_blocked()
        assert pg.store.leases.reclaim(max_lost=99) == Reclaimed(workers=0, freed=1, aborted=0)
        (row,) = pg.sql("update todoku_delivery set status = 'sending', worker_id = ?, epoch = epoch + 1,"
                        " attempts = 1 returning epoch", alive)  # fmt: skip
        holding.commit()
    assert old.result(PATIENCE) == NOTHING
    (kept,) = pg.deliveries()
    assert (kept.status, kept.worker, kept.epoch, kept.lost) == ("sending", alive, row[0], 1)


@pytest.mark.postgres
def test_a_reclaim_does_not_wait_for_a_lane_that_somebody_is_taking_over(
    pg: World, meanwhile: ThreadPoolExecutor
) -> None:
    """I10: it would see the old owner, wait, and then take the lane from the new one, in the middle of its run."""
    pg.publish(2, to=["ordered"], ordered=True, key="k")
    ghost, alive = pg.worker(), pg.worker()
    pg.claim_lanes(ghost, limit=1)
    pg.sql("delete from todoku_worker where id = ?", ghost)
    with pg.connect() as taking:
        taking.execute("update todoku_lane set worker_id = %s, epoch = epoch + 2", (alive,))
        assert meanwhile.submit(pg.store.leases.reclaim).result(PATIENCE).freed == 1
        taking.commit()
    assert pg.sql("select worker_id from todoku_lane") == [(alive,)]


# ---------------------------------------------------------------------------------------- claims nobody knows of


@pytest.mark.parametrize("kind", ["claim", "claim_suspect", "claim_lanes"])
def test_a_claim_whose_reply_was_lost_is_found_and_released(world: World, kind: str) -> None:
    """H3: the worker lives and renews, so nobody else frees them; it asks what it owns and gives back the rest."""
    world.publish(4)
    world.publish(3, to=["ordered"], ordered=True, key="k")
    first, worker = world.worker(), world.worker()
    world.claim(first, limit=1)
    dies(world, first)
    held = world.claim(worker, limit=1)
    before = states(world)
    with armed(f"{kind}.after_commit", lose), pytest.raises(DatabaseUnavailable):
        getattr(world, kind)(worker)
    assert states(world) != before, "the claim was committed"

    known = {(claim.id, claim.epoch) for claim in held}
    unknown = [token for token in world.store.leases.owned(worker) if (token.id, token.epoch) not in known]
    assert len(unknown) == {"claim": 2, "claim_suspect": 1, "claim_lanes": 3}[kind]
    assert world.store.claims.release(unknown) == ()
    assert states(world) == before, "attempts given back, no loss counted"
    assert world.store.claims.release(unknown) == tuple(unknown), "a token works once"
    assert [token.id for token in world.store.leases.owned(worker)] == [claim.id for claim in held]
    assert len(getattr(world, kind)(world.worker())) == len(unknown), "and others get them at once"


def test_a_claim_that_never_committed_leaves_nothing_to_release(world: World) -> None:
    """H3, the other direction of the ambiguity."""
    world.publish(3)
    worker = world.worker()
    with armed("claim.before_commit", lose), pytest.raises(DatabaseUnavailable):
        world.claim(worker)
    assert world.store.leases.owned(worker) == []
    assert states(world) == [("pending", 0, 0)] * 3


# ------------------------------------------------------------------------------------------ the same epoch twice


def test_the_same_epoch_in_the_hands_of_another_worker_is_fenced(world: World) -> None:
    """H5: a failover or a restore takes a claim back, and its epoch is handed out again: the worker's id tells."""
    world.publish()
    before, after = world.worker(), world.worker()
    (zombie,) = world.claim(before)
    world.sql(
        "update todoku_delivery set status = 'pending', worker_id = null, attempts = attempts - 1, epoch = epoch - 1"
    )
    (claim,) = world.claim(after)
    assert (claim.id, claim.epoch) == (zombie.id, zombie.epoch)

    assert world.settle([zombie]).lost == (zombie,)
    assert world.store.claims.release([zombie]) == (zombie,)
    assert [row.worker for row in world.deliveries()] == [after]
    assert world.settle([claim]).lost == ()
    assert [done.worker for done in world.history()] == [after]
    assert world.settle([zombie]).lost == (zombie,), "the other's success is not taken for its own"


# -------------------------------------------------------------------------------------------------------- poison


def run_suspects(world: World, poison: int) -> int:
    """Workers take suspects, each time one, and finish them; the poison kills its worker. Returns how many died."""
    places = world.store.claims.waiting(None).suspects
    died, worker, finished = 0, world.worker(), []
    while claims := world.store.claims.take_suspect(worker, places):
        (claim,) = claims
        assert (claim.attempt, claim.lost) == (1, died + 1 if claim.id == poison else 1)
        if claim.id != poison:
            finished.append(claim)
            continue
        world.settle(finished)
        assert dies(world, worker).workers == 1
        died, worker, finished = died + 1, world.worker(), []
    world.settle(finished)
    return died


@pytest.mark.slow
def test_a_poison_message_in_a_batch_of_500_costs_its_neighbours_nothing(world: World) -> None:
    """H6, I13: the batch is lost with its worker; its rows are tried alone; only the one that kills is given up."""
    world.publish(500)
    batch = world.claim(world.worker(lease=10), limit=500)
    assert len(batch) == 500
    poison = batch[250].id
    world.advance(11)
    assert world.store.leases.reclaim() == Reclaimed(workers=1, freed=500, aborted=0)
    assert states(world) == [("pending", 0, 1)] * 500, "attempts given back, the loss counted apart"
    assert world.claim(world.worker()) == [], "suspects are not prefetched"

    assert run_suspects(world, poison) == 2
    (dead,) = world.deliveries()
    assert (dead.id, dead.status, dead.reason, dead.attempts, dead.lost) == (poison, "aborted", "WORKER_LOST", 0, 3)
    assert {done.id for done in world.history()} == {claim.id for claim in batch} - {poison}
    assert {done.attempts for done in world.history()} == {1}


def test_a_suspect_that_fails_like_anybody_else_stays_a_suspect(world: World) -> None:
    """H6: one survived attempt proves nothing; until it is done it is claimed alone."""
    world.publish(2)
    worker = world.worker()
    world.claim(worker)
    dies(world, worker)
    survivor = world.worker()
    (claim,) = world.claim_suspect(survivor)
    world.settle([claim], failed())
    assert world.claim(survivor) == []
    assert len(world.claim_suspect(survivor)) == len(world.claim_suspect(survivor)) == 1


def test_the_last_loss_aborts_with_worker_lost_and_every_loss_is_on_record(world: World) -> None:
    """§2: at lost = 3 a dead letter, which only an audited replay takes up again, still a suspect (I9, H6)."""
    (message,) = world.publish()
    for number in (1, 2, 3):
        worker = world.worker()
        assert len(world.claim(worker) + world.claim_suspect(worker)) == 1
        expected = Reclaimed(workers=1, freed=0, aborted=1) if number == 3 else Reclaimed(1, 1, 0)
        assert dies(world, worker) == expected
    assert states(world) == [("aborted", 0, 3)]
    story = world.store.messages.story(message.id)
    assert story is not None
    assert [(row.reason, row.number) for row in story.attempts] == [("WORKER_LOST", 1)] * 3
    assert [row.epoch for row in story.attempts] == [1, 3, 5]
    again = world.worker()
    assert world.claim(again) == world.claim_suspect(again) == []

    assert len(world.store.acts.replay(Filter(status="aborted"), SOMEBODY).changed) == 1
    assert states(world) == [("pending", 0, 1)]
    assert world.claim(again) == []
    assert len(world.claim_suspect(again)) == 1


@pytest.mark.parametrize("max_lost", [1, 2, 5])
def test_how_many_losses_are_the_last_is_a_setting(world: World, max_lost: int) -> None:
    """§2: `max_lost`, whether a supervisor saw the death or the lease ran out."""
    world.publish()
    for number in range(max_lost):
        assert states(world)[0][0] == "pending"
        worker = world.worker(lease=10)
        assert len(world.claim(worker) + world.claim_suspect(worker)) == 1
        if number % 2:
            world.advance(11)
            world.store.leases.reclaim(max_lost=max_lost)
        else:
            world.store.leases.end(worker, lost=True, max_lost=max_lost)
    assert states(world) == [("aborted", 0, max_lost)]


def test_at_the_last_loss_the_ledger_is_asked_before_giving_up(world: World) -> None:
    """H13, I7: a zombie's success is on record, so the delivery is not aborted, and not sent again either."""
    world.publish(idempotency_key="once")
    zombies = []
    for _ in range(3):
        worker = world.worker(lease=10)
        zombies += world.claim(worker) + world.claim_suspect(worker)
        if len(zombies) == 3:
            assert world.settle([zombies[0]]).lost == (zombies[0],), "the row is fenced, the success is not"
        world.advance(11)
        assert world.store.leases.reclaim() == Reclaimed(workers=1, freed=1, aborted=0)
    assert states(world) == [("pending", 0, 3)]
    (claim,) = world.claim_suspect(world.worker())
    assert (claim.effect_state, claim.effect_digest) == ("succeeded", claim.digest)
    assert decide_by_ledger(claim) is SUCCEEDED


@pytest.mark.parametrize(("column", "value"), [("state", "failed"), ("state", "accepted"), ("digest", "another")])
def test_only_a_success_with_the_same_digest_keeps_a_lost_delivery_alive(world: World, column: str, value: str) -> None:
    """H13, I5: an entry that failed, or that belongs to another body, is no reason to go on."""
    world.publish(idempotency_key="once")
    (zombie,) = world.claim(world.worker(lease=10))
    world.advance(11)
    world.store.leases.reclaim()
    world.settle([zombie])
    world.sql(f"update todoku_ledger set {column} = ? where scope = 'effect:warehouse'", value)
    world.claim_suspect(world.worker(lease=10))
    world.advance(11)
    assert world.store.leases.reclaim(max_lost=2) == Reclaimed(workers=1, freed=0, aborted=1)


# --------------------------------------------------------------------------------------------------- live owners


def test_reclaim_never_touches_the_rows_of_a_live_worker_however_old_their_claim(world: World) -> None:
    """H7: how long an attempt may take is for its owner to enforce; a prefetched row may wait its turn for hours."""
    world.publish(3)
    world.publish(2, to=["ordered"], ordered=True, key="k")
    worker = world.worker(lease=10)
    claims = world.claim(worker) + world.claim_lanes(worker)
    assert len(claims) == 5
    assert world.store.leases.renew(worker, lease=100_000)
    world.advance(86_400)
    assert world.store.leases.reclaim() == NOTHING
    assert {(held.id, held.epoch) for held in world.store.leases.owned(worker)} == {
        (one.id, one.epoch) for one in claims
    }
    assert world.settle(claims).lost == ()


def test_one_workers_end_takes_nothing_from_another(world: World) -> None:
    """I3: burial and reclaim free what has no live owner, and only that."""
    world.publish(30)
    buried, expired, alive = world.worker(), world.worker(lease=10), world.worker()
    for worker in (buried, expired, alive):
        assert len(world.claim(worker, limit=10)) == 10
    assert dies(world, buried) == Reclaimed(workers=1, freed=10, aborted=0)
    world.advance(11)
    assert world.store.leases.reclaim() == Reclaimed(workers=1, freed=10, aborted=0)
    assert len(world.store.leases.owned(alive)) == 10
    assert workers(world) == {alive}


# -------------------------------------------------------------------------------------------------- the last act


def test_the_last_act_of_a_drain_frees_everything_owned_known_or_not(world: World) -> None:
    """H10, I11: nothing was lost, so nothing is suspect; the rows are claimed in batches again."""
    world.publish(4)
    world.publish(3, to=["ordered"], ordered=True, key="k")
    worker = world.worker()
    world.claim(worker, limit=2)
    for kind in ("claim", "claim_lanes"):
        with armed(f"{kind}.after_commit", lose), pytest.raises(DatabaseUnavailable):
            getattr(world, kind)(worker)
    assert {state for state, _, _ in states(world)} == {"sending"}

    assert world.store.leases.end(worker, lost=False) == Reclaimed(workers=1, freed=7, aborted=0)
    assert states(world) == [("pending", 0, 0)] * 7
    assert world.sql("select count(*) from todoku_attempt") == [(0,)]
    assert not world.store.leases.renew(worker, lease=60)
    after = world.worker()
    assert (len(world.claim(after)), len(world.claim_lanes(after))) == (4, 3)


def test_the_last_act_may_be_repeated(world: World) -> None:
    """Port: its reply may be lost; the second time finds nothing to do."""
    world.publish(2)
    worker = world.worker()
    world.claim(worker)
    with armed("end_lease.after_commit", lose), pytest.raises(DatabaseUnavailable):
        world.store.leases.end(worker, lost=False)
    assert world.store.leases.end(worker, lost=False) == NOTHING
    assert states(world) == [("pending", 0, 0)] * 2


def test_the_last_act_forgives_nobody_elses_loss(world: World) -> None:
    """H6: a drain may come before the reclaim; what another worker's death left behind is still a loss."""
    world.publish(2)
    ghost, draining = world.worker(), world.worker()
    (lost,), (owned,) = world.claim(ghost, limit=1), world.claim(draining, limit=1)
    world.sql("delete from todoku_worker where id = ?", str(ghost))
    assert world.store.leases.end(draining, lost=False).freed == 1
    world.store.leases.reclaim()
    assert {row.id: (row.status, row.lost) for row in world.deliveries()} == {
        lost.id: ("pending", 1),
        owned.id: ("pending", 0),
    }


@pytest.mark.parametrize("lost", [False, True])
def test_the_end_of_a_worker_that_owns_very_many_frees_them_all(world: World, lost: bool) -> None:
    """I11: there is no next time for a drain, and what it leaves behind would be taken for a loss."""
    world.publish(5_100)
    worker = world.worker()
    assert len(world.claim(worker, limit=6_000)) == 5_100
    assert world.store.leases.end(worker, lost=lost) == Reclaimed(workers=1, freed=5_100, aborted=0)
    assert set(states(world)) == {("pending", 0, int(lost))}


def test_a_worker_asked_to_stop_a_delivery_is_told_by_what_it_owns(world: World) -> None:
    """H22: `cancel` only asks the owner of what runs; each heartbeat tells."""
    world.publish(2)
    worker = world.worker()
    asked, _ = world.claim(worker)
    world.store.acts.cancel(Filter(ids=(asked.id,)), SOMEBODY)
    assert {held.id for held in world.store.leases.owned(worker) if held.cancel_requested} == {asked.id}
