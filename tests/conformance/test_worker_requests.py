"""What operators ask of a worker stands in its row, and goes with it; no delivery is touched."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

from tests.support.world import SOMEBODY, World
from todoku.core.message import Draft, Leg
from todoku.core.schedule import Every, Plan
from todoku.engine.schedule import declared
from todoku.store.limits import NO_REQUEST, WorkerRequest
from todoku.store.schedules import Firing, ScheduleRow


def test_nothing_is_asked_of_a_worker_that_registers(world: World) -> None:
    worker = world.worker()
    limits = world.store.limits.read()
    assert limits.workers == (worker,)
    assert limits.requests == {}
    assert limits.request_of(worker) is NO_REQUEST


def test_a_drain_is_read_with_the_limits_and_audited(world: World) -> None:
    worker, other = world.worker(), world.worker()
    assert world.store.leases.request_drain(worker, SOMEBODY, drain=True)
    limits = world.store.limits.read()
    assert limits.request_of(worker) == WorkerRequest(drain=True)
    assert limits.request_of(other) is NO_REQUEST
    assert world.store.leases.request_drain(worker, SOMEBODY, drain=False)
    assert world.store.limits.read().requests == {}
    acts = [(row.act.action, row.act.target, row.act.by) for row in world.store.audit.page()]
    assert acts == [("resume", f"worker:{worker}", "somebody"), ("drain", f"worker:{worker}", "somebody")]


def test_a_drain_changes_no_delivery_and_no_lease(world: World) -> None:
    world.publish(3)
    worker = world.worker()
    claims = world.claim(worker)
    before = world.deliveries(), world.store.leases.workers()[0].expires_at
    world.store.leases.request_drain(worker, SOMEBODY, drain=True)
    assert (world.deliveries(), world.store.leases.workers()[0].expires_at) == before
    world.settle(claims)
    assert len(world.history()) == 3


def test_a_draining_worker_stays_draining_whatever_its_claimer_writes(world: World) -> None:
    """Publishers wake idle workers: one that claims nothing must not look idle."""
    worker = world.worker()
    world.store.leases.request_drain(worker, SOMEBODY, drain=True)
    world.store.leases.set_state(worker, "idle")
    assert world.store.leases.workers()[0].state == "draining"
    world.store.leases.request_drain(worker, SOMEBODY, drain=False)
    world.store.leases.set_state(worker, "idle")
    assert world.store.leases.workers()[0].state == "idle"


def test_a_worker_whose_lease_ended_is_asked_nothing(world: World) -> None:
    worker = world.worker(lease=10)
    world.advance(11)
    leases = world.store.leases
    assert not leases.request_drain(worker, SOMEBODY, drain=True)
    assert leases.request_stacks(worker, SOMEBODY) is None
    assert leases.stacks(worker) is None
    assert not leases.request_drain(uuid4(), SOMEBODY, drain=True)
    assert world.store.audit.page() == ()


def test_the_next_incarnation_of_a_drained_worker_is_drained(world: World) -> None:
    worker = uuid4()
    world.store.leases.register(worker, name="host:7", lease=60, slots=8, version="1.2", drained=True)
    (row,) = world.store.leases.workers()
    assert (row.state, row.drain_requested, row.slots, row.version) == ("draining", True, 8, "1.2")
    assert world.store.limits.read().request_of(worker).drain


def test_stacks_are_asked_for_by_number_and_an_older_answer_is_not_the_newer_ones(world: World) -> None:
    worker, leases = world.worker(), world.store.leases
    assert leases.request_stacks(worker, SOMEBODY) == 1
    assert world.store.limits.read().request_of(worker).stacks == 1
    leases.answer_stacks(worker, 1, "first")
    found = leases.stacks(worker)
    assert found is not None
    assert (found.request, found.answered, found.text) == (1, 1, "first")
    assert leases.request_stacks(worker, SOMEBODY) == 2
    found = leases.stacks(worker)
    assert found is not None
    assert (found.request, found.answered) == (2, 1)
    leases.answer_stacks(worker, 2, "second")
    leases.clear_stacks(worker, 1)
    found = leases.stacks(worker)
    assert found is not None
    assert found.text == "second", "the clearing of an older answer leaves the newer one"
    leases.clear_stacks(worker, 2)
    assert world.sql("select stacks, stacks_at from todoku_worker") == [(None, None)]


def test_stacks_are_kept_for_a_minute_and_go_with_the_worker(world: World) -> None:
    worker, leases = world.worker(lease=120), world.store.leases
    leases.request_stacks(worker, SOMEBODY)
    leases.answer_stacks(worker, 1, "a stack")
    world.advance(61)
    found = leases.stacks(worker)
    assert found is not None
    assert (found.answered, found.text, found.at) == (None, None, None)
    world.advance(120)
    leases.reclaim()
    assert world.sql("select count(*) from todoku_worker") == [(0,)]


def test_a_worker_without_a_lease_cannot_answer(world: World) -> None:
    worker, leases = world.worker(lease=10), world.store.leases
    leases.request_stacks(worker, SOMEBODY)
    world.advance(11)
    leases.answer_stacks(worker, 1, "too late")
    assert world.sql("select stacks from todoku_worker") == [(None,)]


def test_what_each_worker_holds_is_listed_the_oldest_first(world: World) -> None:
    first, second = world.worker(name="a"), world.worker(name="b")
    world.publish(2, topic="order.old")
    old = world.claim(first)
    world.advance(5)
    world.publish(2, topic="order.new")
    new = world.claim(first)
    world.publish(1)
    other = world.claim(second)
    held = world.store.leases.held_by([first, second], most=3)
    assert [row.id for row in held if row.worker == first] == [*sorted(c.id for c in old), min(c.id for c in new)]
    assert [row.id for row in held if row.worker == second] == [other[0].id]
    one = next(row for row in held if row.worker == first)
    assert (one.topic, one.destination, one.queue, one.attempt) == ("order.old", "warehouse", "warehouse", 1)
    assert str(one.message_id) == old[0].message_id
    assert one.claimed_at < next(row for row in held if row.id == new[0].id).claimed_at
    assert world.store.leases.held_by([], most=3) == ()
    assert world.store.leases.held_by([uuid4()], most=3) == ()


def test_slots_that_a_schedule_does_not_fire_are_counted(world: World) -> None:
    message = Draft(id=uuid4(), topic="t", type="t", payload="{}", legs=(Leg(destination="d"),))
    plan = Plan(when=Every(60), missed="skip", message=message)
    schedules = world.store.schedules
    schedules.declare({"tidy": declared(plan)})
    for missed in (3, 0, 2):
        world.advance(120)

        def skip(row: ScheduleRow, _groups: object, missed: int = missed) -> Firing:
            return Firing((), (), missed, row.now + timedelta(seconds=60))

        assert schedules.fire(skip, after=3600, notify=False) is not None
    (row,) = schedules.rows()
    assert (row.missed_slots, row.missed_last) == (5, 2)
    assert row.missed_at is not None
    assert abs((row.now - row.missed_at).total_seconds()) < 60
