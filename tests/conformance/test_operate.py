"""What a person does: replay, cancel, settle by hand, purge, pause. Always with who and why, never to what runs."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.support.world import SOMEBODY, World, aborted, failed, snoozed
from todoku.core.decision import Settlement
from todoku.core.identity import effect_scope, key_hash
from todoku.core.message import Claimed
from todoku.core.status import Status
from todoku.store.acts import Acted
from todoku.store.audit import Signed
from todoku.store.claims import SettleReport
from todoku.store.columns import moment
from todoku.store.deliveries import Delivery, Filter

MAIKO = Signed("maiko", "the warehouse was closed")
HOUR = 3600.0
EVERYTHING = Filter()


def dead(world: World, number: int = 1, **options: Any) -> list[Delivery]:
    """Publish, and let all of it become dead letters."""
    known = {row.id for row in world.deliveries()}
    world.publish(number, **options)
    claims = [claim for claim in world.claim(world.worker(lease=HOUR), limit=number + 100) if claim.id not in known]
    assert len(claims) == number
    world.settle(claims, aborted("HTTP_4XX"))
    return [row for row in world.deliveries() if row.id not in known]


def running(world: World, **options: Any) -> Claimed:
    world.publish(**options)
    (claim,) = world.claim(world.worker(lease=HOUR))
    return claim


def row_of(world: World, id: int) -> Delivery:
    row = world.delivery(id)
    assert row is not None
    return row


def audit(world: World) -> list[tuple[Any, ...]]:
    return world.sql("select by, action, target, why from todoku_audit order by id")


# ----------------------------------------------------------------------------------------------- replay


def test_replay_starts_anew_and_says_who_when_and_why(world: World) -> None:
    """S0-65, I4, I9: attempts 0, replay_count + 1, the error gone, due now, the audit row; still a suspect (H6)."""
    world.publish(max_attempts=3)
    for _ in range(2):
        world.claim(world.worker(lease=10)) or world.claim_suspect(world.worker(lease=10))
        world.advance(11)
        world.store.leases.reclaim()
    (claim,) = world.claim_suspect(world.worker(lease=HOUR))
    world.settle([claim], snoozed())
    (claim,) = world.claim_suspect(world.worker(lease=HOUR))
    world.settle([claim], aborted())
    before = row_of(world, claim.id)
    assert (before.attempts, before.lost, before.snoozes, before.replay_count) == (1, 2, 1, 0)
    world.advance(HOUR)

    began = world.store.ping()
    acted = world.store.acts.replay(Filter(ids=(claim.id,)), MAIKO)
    assert acted == Acted(matched=1, changed=(claim.id,), skipped={}, last=claim.id)

    row = row_of(world, claim.id)
    assert (row.status, row.attempts, row.lost, row.snoozes, row.replay_count) == ("pending", 0, 1, 0, 1)
    assert (row.reason, row.error, row.worker, row.max_attempts) == (None, None, None, 3)
    assert row.epoch > before.epoch
    assert moment(began) <= row.next_run_at <= moment(world.store.ping())
    assert row.message_id is not None
    story = world.store.messages.story(row.message_id)
    assert story is not None
    (act,) = story.audit
    assert (act.by, act.why, act.action, act.target) == (MAIKO.by, MAIKO.why, "replay", f"delivery:{row.id}")
    assert moment(began) <= act.at <= moment(world.store.ping())


def test_a_replayed_delivery_runs_again_with_all_its_attempts(world: World) -> None:
    """I4: the attempt rows of both lives stand side by side, told apart by their replay."""
    dead(world, max_attempts=2)
    world.store.acts.replay(EVERYTHING, MAIKO)
    (claim,) = world.claim(world.worker(lease=HOUR))
    assert (claim.attempt, claim.max_attempts, claim.replay_count) == (1, 2, 1)
    world.settle([claim], failed("AGAIN"))
    story = world.store.messages.story(UUID(claim.message_id))
    assert story is not None
    assert [(row.replay, row.number, row.reason) for row in story.attempts] == [(0, 1, "HTTP_4XX"), (1, 1, "AGAIN")]


def test_a_replayed_delivery_does_not_expire_by_its_old_expiry(world: World) -> None:
    """DESIGN §2: a person asked for it after it had expired; it would expire again before anybody could claim it."""
    world.publish(expires=10)
    world.advance(11)
    world.store.retention.expire(unknown_after=HOUR)
    assert world.deliveries()[0].reason == "EXPIRED"
    world.store.acts.replay(EVERYTHING, MAIKO)
    assert world.store.retention.expire(unknown_after=HOUR) == (0, 0)
    assert len(world.claim(world.worker())) == 1


def test_only_dead_letters_are_replayed(world: World) -> None:
    """I9: what waits, runs or is done stays as it is, and the answer says why."""
    world.publish(4)
    claims = world.claim(world.worker(lease=HOUR), limit=3)
    ids = tuple(row.id for row in world.deliveries())
    world.settle(claims[:1])
    world.settle(claims[1:2], failed(delay=HOUR))
    before = [world.delivery(id) for id in ids]

    acted = world.store.acts.replay(Filter(ids=(*ids, 999_999)), MAIKO)
    assert (acted.matched, acted.changed) == (3, ())
    assert acted.skipped == {
        "is failed": 1,
        "is sending": 1,
        "is pending": 1,
        "not found, or being changed by somebody else": 2,
    }
    assert [world.delivery(id) for id in ids] == before
    assert audit(world) == []


FILTERS: dict[str, dict[str, Any]] = {
    "destination": {"destination": "mail"},
    "queue": {"queue": "slow"},
    "topic": {"topic": "user.created"},
    "key": {"key": "u7"},
    "reason": {"reason": "TIMEOUT"},
    "status": {"status": "aborted"},
}


@pytest.mark.parametrize("name", FILTERS)
def test_replay_by_filter_takes_what_matches_and_nothing_else(world: World, name: str) -> None:
    dead(world, 3, topic="order.created", to=("warehouse",), key="o1")
    others = {row.id for row in world.deliveries()}
    world.publish(2, topic="user.created", to=("mail",), queue="slow", key="u7")
    world.settle(world.claim(world.worker(lease=HOUR)), aborted("TIMEOUT"))

    acted = world.store.acts.replay(Filter(**FILTERS[name]), MAIKO)
    matching = {row.id for row in world.deliveries()} - (others if name != "status" else set())
    assert set(acted.changed) == matching
    assert {row.id for row in world.deliveries(status="pending")} == matching


def test_replay_by_time_takes_what_died_then(world: World) -> None:
    early = dead(world, 2)
    world.advance(HOUR)
    middle = moment(world.store.ping())
    late = dead(world, 2)
    assert world.store.acts.replay(Filter(since=middle), MAIKO).changed == tuple(row.id for row in late)
    assert world.store.acts.replay(Filter(until=middle), MAIKO).changed == tuple(row.id for row in early)


def test_replay_takes_at_most_its_limit_oldest_first(world: World) -> None:
    rows = dead(world, 5)
    acted = world.store.acts.replay(EVERYTHING, MAIKO, limit=2)
    assert acted.changed == tuple(row.id for row in rows[:2])
    assert len(audit(world)) == 2
    assert len(world.deliveries(status="aborted")) == 3


def test_the_limit_counts_what_can_be_replayed(world: World) -> None:
    """A thousand waiting rows in front must not keep a person from the dead letters behind them."""
    world.publish(10, delay=HOUR)
    rows = dead(world, 3)
    assert world.store.acts.replay(Filter(destination="warehouse"), MAIKO, limit=2).changed == tuple(
        r.id for r in rows[:2]
    )
    assert world.store.acts.purge(Filter(destination="warehouse"), MAIKO, limit=2).changed == (rows[2].id,)


@pytest.mark.parametrize("act", ["replay", "cancel", "settle", "purge"])
def test_a_dry_run_changes_nothing(world: World, act: str) -> None:
    dead(world, 2)
    world.publish(2)
    before = world.deliveries()
    acts: dict[str, Any] = {
        "replay": lambda: world.store.acts.replay(EVERYTHING, MAIKO, dry_run=True),
        "cancel": lambda: world.store.acts.cancel(EVERYTHING, MAIKO, dry_run=True),
        "settle": lambda: world.store.acts.settle_by_hand(EVERYTHING, MAIKO, succeeded=True, dry_run=True),
        "purge": lambda: world.store.acts.purge(EVERYTHING, MAIKO, dry_run=True),
    }
    expected = {"replay": before[:2], "cancel": before[2:], "settle": before, "purge": before[:2]}
    assert acts[act]().changed == tuple(row.id for row in expected[act])
    assert world.deliveries() == before
    assert world.history() == []
    assert audit(world) == []


def test_64_replays_at_once_make_one_generation(world: World) -> None:
    """I9: one row leaves `aborted` once, with one audit row; the other 63 are told why they did nothing."""
    (row,) = dead(world)
    stores = [world.another_store(connections=8) for _ in range(8)]
    start = threading.Barrier(64)

    def person(number: int) -> Acted:
        start.wait()
        return stores[number % 8].acts.replay(Filter(ids=(row.id,)), Signed(f"person {number}", "impatient"))

    with ThreadPoolExecutor(64) as pool:
        acts = list(pool.map(person, range(64)))
    assert sorted(len(acted.changed) for acted in acts) == [0] * 63 + [1]
    assert all(acted.skipped for acted in acts if not acted.changed)
    after = row_of(world, row.id)
    assert (after.status, after.replay_count, after.epoch) == ("pending", 1, row.epoch + 1)
    assert len(audit(world)) == 1


@pytest.mark.postgres
def test_what_somebody_else_is_changing_is_passed_over(postgres_url: str) -> None:
    """H11: a bulk act never waits for one row that a caller holds."""
    world = World("postgres", postgres_url)
    rows = dead(world, 3)
    with psycopg.connect(world.url) as caller:
        caller.execute("select 1 from todoku_delivery where id = %s for update", (rows[1].id,))
        acted = world.store.acts.replay(Filter(ids=tuple(row.id for row in rows)), MAIKO)
        assert acted.changed == (rows[0].id, rows[2].id)
        assert acted.skipped == {"not found, or being changed by somebody else": 1}
        caller.rollback()
    world.close()


# ----------------------------------------------------------------------------------------------- cancel


def test_cancelling_what_waits_makes_it_a_dead_letter(world: World) -> None:
    """DESIGN §2: pending and failed become aborted / CANCELLED, audited, with a new epoch (I4)."""
    world.publish(2)
    (claim,) = world.claim(world.worker(lease=HOUR), limit=1)
    world.settle([claim], failed(delay=0))
    before = world.deliveries()
    assert [row.status for row in before] == ["failed", "pending"]

    acted = world.store.acts.cancel(EVERYTHING, MAIKO)
    assert acted.changed == tuple(row.id for row in before)
    for old, new in zip(before, world.deliveries(), strict=True):
        assert (new.status, new.reason, new.error) == ("aborted", "CANCELLED", MAIKO.why)
        assert new.epoch > old.epoch
    assert world.claim(world.worker()) == []
    assert audit(world) == [(MAIKO.by, "cancel", f"delivery:{row.id}", MAIKO.why) for row in before]


def test_cancelling_what_runs_asks_its_owner(world: World) -> None:
    """H22: a flag that the owner sees; neither owner nor state changes, so its token still works."""
    claim = running(world)
    assert [held.cancel_requested for held in world.store.leases.owned(claim.worker)] == [False]
    assert world.store.acts.cancel(EVERYTHING, MAIKO).changed == (claim.id,)

    (held,) = world.store.leases.owned(claim.worker)
    assert (held.id, held.epoch, held.cancel_requested) == (claim.id, claim.epoch, True)
    row = row_of(world, claim.id)
    assert (row.status, row.worker, row.cancel_requested) == ("sending", claim.worker, True)
    assert audit(world) == [(MAIKO.by, "cancel", f"delivery:{claim.id}", MAIKO.why)]

    assert world.settle([claim], aborted("CANCELLED")) == SettleReport()
    assert (row_of(world, claim.id).status, row_of(world, claim.id).reason) == ("aborted", "CANCELLED")


def test_a_done_that_came_first_wins_over_the_cancellation(world: World) -> None:
    """H22: the send succeeded; the row must not say CANCELLED while the ledger says succeeded."""
    claim = running(world, idempotency_key="k")
    world.store.acts.cancel(EVERYTHING, MAIKO)
    assert world.settle([claim]) == SettleReport()
    assert row_of(world, claim.id).status == "succeeded"
    entry = world.store.ledger.entry(effect_scope("warehouse"), key_hash("k"))
    assert entry is not None
    assert entry.state == "succeeded"


@pytest.mark.parametrize("ending", ["retry", "snooze", "release", "lost", "drained"])
def test_a_cancelled_delivery_never_runs_again(world: World, ending: str) -> None:
    """H22: the owner did not see the flag, or died: a cancellation that was accepted must outlive it."""
    world.publish()
    worker = world.worker(lease=10)
    (claim,) = world.claim(worker)
    world.store.acts.cancel(EVERYTHING, MAIKO)
    if ending in ("retry", "snooze"):
        assert world.settle([claim], failed() if ending == "retry" else snoozed()) == SettleReport()
    elif ending == "release":
        assert world.store.claims.release([claim]) == ()
    elif ending == "drained":
        world.store.leases.end(worker, lost=False)
    else:
        world.advance(11)
        assert world.store.leases.reclaim().workers == 1

    row = row_of(world, claim.id)
    assert (row.status, row.reason, row.cancel_requested) == ("aborted", "CANCELLED", False)
    assert row.epoch > claim.epoch
    after = world.worker()
    assert not world.claim(after)
    assert not world.claim_suspect(after)


@pytest.mark.parametrize("ending", ["retry", "release", "lost"])
def test_a_head_that_was_cancelled_while_it_ran_does_not_block_its_lane(world: World, ending: str) -> None:
    """H22, I10: a person removed it, so its follower is next, whichever way its owner went."""
    world.publish(2, ordered=True, key="o1")
    worker = world.worker(lease=10)
    (head,) = world.claim_lanes(worker, limit=1)
    world.store.acts.cancel(Filter(ids=(head.id,)), MAIKO)
    if ending == "retry":
        world.settle([head], failed(delay=HOUR))
    elif ending == "release":
        world.store.claims.release([head])
    world.advance(11)
    world.store.leases.reclaim()

    assert row_of(world, head.id).reason == "CANCELLED"
    (follower,) = world.claim_lanes(world.worker())
    assert follower.id > head.id


def test_a_cancelled_delivery_can_be_replayed(world: World) -> None:
    """I9: it is a dead letter like any other, and the flag of its former life is gone."""
    claim = running(world)
    world.store.acts.cancel(EVERYTHING, MAIKO)
    world.settle([claim], aborted("CANCELLED"))
    world.store.acts.replay(EVERYTHING, MAIKO)
    (again,) = world.claim(world.worker(lease=HOUR))
    assert [held.cancel_requested for held in world.store.leases.owned(again.worker)] == [False]


def test_what_is_over_cannot_be_cancelled(world: World) -> None:
    (over,) = dead(world)
    claim = running(world)
    world.settle([claim])
    acted = world.store.acts.cancel(Filter(ids=(over.id, claim.id)), MAIKO)
    assert acted.changed == ()
    assert acted.skipped == {"is aborted": 1, "not found, or being changed by somebody else": 1}
    assert row_of(world, over.id) == over


# --------------------------------------------------------------------------------------- settle by hand


def test_by_hand_succeeded_is_written_to_the_ledger_and_to_history(world: World) -> None:
    """I5, ledger first: a person says it arrived, so it must not be sent again under its key."""
    (over,) = dead(world, idempotency_key="dead")
    (message,) = world.publish(idempotency_key="waits")
    acted = world.store.acts.settle_by_hand(EVERYTHING, MAIKO, succeeded=True)
    assert len(acted.changed) == 2

    assert world.deliveries() == []
    assert {row.message_id for row in world.history()} == {message.id, over.message_id}
    for key in ("waits", "dead"):
        entry = world.store.ledger.entry(effect_scope("warehouse"), key_hash(key))
        assert entry is not None
        assert entry.state == "succeeded"
    assert {(by, action) for by, action, _, _ in audit(world)} == {(MAIKO.by, "settle as succeeded")}


def test_by_hand_aborted_is_a_dead_letter_and_a_failed_effect(world: World) -> None:
    """I5: a person says it never will arrive."""
    world.publish(idempotency_key="k")
    (before,) = world.deliveries()
    world.store.acts.settle_by_hand(EVERYTHING, MAIKO, succeeded=False)
    (row,) = world.deliveries()
    assert (row.status, row.reason, row.error) == ("aborted", "BY_HAND", MAIKO.why)
    assert row.epoch > before.epoch
    entry = world.store.ledger.entry(effect_scope("warehouse"), key_hash("k"))
    assert entry is not None
    assert entry.state == "failed"
    assert audit(world) == [(MAIKO.by, "settle as aborted", f"delivery:{row.id}", MAIKO.why)]


def test_by_hand_never_undoes_a_success_in_the_ledger(world: World) -> None:
    """I7: the first success stays, with its response."""
    claim = running(world, topic="one", idempotency_key="k", payload=lambda _: "same")
    world.settle([claim], Settlement(status=Status.SUCCEEDED, result='"receipt"'))
    world.publish(topic="other", idempotency_key="k", payload=lambda _: "same")
    world.store.acts.settle_by_hand(EVERYTHING, MAIKO, succeeded=False)
    entry = world.store.ledger.entry(effect_scope("warehouse"), key_hash("k"))
    assert entry is not None
    assert (entry.state, entry.response) == ("succeeded", '"receipt"')


@pytest.mark.parametrize("succeeded", [True, False])
def test_by_hand_never_touches_what_runs(world: World, succeeded: bool) -> None:
    """I3: it has an owner, and only its owner settles it."""
    claim = running(world, idempotency_key="k")
    acted = world.store.acts.settle_by_hand(Filter(ids=(claim.id,)), MAIKO, succeeded=succeeded)
    assert (acted.changed, acted.skipped) == ((), {"is sending": 1})
    assert world.store.ledger.entry(effect_scope("warehouse"), key_hash("k")) is None
    assert world.settle([claim]) == SettleReport()


# ------------------------------------------------------------------------------------------------ purge


def test_purge_removes_dead_letters_and_only_those(world: World) -> None:
    """DESIGN §2: `aborted` rows stay until a person replays or purges them; the audit row stays behind."""
    (over,) = dead(world)
    world.publish(2)
    (claim,) = world.claim(world.worker(lease=HOUR), limit=1)
    others = [row for row in world.deliveries() if row.id != over.id]
    acted = world.store.acts.purge(Filter(ids=tuple(row.id for row in world.deliveries())), MAIKO)
    assert acted.changed == (over.id,)
    assert acted.skipped == {"is sending": 1, "is pending": 1}
    assert world.deliveries() == others
    assert world.delivery(over.id) is None
    assert audit(world) == [
        (MAIKO.by, "purge", f"message:{over.message_id}", MAIKO.why),
        (MAIKO.by, "purge", f"delivery:{over.id}", MAIKO.why),
    ]
    assert world.settle([claim]) == SettleReport()


def test_a_purged_id_never_comes_back(world: World) -> None:
    """I4: a token (id, epoch, worker) works once, also when the newest row was purged and its id was free."""
    claim = running(world)
    world.settle([claim], aborted())
    world.store.acts.purge(EVERYTHING, MAIKO)
    again = running(world)
    assert again.id > claim.id


# ------------------------------------------------------------------------------------------------ queue


def test_pausing_and_resuming_a_queue_is_obeyed_and_audited(world: World) -> None:
    """DESIGN §5: claims obey from the commit on."""
    world.publish()
    worker = world.worker()
    world.store.queues.pause("warehouse", MAIKO, paused=True)
    assert world.claim(worker) == []
    world.store.queues.pause("warehouse", Signed("kenji", "open again"), paused=False)
    assert len(world.claim(worker)) == 1
    assert audit(world) == [
        (MAIKO.by, "pause", "queue:warehouse", MAIKO.why),
        ("kenji", "resume", "queue:warehouse", "open again"),
    ]


# ------------------------------------------------------------------------------------------------ audit


@pytest.mark.parametrize("statement", ["update todoku_audit set by = 'nobody'", "delete from todoku_audit"])
def test_audit_rows_cannot_be_changed_or_removed(world: World, statement: str) -> None:
    """DESIGN §5: append-only, whoever holds the connection (H28: no chain that would serialise all writers)."""
    dead(world)
    world.store.acts.replay(EVERYTHING, SOMEBODY)
    before = audit(world)
    with pytest.raises(Exception, match="append-only"):
        world.sql(statement)
    assert audit(world) == before
    assert len(before) == 1


@pytest.mark.postgres
def test_two_audited_acts_do_not_wait_for_each_other(postgres_url: str) -> None:
    """H28: a hash chain would make the second writer wait for the first one's open transaction."""
    world = World("postgres", postgres_url)
    dead(world)
    with psycopg.connect(world.url) as caller:
        caller.execute(
            "insert into todoku_audit (at, by, action, target, why) values (todoku_now(), 'caller', 'a', 'b', 'c')"
        )
        store = world.another_store(lock_timeout_sec=0.1)
        assert len(store.acts.replay(EVERYTHING, MAIKO).changed) == 1
        caller.commit()
    assert [by for by, *_ in audit(world)] == ["caller", MAIKO.by]
    world.close()
