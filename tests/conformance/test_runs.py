"""Runs of workflows in the store: who writes their steps, and how what is sent to them wakes them (R2 to R14)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar
from uuid import UUID

import msgspec
import pytest

from tests.support.world import World, aborted, failed
from todoku.app import new_id
from todoku.core.decision import SUCCEEDED, park
from todoku.core.ending import NewBatch, add_to_batch
from todoku.core.errors import DatabaseUnavailable, NotThere
from todoku.core.flow import KeyedRun, StepRow, awaited_race
from todoku.core.limit import Limit
from todoku.core.message import Claimed, Draft
from todoku.engine import operations
from todoku.store.deliveries import Filter
from todoku.store.failpoint import armed, lose
from todoku.store.join import run as run_on
from todoku.store.publish import Publishing
from todoku.store.runs import RunLost, SealedRun, signal

T = TypeVar("T")
CHARGE = StepRow("charge:1", 1, "charge", "step", "done", result='"paid"')
WAIT = StepRow("wait:1", 1, "wait", "wait", "open", awaits="approval")
DAY = 86_400


def begin(world: World, *, lease: float = 600, **options: Any) -> Claimed:
    """Publish a run, and claim it."""
    world.publish(to=("fulfil",), **options)
    return again(world, lease=lease)


def again(world: World, *, lease: float = 600) -> Claimed:
    """Claim the run, by another worker."""
    worker = world.worker(lease=lease)
    (claim,) = world.claim(worker, destinations=["fulfil"]) or world.claim_suspect(worker)
    return claim


def lose_run(world: World) -> Claimed:
    """A claim of a run that another worker owns by now."""
    stale = begin(world, lease=10)
    world.advance(11)
    world.store.leases.reclaim()
    again(world)
    return stale


def store(world: World, claim: Claimed, *rows: StepRow) -> set[int]:
    return world.store.runs.store_steps([(claim, row) for row in rows])


def steps(world: World, claim: Claimed) -> dict[str, tuple[str, str | None]]:
    """(state, result) of each step."""
    return {row.key: (row.state, row.result) for row in world.store.runs.steps(claim.message_seq)}


def taken(payload: str) -> StepRow:
    return msgspec.structs.replace(WAIT, state="done", result=payload, awaits=None)


def take(world: World, claim: Claimed) -> StepRow:
    return world.store.runs.take_signal(claim, "approval", str, WAIT)


def no_seal(run: SealedRun, text: str) -> str:
    raise AssertionError(f"{run.message_id} is not encrypted")


def wait_parked(world: World, claim: Claimed) -> None:
    """The run waits for an approval, for however long."""
    assert take(world, claim) == WAIT
    world.settle([claim], park(float("inf")))


def publishing(world: World) -> Publishing:
    database = world.store.database
    return Publishing(database.dialect, database.queries, database.now())


def send(world: World, claim: Claimed, payload: str = '"ops"', name: str = "approval") -> None:
    world.store.run(signal(publishing(world), UUID(claim.message_id), name, payload, no_seal))


def calls(world: World) -> list[str]:
    return [awaits for (awaits,) in world.sql("select awaits from todoku_run_call order by id")]


def is_due(world: World) -> bool:
    return bool(world.claim(world.worker(), destinations=["fulfil"]))


@contextmanager
def beginning(work: Callable[[], T]) -> Iterator[Future[T]]:
    """Work in a thread that has begun."""
    began = threading.Event()

    def told() -> T:
        began.set()
        return work()

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(told)
        began.wait()
        yield future


# ------------------------------------------------------------------------------------------------ the fence


def test_a_step_is_written_by_the_worker_that_owns_the_run_and_by_no_other(world: World) -> None:
    """R3, I3: (id, epoch, worker) as one."""
    claim = begin(world)
    for other in ({"epoch": claim.epoch + 1}, {"epoch": claim.epoch - 1}, {"worker": world.worker()}):
        stranger = msgspec.structs.replace(claim, **other)
        assert store(world, stranger, CHARGE) == {claim.id}
        with pytest.raises(RunLost):
            take(world, stranger)
    assert steps(world, claim) == {}
    assert store(world, claim, CHARGE) == set()
    assert steps(world, claim) == {"charge:1": ("done", '"paid"')}


def test_of_a_commit_for_many_runs_only_the_lost_ones_are_refused(world: World) -> None:
    stale = lose_run(world)
    mine = begin(world)
    both = [(msgspec.structs.replace(stale, worker=mine.worker), CHARGE), (mine, CHARGE)]
    assert world.store.runs.store_steps(both) == {stale.id}
    assert (steps(world, stale), len(steps(world, mine))) == ({}, 1)


def test_a_step_that_waits_behind_a_reclaim_is_refused(world: World) -> None:
    """R3: an insert that only looks whether the run is its own would be written."""
    claim = begin(world)
    reclaiming = world.connect()
    if world.backend == "sqlite":
        reclaiming.execute("begin immediate")
    reclaiming.execute(
        "update todoku_delivery set status = 'pending', worker_id = null, epoch = epoch + 1, lost = lost + 1"
    )
    with beginning(lambda: store(world, claim, CHARGE)) as written:
        if world.backend == "postgres":
            world.until_blocked()
        reclaiming.commit()
        reclaiming.close()
        assert written.result() == {claim.id}
    assert steps(world, claim) == {}


def test_a_transactional_step_of_a_lost_run_is_rolled_back(world: World) -> None:
    """R3, I6"""
    world.sql("create table effect (number int)")
    stale = lose_run(world)

    def work(connection: Any) -> StepRow:
        connection.execute("insert into effect values (1)")
        return CHARGE

    with pytest.raises(RunLost):
        world.store.runs.transact(stale, work, limit=10)
    assert (world.sql("select * from effect"), steps(world, stale)) == ([], {})
    (owner,) = world.deliveries()
    world.store.runs.transact(msgspec.structs.replace(stale, epoch=owner.epoch, worker=owner.worker), work, limit=10)
    assert (len(world.sql("select * from effect")), len(steps(world, stale))) == (1, 1)


# ------------------------------------------------------------------------------------------- results stay


def test_a_stored_result_is_never_overwritten(world: World) -> None:
    claim = begin(world)
    store(world, claim, msgspec.structs.replace(CHARGE, state="open", result=None))
    store(world, claim, CHARGE)
    for late in (msgspec.structs.replace(CHARGE, result='"again"'), msgspec.structs.replace(CHARGE, state="failed")):
        assert store(world, claim, late) == set()
    assert steps(world, claim) == {"charge:1": ("done", '"paid"')}


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_step_whose_reply_was_lost_is_written_again_without_harm(world: World, side: str) -> None:
    claim = begin(world)
    with armed(f"step.{side}_commit", lose), pytest.raises(DatabaseUnavailable):
        store(world, claim, CHARGE)
    assert len(steps(world, claim)) == (side == "after")
    assert store(world, claim, CHARGE) == set()
    assert steps(world, claim) == {"charge:1": ("done", '"paid"')}


def test_progress_counts_attempts_and_losses_anew_and_an_open_step_is_none(world: World) -> None:
    """R6: three deploys in a month give no healthy run up; parking gives one attempt back, and never less than none."""
    world.settle([begin(world)], failed())
    again(world, lease=10)
    world.advance(11)
    world.store.leases.reclaim()
    claim = again(world)
    assert (claim.attempt, claim.lost) == (2, 1)
    store(world, claim, msgspec.structs.replace(CHARGE, state="open", result=None))
    (row,) = world.deliveries()
    assert (row.attempts, row.lost) == (2, 1)
    store(world, claim, CHARGE)
    (row,) = world.deliveries()
    assert (row.attempts, row.lost) == (1, 0)
    world.settle([claim], park(60))
    (row,) = world.deliveries()
    assert (row.status, row.attempts, row.worker) == ("pending", 0, None)


# ------------------------------------------------------------------------------------------------ signals


def test_a_signal_that_is_not_committed_while_the_run_parks_wakes_it_after_its_commit(world: World) -> None:
    """R2: the sender saw a run in flight, and the run saw no signal."""
    claim = begin(world)
    caller = world.connect()
    if world.backend == "sqlite":  # one writer: the signal commits before the run can write that it waits
        assert take(world, claim) == WAIT
        caller.execute("begin immediate")
    sending = signal(publishing(world), UUID(claim.message_id), "approval", "1", no_seal)
    run_on(caller, world.store.database.dialect, sending)
    if world.backend == "postgres":
        wait_parked(world, claim)
        assert world.store.runs.heed_calls() == 0
    caller.commit()
    caller.close()
    if world.backend == "sqlite":
        world.settle([claim], park(float("inf")))
    assert not is_due(world)
    assert world.store.runs.heed_calls() == 1
    assert take(world, again(world)).result == "1"


def test_calls_of_a_run_in_flight_stay_until_it_parks(world: World) -> None:
    """R2"""
    claim = begin(world)
    assert take(world, claim) == WAIT
    send(world, claim)
    assert world.store.runs.heed_calls() == 0
    assert calls(world) == ["approval"]
    world.settle([claim], park(float("inf")))
    assert world.store.runs.heed_calls() == 1
    assert calls(world) == []
    assert is_due(world)


@pytest.mark.parametrize("end", [SUCCEEDED, aborted(), failed(delay=60)], ids=["succeeded", "aborted", "failed"])
def test_calls_of_a_run_that_has_ended_or_comes_back_by_itself_are_removed(world: World, end: Any) -> None:
    claim = begin(world)
    send(world, claim)
    world.settle([claim], end)
    assert world.store.runs.heed_calls() == 0
    assert calls(world) == []


def test_a_call_wakes_only_a_run_that_waits_for_it(world: World) -> None:
    claim = begin(world)
    wait_parked(world, claim)
    send(world, claim, name="other")
    assert world.store.runs.heed_calls() == 0
    assert calls(world) == []
    assert not is_due(world)


def test_a_woken_run_with_a_limit_of_its_key_makes_its_gate_ready(world: World) -> None:
    """R2: otherwise nobody would look at the gate before the run's own time."""
    limit = Limit(concurrency=1)
    world.publish(to=("fulfil",), per_key=limit, key="a")
    (claim,) = world.claim_gates(world.worker(), limit)
    wait_parked(world, claim)
    assert world.claim_gates(world.worker(), limit) == []
    send(world, claim)
    assert world.store.runs.heed_calls() == 1
    assert len(world.claim_gates(world.worker(), limit)) == 1
    assert world.store.broken(history_ttl=1e9, ledger_ttl=1e9) == {}


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_signal_is_delivered_once_also_after_a_lost_reply(world: World, side: str) -> None:
    claim = begin(world)
    send(world, claim, '"first"')
    send(world, claim, '"second"')
    with armed(f"step.{side}_commit", lose), pytest.raises(DatabaseUnavailable):
        take(world, claim)
    assert take(world, claim).result == '"first"'
    assert take(world, claim).result == '"first"'
    assert world.sql("select payload from todoku_signal where step_key is null") == [('"second"',)]


@pytest.mark.parametrize("backend", ["postgres"], indirect=True)  # SQLite has one writer at a time
def test_a_signal_that_another_wait_takes_meanwhile_is_not_delivered_twice(world: World) -> None:
    """R2: the wait that came second gets the next one, and does not overlook it."""
    claim = begin(world)
    send(world, claim, '"first"')
    send(world, claim, '"second"')
    other = world.connect()
    other.execute("update todoku_signal set step_key = 'wait:0' where payload = '\"first\"'")
    with beginning(lambda: take(world, claim)) as taking:
        world.until_blocked()
        other.commit()
        other.close()
        assert taking.result().result == '"second"'


ORDER = KeyedRun("order 7", ("fulfil",))


def send_by_key(world: World, payload: str = '"ops"') -> None:
    world.store.run(signal(publishing(world), ORDER, "approval", payload, no_seal))


def test_a_signal_by_the_key_wakes_the_run_that_has_it_and_no_other(world: World) -> None:
    """R2"""
    other = begin(world, topic="fulfil", idempotency_key="order 8")
    wait_parked(world, other)
    claim = begin(world, topic="fulfil", idempotency_key="order 7")
    wait_parked(world, claim)
    send_by_key(world)
    assert world.store.runs.heed_calls() == 1
    assert take(world, again(world)).result == '"ops"'
    assert world.sql("select distinct message_seq from todoku_signal") == [(claim.message_seq,)]


@pytest.mark.postgres
def test_a_signal_by_the_key_waits_for_no_worker_and_no_worker_for_it(postgres_url: str) -> None:
    """R2: it reads rows that another transaction has locked, and locks none."""
    pg = World("postgres", postgres_url)
    claim = begin(pg, topic="fulfil", idempotency_key="order 7")
    worker, caller = pg.connect(), pg.connect()
    worker.execute("select 1 from todoku_message, todoku_delivery for update")
    caller.execute("set local lock_timeout = '1s'")
    run_on(caller, "postgresql", signal(publishing(pg), ORDER, "approval", "1", no_seal))
    worker.commit()
    worker.execute("set local lock_timeout = '1s'")
    worker.execute("select 1 from todoku_message, todoku_delivery for update")
    worker.commit()
    caller.commit()
    assert take(pg, claim).result == "1"
    for each in (worker, caller, pg):
        each.close()


@pytest.mark.parametrize("end", [SUCCEEDED, aborted()])
def test_a_key_of_a_run_that_has_ended_names_none_and_nothing_is_left_behind(world: World, end: Any) -> None:
    """A caller may commit after the error."""
    world.settle([begin(world, topic="fulfil", idempotency_key="order 7")], end)
    caller = world.connect()
    if world.backend == "sqlite":
        caller.execute("begin immediate")
    with pytest.raises(NotThere, match="no run of fulfil with the idempotency key 'order 7'"):
        run_on(caller, world.store.database.dialect, signal(publishing(world), ORDER, "approval", "1", no_seal))
    caller.commit()
    caller.close()
    assert (calls(world), world.sql("select * from todoku_signal")) == ([], [])


def test_a_signal_for_two_runs_is_sent_to_none(world: World) -> None:
    """Two runs of one key, under the present and a former name of the workflow."""
    for topic in ("fulfil", "deliver"):
        world.publish(to=("fulfil",), topic=topic, idempotency_key="order 7")
    both = KeyedRun("order 7", ("fulfil", "deliver"))
    caller = world.connect()
    if world.backend == "sqlite":
        caller.execute("begin immediate")
    with pytest.raises(NotThere, match="2 runs of fulfil"):
        run_on(caller, world.store.database.dialect, signal(publishing(world), both, "approval", "1", no_seal))
    caller.commit()
    caller.close()
    assert (calls(world), world.sql("select * from todoku_signal")) == ([], [])
    send_by_key(world)
    assert len(world.sql("select * from todoku_signal")) == 1


@pytest.mark.parametrize("run", [ORDER, UUID(int=7)])
def test_a_signal_writes_before_it_reads(world: World, run: UUID | KeyedRun) -> None:
    """In SQLite, a caller's transaction that has only read cannot write any more once another one has committed."""
    first = next(signal(publishing(world), run, "approval", "1", no_seal))
    assert first.sql.startswith("insert into")


def test_a_signal_to_a_run_that_is_over_is_refused(world: World) -> None:
    claim = begin(world)
    world.settle([claim], aborted())
    with pytest.raises(NotThere):
        send(world, claim)
    assert calls(world) == []


# ----------------------------------------------------------------------------------------------- children


def children(world: World, number: int = 2, *, race: bool = False) -> tuple[StepRow, list[Draft], NewBatch]:
    batch = NewBatch(id=new_id(), total=number, on="finished")
    drafts = [add_to_batch(draft, batch.id) for draft in world.drafts(number, to=("pick",))]
    awaits = awaited_race(str(batch.id)) if race else str(batch.id)
    return StepRow("gather:1", 1, "gather", "children", "open", awaits=awaits), drafts, batch


@pytest.mark.parametrize("side", ["before", "after"])
def test_children_and_their_step_are_one_commit(world: World, side: str) -> None:
    """R11: neither children that no step knows, nor twice as many after a lost reply."""
    claim = begin(world)
    row, drafts, batch = children(world)
    with armed(f"step.{side}_commit", lose), pytest.raises(DatabaseUnavailable):
        world.store.runs.publish(claim, row, drafts, batch)
    assert len(world.deliveries(destination="pick")) == 2 * len(steps(world, claim)) == 2 * (side == "after")
    world.store.runs.publish(claim, row, drafts, batch)
    assert len(world.deliveries(destination="pick")) == 2
    assert steps(world, claim) == {"gather:1": ("open", None)}


def test_a_run_that_was_lost_publishes_no_children(world: World) -> None:
    """R10, R11"""
    stale = lose_run(world)
    row, drafts, batch = children(world)
    with pytest.raises(RunLost):
        world.store.runs.publish(stale, row, drafts, batch)
    assert world.deliveries(destination="pick") == []
    assert steps(world, stale) == {}


def test_the_last_end_of_a_batch_calls_its_run(world: World) -> None:
    """R2, R11: as a signal does, it touches nothing of the run."""
    claim = begin(world)
    world.store.runs.publish(claim, *children(world))
    world.settle([claim], park(float("inf")))
    first, second = world.claim(world.worker(), destinations=["pick"])
    world.settle([first])
    assert calls(world) == []
    (before,) = world.deliveries(destination="fulfil")
    world.settle([second], aborted())
    assert len(calls(world)) == 1
    assert world.deliveries(destination="fulfil") == [before]
    assert world.store.runs.heed_calls() == 1
    assert is_due(world)


def test_a_child_that_was_replayed_calls_its_run_when_it_ends_again(world: World) -> None:
    """R2, R11: its batch was complete when another child ended; the run looked, found this one open, and parked."""
    claim = begin(world)
    world.store.runs.publish(claim, *children(world))
    world.settle([claim], park(float("inf")))
    first, second = world.claim(world.worker(), destinations=["pick"])
    world.settle([first], aborted())
    operations.replay(world.store, Filter(ids=(first.id,)), operations.sign("ops", "mended"))
    world.settle([second])
    assert world.store.runs.heed_calls() == 1
    world.settle([again(world)], park(float("inf")))
    (replayed,) = world.claim(world.worker(), destinations=["pick"])
    world.settle([replayed])
    assert world.store.runs.heed_calls() == 1
    assert is_due(world)


# ------------------------------------------------------------------------------------------ ends and times


@pytest.mark.parametrize("is_run", [True, False])
def test_a_stale_workers_success_of_a_run_records_no_effect(world: World, is_run: bool) -> None:
    """R12: the other worker goes on with its steps, and would find its run done. Of a plain job it is recorded (I7)."""
    world.publish(to=("fulfil",), idempotency_key="order 1")
    stale = again(world, lease=10)
    world.advance(11)
    world.store.leases.reclaim()
    owner = again(world)
    done = msgspec.structs.replace(SUCCEEDED, is_run=is_run)
    recorded = "select count(*) from todoku_ledger where scope like 'effect:%' and state = 'succeeded'"
    assert world.settle([stale], done).lost == (stale,)
    assert world.sql(recorded) == [(int(not is_run),)]
    world.settle([owner], done)
    assert world.sql(recorded) == [(1,)]


def test_steps_and_signals_go_with_their_message_and_not_before_the_run_has_been_over_for_long(world: World) -> None:
    """R14: a run of three months is kept for as long after its end as any other."""
    claim = begin(world)
    store(world, claim, CHARGE)
    send(world, claim)
    world.settle([claim], park(90 * DAY))
    world.advance(91 * DAY)
    assert world.store.retention.prune(history_ttl=30 * DAY).messages == 0
    claim = again(world)
    assert take(world, claim).state == "done"
    world.settle([claim])
    world.advance(29 * DAY)
    assert world.store.retention.prune(history_ttl=30 * DAY).messages == 0
    assert len(steps(world, claim)) == 2
    world.advance(2 * DAY)
    assert world.store.retention.prune(history_ttl=30 * DAY).messages == 1
    assert steps(world, claim) == {}
    assert world.sql("select * from todoku_signal") == []


def test_a_run_whose_last_step_was_a_long_sleep_is_kept_after_its_end(world: World) -> None:
    """R14: a sleep has no end but its time."""
    claim = begin(world)
    store(world, claim, StepRow("sleep:1", 1, "sleep", "sleep", "open", wait=90 * DAY))
    world.settle([claim], park(90 * DAY))
    world.advance(91 * DAY)
    world.settle([again(world)])
    assert world.store.retention.prune(history_ttl=30 * DAY).messages == 0
    assert len(steps(world, claim)) == 1


def test_a_parked_run_expires_only_when_the_time_of_the_whole_run_is_over(world: World) -> None:
    """R8: `expires` is the deadline of the run; a run that waits for months is not one that nobody serves."""
    bounded, unbounded = begin(world, expires=7 * DAY), begin(world)
    for claim in (bounded, unbounded):
        wait_parked(world, claim)
    world.advance(6 * DAY)
    assert world.store.retention.expire(unknown_after=60) == (0, 0)
    world.advance(2 * DAY)
    assert world.store.retention.expire(unknown_after=60) == (1, 0)
    assert [row.id for row in world.deliveries(status="aborted")] == [bounded.id]
