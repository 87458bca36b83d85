"""Settle: what an attempt came to is written once, whoever asks how often, and nobody holds up the others."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.support.world import World, aborted, failed, snoozed
from todoku.core.backoff import DEFAULT
from todoku.core.decision import SNOOZE_LIMIT, SUCCEEDED, Settlement, decide
from todoku.core.errors import DatabaseBusy, DatabaseUnavailable
from todoku.core.identity import effect_scope, key_hash
from todoku.core.message import Claimed, Message
from todoku.core.outcome import Abort, Outcome, Retry, Snooze
from todoku.core.status import Status
from todoku.store.claims import SettleReport
from todoku.store.columns import moment
from todoku.store.database import Slice
from todoku.store.failpoint import armed, lose
from todoku.store.join import run
from todoku.store.store import Store

RESULT = Settlement(status=Status.SUCCEEDED, result='{"sent":true}')
EACH_OUTCOME = pytest.mark.parametrize(
    "settlement",
    [SUCCEEDED, RESULT, failed(delay=30), aborted(), snoozed(30)],
    ids=["done", "done_with_result", "retry", "abort", "snooze"],
)
EACH_DIRECTION = pytest.mark.parametrize("side", ["before", "after"], ids=["not_committed", "committed"])
YEARS = 10 * 365 * 86_400


def decided(claim: Claimed, outcome: Outcome) -> Settlement:
    return decide(claim, outcome, backoff=DEFAULT, jitter=0.0)


def claim_one(world: World, **options: Any) -> Claimed:
    world.publish(**options)
    (claim,) = world.claim(world.worker(lease=3600))
    return claim


def nothing_is_claimable(world: World) -> bool:
    worker = world.worker()
    return not (world.claim(worker) or world.claim_suspect(worker) or world.claim_lanes(worker))


# ---------------------------------------------------------------------------------------- each outcome


def test_done_moves_the_delivery_to_history_with_its_epoch_and_its_worker(world: World) -> None:
    """DESIGN §4 Settle: history keeps the epoch and the worker, which is what a read-back looks for (H4)."""
    claim = claim_one(world)
    assert world.settle([claim]) == SettleReport()

    assert world.deliveries() == []
    (row,) = world.history()
    assert (row.id, row.status, row.epoch, row.worker) == (claim.id, "succeeded", claim.epoch, claim.worker)
    assert (row.attempts, str(row.message_id)) == (1, claim.message_id)


def test_retry_waits_by_the_databases_clock(world: World) -> None:
    """I12: the database's clock is an hour ahead of this process; the back-off counts from there."""
    claim = claim_one(world)
    world.advance(3000)
    before = world.store.ping()
    world.settle([claim], failed("BROKER_TIMEOUT", delay=30))
    after = world.store.ping()

    (row,) = world.deliveries()
    assert (row.status, row.reason, row.attempts, row.worker) == ("failed", "BROKER_TIMEOUT", 1, None)
    assert moment(before + 30) <= row.next_run_at <= moment(after + 30)
    worker = world.worker()
    assert world.claim(worker) == []
    world.advance(31)
    (again,) = world.claim(worker)
    assert (again.id, again.attempt) == (claim.id, 2)


def test_a_failed_attempt_leaves_a_row_with_replay_number_and_epoch(world: World) -> None:
    """I4: attempt rows carry replay, number and epoch, so that nothing is forgotten."""
    (message,) = world.publish()
    worker = world.worker()
    claims = []
    for reason in ("FIRST", "SECOND"):
        claims += world.claim(worker)
        world.settle(claims[-1:], failed(reason))

    story = world.store.messages.story(message.id)
    assert story is not None
    assert [(row.replay, row.number, row.epoch, row.reason, row.worker) for row in story.attempts] == [
        (0, 1, claims[0].epoch, "FIRST", worker),
        (0, 2, claims[1].epoch, "SECOND", worker),
    ]
    for row in story.attempts:
        assert row.error == f"{row.reason} in a test"
        assert row.started_at is not None
        assert row.started_at <= row.ended_at


@pytest.mark.parametrize("outcome", [Retry(reason="BROKER_TIMEOUT"), Abort("BAD_PAYLOAD")], ids=["last_retry", "abort"])
def test_the_last_retry_and_any_abort_make_a_dead_letter_that_no_claim_takes(world: World, outcome: Outcome) -> None:
    """DESIGN §2: `aborted` rows stay in `delivery` until a person replays or purges them; no index offers them."""
    claim = claim_one(world, max_attempts=1)
    settlement = decided(claim, outcome)
    assert settlement.status is Status.ABORTED
    world.settle([claim], settlement)

    world.advance(YEARS)
    (row,) = world.deliveries()
    assert (row.status, row.reason, row.attempts, row.worker) == ("aborted", settlement.reason, 1, None)
    assert world.store.claims.waiting(None).groups == ()
    assert nothing_is_claimable(world)


def test_a_retry_with_attempts_left_is_no_dead_letter(world: World) -> None:
    """DESIGN §2: only the attempt numbered max_attempts is the last one."""
    claim = claim_one(world, max_attempts=2)
    world.settle([claim], decided(claim, Retry(after=0)))
    (again,) = world.claim(world.worker())
    assert (again.attempt, again.max_attempts) == (2, 2)
    assert decided(again, Retry(after=0)).status is Status.ABORTED


def test_snooze_gives_its_attempt_back_and_is_counted(world: World) -> None:
    """I4, H23: a snooze takes no attempt and leaves no attempt row, but it is counted."""
    (message,) = world.publish()
    worker = world.worker()
    (claim,) = world.claim(worker)
    world.settle([claim], decided(claim, Snooze(30)))

    (row,) = world.deliveries()
    assert (row.status, row.attempts, row.snoozes) == ("pending", 0, 1)
    assert row.epoch > claim.epoch
    assert world.claim(worker) == []
    world.advance(31)
    (again,) = world.claim(worker)
    assert (again.attempt, again.snoozes) == (1, 1)
    story = world.store.messages.story(message.id)
    assert story is not None
    assert story.attempts == ()


def test_snoozing_for_ever_ends_in_a_dead_letter(world: World) -> None:
    """H23: a snooze gives back a started attempt, so only its cap keeps it from going round for ever."""
    world.publish()
    world.sql("update todoku_delivery set snoozes = ?", SNOOZE_LIMIT)
    (claim,) = world.claim(world.worker())
    world.settle([claim], decided(claim, Snooze(0)))
    (row,) = world.deliveries()
    assert (row.status, row.reason) == ("aborted", "SNOOZED_TOO_OFTEN")


def test_the_result_of_done_is_kept(world: World) -> None:
    """DESIGN §4: `Done` may carry a result; with a key it is also the stored response of the effect entry."""
    claim = claim_one(world, idempotency_key="k")
    world.settle([claim], RESULT)
    assert world.store.deliveries.result(claim.id) == '{"sent":true}'
    entry = world.store.ledger.entry(effect_scope("warehouse"), key_hash("k"))
    assert entry is not None
    assert (entry.state, entry.response) == ("succeeded", '{"sent":true}')


def test_done_without_a_result_keeps_none(world: World) -> None:
    claim = claim_one(world)
    world.settle([claim])
    assert world.store.deliveries.result(claim.id) is None


def test_settling_nothing_is_nothing(world: World) -> None:
    assert world.store.claims.settle([]) == SettleReport()


def test_a_batch_of_500_may_end_in_every_way_at_once(world: World) -> None:
    """DESIGN §4: outcomes of many attempts in one call, each by its own; what is lost costs its neighbours nothing."""
    endings = [SUCCEEDED, RESULT, failed(delay=60), aborted(), snoozed(60)]
    world.publish(500, payload=lambda place: {"n": place})
    claims = world.claim(world.worker(lease=3600), limit=500)
    stolen = claims[250]
    assert world.store.claims.release([stolen]) == ()
    (owner,) = world.claim(world.worker(lease=3600))
    assert owner.id == stolen.id

    report = world.store.claims.settle([(claim, endings[place % 5]) for place, claim in enumerate(claims)])

    assert report == SettleReport(lost=(stolen,))
    expected = {claim.id: endings[place % 5].status for place, claim in enumerate(claims)} | {owner.id: "sending"}
    found = {row.id: row.status for row in [*world.deliveries(), *world.history()]}
    assert found == expected
    kept = {claim.id for claim in claims if world.store.deliveries.result(claim.id) is not None}
    assert kept == {claim.id for place, claim in enumerate(claims) if place % 5 == 1}


# --------------------------------------------------------------------------------- the ambiguous commit


def facts(world: World, message: Message) -> dict[str, Any]:
    """Everything the database says about a message, apart from ids and times."""
    story = world.store.messages.story(message.id)
    assert story is not None
    (row,) = story.deliveries
    entry = world.store.ledger.entry(effect_scope("warehouse"), key_hash(message.key or ""))
    return {
        "row": (row.status, row.attempts, row.snoozes, row.lost, row.epoch, row.reason, row.error, row.worker),
        "attempts": [(a.replay, a.number, a.epoch, a.reason, a.worker) for a in story.attempts],
        "result": world.store.deliveries.result(row.id),
        "entry": None if entry is None else (entry.state, entry.http_status, entry.response),
    }


@EACH_DIRECTION
@EACH_OUTCOME
def test_a_settle_with_an_unknown_outcome_may_be_repeated(world: World, settlement: Settlement, side: str) -> None:
    """H4, fault rows 1 and 2: whether the lost commit took effect or not, repeating it gives exactly one effect."""
    plain = world.publish(key="plain", idempotency_key="plain")[0]
    doubtful = world.publish(key="doubtful", idempotency_key="doubtful")[0]
    worker = world.worker(lease=3600)
    for claim in world.claim(worker):
        if claim.message_id == str(plain.id):
            world.settle([claim], settlement)
        else:
            with armed(f"settle.{side}_commit", lose), pytest.raises(DatabaseUnavailable):
                world.settle([claim], settlement)
            report = world.settle([claim], settlement)
            # A snooze leaves no record of its token; told `lost`, its worker drops it, which is right too.
            told_lost = (claim,) if settlement.snoozed and side == "after" else ()
            assert report == SettleReport(lost=told_lost)
            assert world.settle([claim], settlement).stuck == ()

    assert facts(world, doubtful) == facts(world, plain)


@EACH_DIRECTION
def test_a_whole_batch_with_an_unknown_outcome_may_be_repeated(world: World, side: str) -> None:
    """H4: a repeated Retry must not collide with its own attempt row and fail its neighbours."""
    world.publish(20)
    claims = world.claim(world.worker(lease=3600))
    batch = [(claim, (SUCCEEDED, failed(delay=60), aborted())[place % 3]) for place, claim in enumerate(claims)]
    with armed(f"settle.{side}_commit", lose), pytest.raises(DatabaseUnavailable):
        world.store.claims.settle(batch)
    assert world.store.claims.settle(batch) == SettleReport()

    (number,) = world.sql("select count(*) from todoku_attempt")[0]
    assert number == sum(settlement is not SUCCEEDED for _, settlement in batch)
    assert len(world.history()) == sum(settlement is SUCCEEDED for _, settlement in batch)


@EACH_DIRECTION
def test_a_release_with_an_unknown_outcome_may_be_repeated(world: World, side: str) -> None:
    """H4: a release that is repeated must not take a second attempt away."""
    claim = claim_one(world)
    with armed(f"release.{side}_commit", lose), pytest.raises(DatabaseUnavailable):
        world.store.claims.release([claim])
    assert world.store.claims.release([claim]) == ((claim,) if side == "after" else ())
    (row,) = world.deliveries()
    assert (row.status, row.attempts, row.lost, row.epoch) == ("pending", 0, 0, claim.epoch + 1)


@EACH_DIRECTION
def test_a_claim_with_an_unknown_outcome_may_be_repeated(world: World, side: str) -> None:
    """H3, H4: nothing is claimed twice, and what the worker does not know of is found by asking the database."""
    world.publish(3)
    worker = world.worker(lease=3600)
    with armed(f"claim.{side}_commit", lose), pytest.raises(DatabaseUnavailable):
        world.claim(worker)

    repeated = world.claim(worker)
    owned = world.store.leases.owned(worker)
    assert len(owned) == 3
    assert [(row.status, row.attempts, row.epoch) for row in world.deliveries()] == [("sending", 1, 1)] * 3
    assert len(repeated) == (0 if side == "after" else 3)
    assert world.store.claims.release(owned) == ()
    assert [claim.attempt for claim in world.claim(world.worker())] == [1, 1, 1]


@EACH_DIRECTION
def test_a_publish_with_an_unknown_outcome_may_be_repeated_with_its_key(world: World, side: str) -> None:
    """Fault rows 1 to 3: the publisher cannot know; the same key makes its second try harmless."""
    with armed(f"publish.{side}_commit", lose), pytest.raises(DatabaseUnavailable):
        world.publish(idempotency_key="once")
    (message,) = world.publish(idempotency_key="once")
    assert message.duplicate is (side == "after")
    (row,) = world.deliveries()
    assert row.message_id == message.id
    assert world.sql("select count(*) from todoku_message") == [(1,)]


def test_a_publish_that_was_not_committed_left_nothing(world: World) -> None:
    """I2: message, deliveries and reservation commit together or not at all."""
    with armed("publish.before_commit", lose), pytest.raises(DatabaseUnavailable):
        world.publish(idempotency_key="once", to=("a", "b"))
    for table in ("message", "delivery", "ledger"):
        assert world.sql(f"select count(*) from todoku_{table}") == [(0,)]


# ------------------------------------------------------------------------------- one row that is stuck


@pytest.fixture
def crowd(postgres_url: str) -> Iterator[World]:
    """A world on PostgreSQL whose settles wait a tenth of a second for a lock."""
    world = World("postgres", postgres_url, lock_timeout_sec=0.1)
    yield world
    world.close()


@pytest.mark.postgres
@pytest.mark.parametrize(
    "held",
    [
        "select 1 from todoku_ledger where scope like 'effect:%%' and key_hash = %(key_hash)s for update",
        "select 1 from todoku_ledger where scope like 'publish:%%' and key_hash = %(key_hash)s for update",
        "select 1 from todoku_delivery where id = %(id)s for update",
    ],
    ids=["effect_entry", "publish_entry", "delivery"],
)
def test_a_caller_that_holds_one_row_does_not_hold_up_the_settle_of_499_others(crowd: World, held: str) -> None:
    """H11: a caller's open transaction locks one ledger or delivery row; only that one waits for it."""
    drafts = [draft for place in range(500) for draft in crowd.drafts(idempotency_key=f"k{place}")]
    crowd.store.run(crowd.steps(drafts))
    claims = crowd.claim(crowd.worker(lease=3600), limit=500)
    victim = claims[321]
    crowd.sql(
        "insert into todoku_ledger (scope, key_hash, digest, state, created_at, updated_at)"
        " values (?, ?, ?, 'accepted', todoku_now(), todoku_now())",
        effect_scope("warehouse"), victim.key_hash, victim.digest,
    )  # fmt: skip

    with psycopg.connect(crowd.url) as caller:
        rows = caller.execute(held, {"key_hash": victim.key_hash, "id": victim.id}).fetchall()  # type: ignore[arg-type]
        assert len(rows) == 1
        assert crowd.settle(claims) == SettleReport(stuck=(victim,))
        assert len(crowd.history()) == 499
        assert crowd.settle([victim]) == SettleReport(stuck=(victim,))
        caller.rollback()

    assert crowd.settle([victim]) == SettleReport()
    assert len(crowd.history()) == 500
    assert crowd.deliveries() == []


@pytest.mark.postgres
def test_a_caller_whose_reopening_is_not_committed_does_not_hold_up_others(crowd: World) -> None:
    """H11, H15: a duplicate publish in a long transaction of the caller locks only what it reopens."""
    for key in ("dead", "alive"):
        crowd.publish(idempotency_key=key)
    claims = {claim.key_hash: claim for claim in crowd.claim(crowd.worker(lease=3600))}
    crowd.settle([claims[key_hash("dead")]], aborted())

    with psycopg.connect(crowd.url) as caller:
        run(caller, "postgresql", crowd.steps(crowd.drafts(idempotency_key="dead", reopen=True)))
        assert crowd.settle([claims[key_hash("alive")]]) == SettleReport()
        caller.rollback()


def test_a_database_that_is_locked_as_a_whole_is_not_tried_row_by_row(sqlite_url: str) -> None:
    """H11: SQLite has one lock. Halving the batch cannot find the row that is held, it only waits once per half."""
    world = World("sqlite", sqlite_url)
    world.store.migrate()
    world.publish(64)
    claims = world.claim(world.worker(lease=3600))
    tries = counting_writes(world.store)
    world.store.database._open_writer()._timeout = 0.05  # type: ignore[attr-defined]  # instead of five seconds
    caller = world.connect()
    try:
        caller.execute("begin immediate")
        assert world.settle(claims) == SettleReport(stuck=tuple(claims))
        assert len(tries) == 1
    finally:
        caller.close()
    assert world.settle(claims) == SettleReport()
    world.close()


def counting_writes(store: Store) -> list[DatabaseBusy | None]:
    """From now on, each write of the store leaves None here, or the error that said it was busy."""
    seen: list[DatabaseBusy | None] = []
    write = store.database.write

    def spy(operation: str, work: Any) -> Any:
        try:
            result = write(operation, work)
        except DatabaseBusy as error:
            seen.append(error)
            raise
        seen.append(None)
        return result

    store.database.write = spy  # type: ignore[method-assign]
    return seen


# ------------------------------------------------------------------------------------------ no deadlock


@pytest.mark.slow
def test_two_workers_that_share_ledger_keys_in_opposite_order_never_deadlock(world: World) -> None:
    """H11: unsorted, 7 of 24 such pairs died with 40P01; locked in key order, none."""
    stores = [world.another_store(lock_timeout_sec=30) for _ in range(2)]
    tries = [counting_writes(store) for store in stores]
    with ThreadPoolExecutor(2) as pool:
        for turn in range(8):
            batches = opposite_batches(world, turn)
            start = threading.Barrier(2)

            def settle(side: int, batches: Any = batches, start: threading.Barrier = start) -> SettleReport:
                start.wait()
                return stores[side].claims.settle([(claim, SUCCEEDED) for claim in batches[side]])

            assert list(pool.map(settle, range(2))) == [SettleReport(), SettleReport()]
    assert tries == [[None] * 8] * 2  # no settle was refused and split: each went through at once


def opposite_batches(world: World, turn: int) -> tuple[list[Claimed], list[Claimed]]:
    """Two workers' claims to one destination, 500 keys each, the same ones, published in opposite order."""
    keys = [f"{turn}:{place}" for place in range(500)]
    batches = []
    for topic, priority, ordered in (("one", 1, keys), ("other", 0, keys[::-1])):
        drafts = [
            draft for key in ordered for draft in world.drafts(topic=topic, priority=priority, idempotency_key=key)
        ]
        world.store.run(world.steps(drafts))
        where = Slice("warehouse", "warehouse", priority, most=500)
        claims = world.store.claims.take(world.worker(lease=3600), [where], limit=500)
        assert len(claims) == 500
        batches.append(claims)
    return batches[0], batches[1]


# ------------------------------------------------------------------------- a caller's long transaction


@pytest.mark.postgres
def test_a_publish_late_in_a_long_transaction_counts_from_its_own_statement(postgres_url: str) -> None:
    """H19: now() in an hour-long transaction is an hour ago: delay and expiry would have passed at the commit."""
    world = World("postgres", postgres_url)
    with psycopg.connect(world.url) as caller:
        (began,) = caller.execute("select date_part('epoch', now())").fetchone() or (0.0,)
        statement = began
        while statement < began + 0.5:  # until the clock has left the transaction's start well behind
            (statement,) = caller.execute("select date_part('epoch', clock_timestamp())").fetchone() or (0.0,)
            time.sleep(0.02)
        (message,) = run(caller, "postgresql", world.steps(world.drafts(delay=60, expires=90, idempotency_key="k")))
    (row,) = world.deliveries()
    assert row.next_run_at >= moment(statement + 60)
    assert row.created_at == message.created_at
    assert message.created_at >= moment(statement)
    ((expires, reserved),) = world.sql(
        "select date_part('epoch', d.expires_at), date_part('epoch', l.created_at)"
        "  from todoku_delivery d, todoku_ledger l"
    )
    assert expires >= statement + 90
    assert reserved >= statement
    world.close()


def test_an_hour_in_the_callers_transaction_does_not_shorten_a_delay(world: World) -> None:
    """H19: the caller's transaction is an hour old when it publishes with delay=60."""
    caller = world.connect()
    try:
        caller.execute("create table orders (id integer)")
        caller.execute("insert into orders values (1)")
        world.advance(3600)
        before = world.store.database.now() or world.store.ping() * 1e6
        run(caller, world.store.database.dialect, world.steps(world.drafts(delay=60)))
        caller.commit()
    finally:
        caller.close()
    (row,) = world.deliveries()
    assert row.next_run_at >= moment(before / 1e6 + 60)
    assert world.claim(world.worker()) == []
