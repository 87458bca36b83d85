"""The first promise: whoever ends an attempt proves that it owns it (I3, I4)."""

from __future__ import annotations

from tests.support.world import SOMEBODY, World, aborted, failed
from todoku.store.deliveries import Filter


def test_a_reclaimed_workers_late_settle_changes_nothing_and_is_told_lost(world: World) -> None:
    """I3: the lease ends, another worker takes the row; the first one wakes up and settles."""
    world.publish()
    late, owner = world.worker(lease=10), world.worker(lease=600)
    (zombie,) = world.claim(late)
    world.advance(11)
    assert world.store.leases.reclaim().freed == 1
    (winner,) = world.claim_suspect(owner)
    assert winner.id == zombie.id
    assert winner.epoch > zombie.epoch

    assert world.settle([zombie]).lost == (zombie,)
    assert world.settle([zombie], aborted()).lost == (zombie,)
    assert world.store.claims.release([zombie]) == (zombie,)

    (row,) = world.deliveries()
    assert (row.status, row.epoch, row.worker) == ("sending", winner.epoch, owner)
    assert world.settle([winner]).lost == ()
    assert [(done.epoch, done.worker) for done in world.history()] == [(winner.epoch, owner)]


def test_a_token_works_once(world: World) -> None:
    """H4: a release whose reply was lost is repeated; the second one must not take an attempt away again."""
    world.publish()
    (claim,) = world.claim(world.worker())
    assert world.store.claims.release([claim]) == ()
    assert world.store.claims.release([claim]) == (claim,)
    (row,) = world.deliveries()
    assert (row.status, row.attempts, row.epoch) == ("pending", 0, 2)


def test_a_timed_out_attempt_that_returns_later_cannot_undo_its_abort(world: World) -> None:
    """H4: aborted → succeeded was possible when settle left the epoch alone."""
    world.publish()
    (claim,) = world.claim(world.worker())
    world.settle([claim], aborted("TIMEOUT"))
    report = world.settle([claim])
    assert report.lost == ()  # it was settled, by this very token: nothing to drop
    (row,) = world.deliveries()
    assert (row.status, row.reason) == ("aborted", "TIMEOUT")
    assert world.history() == []


def test_the_epoch_rises_at_every_change_of_owner_or_state(world: World) -> None:
    """I4: claim, release, settle, reclaim, cancel and replay each raise it; nothing lowers it."""
    world.publish()
    seen = [0]

    def note() -> None:
        (row,) = world.deliveries()
        seen.append(row.epoch)

    worker = world.worker(lease=10)
    (claim,) = world.claim(worker)
    note()
    world.store.claims.release([claim])
    note()
    (claim,) = world.claim(worker)
    note()
    world.settle([claim], failed())
    note()
    (claim,) = world.claim(worker)
    note()
    world.advance(11)
    world.store.leases.reclaim()
    note()
    world.store.acts.cancel(Filter(), SOMEBODY)
    note()
    world.store.acts.replay(Filter(), SOMEBODY)
    note()
    assert seen == sorted(set(seen)), seen
    assert len(seen) == 9
