"""Schedules on both databases: declared, stored, fired once a slot (I2, I3), missed, paused, run now; and bad input."""

from __future__ import annotations

import asyncio
import os
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

import todoku
from tests.support.world import World
from todoku.core.errors import BlockingCall, DatabaseUnavailable, InvalidAct
from todoku.core.schedule import When, next_after
from todoku.core.sealed import format_master_key, kind_of
from todoku.engine.diagnostics.doctor import examine
from todoku.engine.observability.telemetry import Telemetry
from todoku.engine.schedule import declare, decoded
from todoku.engine.worker.maintenance import Scheduler
from todoku.store.failpoint import armed, lose
from todoku.store.schedules import ScheduleRow
from todoku.store.store import Store

HOUR = timedelta(hours=1)
ADA = {"by": "ada", "why": "a test"}


def failed(error: Exception) -> None:
    raise error


def firing_of(box: todoku.App, store: Store | None = None, **settings: Any) -> Scheduler:
    """The part of a worker that fires."""
    return Scheduler(
        store or box.store, box.plans, msgspec.structs.replace(box.settings, **settings), box.telemetry,
        on_fired=lambda: None, on_failure=failed,
    )  # fmt: skip


def now(world: World) -> datetime:
    return datetime.fromtimestamp(world.store.ping(), UTC)


def next_slots(when: When, *moments: datetime) -> set[datetime]:
    """The next slot at each of them: what was asked in between was told one of these."""
    return {next_after(when, moment) for moment in moments}


def row(box: todoku.App, name: str) -> ScheduleRow:
    (found,) = [row for row in box.store.schedules.rows() if row.name == name]
    return found


def shown(box: todoku.App, name: str) -> todoku.Schedule:
    (found,) = [one for one in box.schedules.list() if one.name == name]
    return found


def slots_fired(world: World) -> list[datetime]:
    """The slots of every message that a schedule published, oldest first."""
    documents = world.sql("select headers from todoku_message order by seq")
    headers = [msgspec.json.decode(text) if isinstance(text, str) else text for (text,) in documents]
    return [datetime.fromisoformat(each["todoku-scheduled-at"]) for each in headers]


def ran(box: todoku.App, world: World) -> list[Any]:
    """Claim everything, call its handlers, and say what they returned."""
    claims = sorted(world.claim(world.worker()), key=lambda claim: claim.id)
    calls = [box.registry[claim.destination].call for claim in claims]
    return [call(todoku.Context(claim)) for call, claim in zip(calls, claims, strict=True) if call is not None]


def until_next(box: todoku.App, world: World, name: str, *, and_then: timedelta = timedelta(0)) -> datetime:
    """Let time pass until the next slot, and a little more; returns the slot."""
    slot = row(box, name).next_run_at
    assert slot is not None
    world.advance((slot - now(world) + and_then).total_seconds() + 0.001)
    box.store.schedules.announce(tuple(box.plans))  # as its workers do all the time
    return slot


@pytest.fixture
def hourly(box: todoku.App) -> todoku.Job[..., None]:
    """A job that is scheduled every hour."""

    @box.every(HOUR)
    def hourly(ctx: todoku.Context, n: int = 1) -> None: ...

    box.migrate()
    return hourly


# ---------------------------------------------------------------------------------------------- declaring


def test_what_an_app_declares_is_stored_with_its_next_slot(box: todoku.App, world: World) -> None:
    """S3-94; the next slot is after the database's clock (I12)."""

    @box.cron("0 9 * * *", tz="Asia/Tokyo", missed="all", queue="mail", max_attempts=2, kwargs={"n": 3})
    def report(n: int) -> None: ...

    @box.every(90, name="sweep.tables")
    def sweep() -> None: ...

    world.advance(86_400 * 400)
    before = now(world)
    box.migrate()
    report_, sweeping = box.schedules.list()
    assert (report_.name, report_.when, report_.tz, report_.missed) == ("report", "0 9 * * *", "Asia/Tokyo", "all")
    assert (report_.topic, report_.destinations, report_.source, report_.declared) == (
        "report",
        ("report",),
        "code",
        True,
    )
    assert (sweeping.name, sweeping.when, sweeping.tz, sweeping.missed) == ("sweep.tables", "every 90 s", None, "once")
    assert report_.next_run_at in next_slots(box.plans["report"].when, before, now(world))
    assert box.jobs["report"].route.max_attempts == 2
    assert world.sql("select count(*) from todoku_message") == [(0,)]


def test_a_schedule_fires_its_message_at_its_slot(box: todoku.App, world: World) -> None:
    """The handler learns its slot from ctx.scheduled_at, however late it runs."""

    @box.cron("0 9 * * *", tz="Asia/Tokyo", args=(3,), queue="mail", max_attempts=2)
    def report(ctx: todoku.Context, n: int) -> tuple[int, datetime | None, str]:
        return n, ctx.scheduled_at, ctx.headers["todoku-schedule"]

    box.migrate()
    firing = firing_of(box)
    assert firing.fire_due() > 0
    assert world.deliveries() == []
    slot = until_next(box, world, "report")
    firing.fire_due()
    firing.fire_due()
    (delivery,) = world.deliveries()
    assert (delivery.topic, delivery.destination, delivery.queue, delivery.max_attempts) == (
        "report",
        "report",
        "mail",
        2,
    )
    assert ran(box, world) == [(3, slot, "report")]
    stored = row(box, "report")
    assert (stored.last_run_at, stored.last_message_id) == (slot, delivery.message_id)
    assert stored.next_run_at == slot + timedelta(days=1)


def test_what_no_schedule_published_has_no_slot(box: todoku.App, world: World) -> None:
    @box.job
    def work(ctx: todoku.Context) -> datetime | None:
        return ctx.scheduled_at

    work.enqueue()
    assert ran(box, world) == [None]


def test_an_existing_job_a_call_a_topic_and_an_event_can_be_scheduled(box: todoku.App, world: World) -> None:
    @box.event("day.ended", key="day")
    @dataclass(frozen=True)
    class DayEnded:
        day: str

    @box.cron("0 1 * * *", name="early")
    @box.job(max_attempts=7)
    def work(n: int = 1) -> str:
        return f"work {n}"

    @box.on("day.*")
    def seen(event: dict[str, str]) -> str:
        return f"seen {event['day']}"

    box.schedule("job", work, cron="0 2 * * *")
    box.schedule("call", work.using(priority=3, headers={"who": "me"}).call(2), cron="0 3 * * *")
    box.schedule("topic", "day.began", {"day": "one"}, cron="0 4 * * *")
    box.schedule("event", DayEnded("two"), cron="0 5 * * *")
    box.migrate()
    assert [one.name for one in box.schedules.list()] == ["call", "early", "event", "job", "topic"]
    world.advance(86_400)
    firing = firing_of(box)
    firing.announce()
    firing.fire_due()
    assert sorted((one.topic, one.key, one.priority, one.max_attempts) for one in world.deliveries()) == [
        ("day.began", None, 0, 6), ("day.ended", "two", 0, 6), ("work", None, 0, 7), ("work", None, 0, 7),
        ("work", None, 3, 7),
    ]  # fmt: skip
    assert sorted(ran(box, world)) == ["seen one", "seen two", "work 1", "work 1", "work 2"]


def test_an_unchanged_declaration_changes_nothing(box: todoku.App, world: World, hourly: Any) -> None:
    before = row(box, "hourly")
    world.advance(60)
    box.migrate()
    after = row(box, "hourly")
    assert (after.spec, after.next_run_at, after.updated_at) == (before.spec, before.next_run_at, before.updated_at)
    assert after.seen_at is not None
    assert before.seen_at is not None
    assert after.seen_at > before.seen_at


def redeclared(box: todoku.App, world: World, **schedule: Any) -> None:
    """The next version of the program, with another `hourly`."""
    newer = todoku.App(world.url)
    if world.backend == "sqlite":
        newer._database._clock = world._now  # type: ignore[attr-defined]

    @newer.job
    def hourly(n: int = 1) -> None: ...

    newer.schedule("hourly", hourly.call(schedule.pop("n", 1)), **schedule)
    newer.migrate()
    newer.close()


def test_a_changed_time_counts_from_now_and_a_changed_message_from_the_next_slot(
    box: todoku.App, world: World, hourly: Any
) -> None:
    before = row(box, "hourly")
    redeclared(box, world, every=HOUR, n=2)
    assert row(box, "hourly").next_run_at == before.next_run_at
    assert '"n":2' in (decoded(row(box, "hourly").spec).message.payload or "")
    moment = now(world)
    redeclared(box, world, cron="30 2 * * *", tz="Europe/Berlin")
    changed = row(box, "hourly")
    assert changed.next_run_at in next_slots(decoded(changed.spec).when, moment, now(world))
    assert shown(box, "hourly").tz == "Europe/Berlin"


def test_a_slot_that_was_due_before_the_change_is_still_fired(box: todoku.App, world: World, hourly: Any) -> None:
    """Otherwise a deploy at the full hour would swallow it."""
    slot = until_next(box, world, "hourly")
    redeclared(box, world, cron="30 2 * * *", n=2)
    firing_of(box).fire_due()
    assert slots_fired(world) == [slot]
    assert row(box, "hourly").next_run_at == next_after(decoded(row(box, "hourly").spec).when, slot)


def test_a_persons_pause_outlives_a_deploy(box: todoku.App, world: World, hourly: Any) -> None:
    box.schedules.pause("hourly", **ADA)
    redeclared(box, world, every=60, n=2)
    assert shown(box, "hourly").paused
    world.advance(7200)
    firing_of(box).fire_due()
    assert slots_fired(world) == []


def test_what_nobody_declares_any_more_stops_firing_and_is_shown(box: todoku.App, world: World, hourly: Any) -> None:
    """Its workers are gone, or a deploy has removed it: `unknown_after_sec` later it is not fired by anybody else's."""
    other = todoku.App(world.url)
    world.advance(3 * 3600)
    assert not shown(box, "hourly").declared
    firing_of(box).fire_due()
    assert slots_fired(world) == []
    box.migrate()  # its own App is back: then it was an outage
    assert shown(box, "hourly").declared
    firing_of(box).fire_due()
    assert len(slots_fired(world)) == 1
    other.close()


def test_a_worker_declares_once_and_then_announces(box: todoku.App, world: World, hourly: Any) -> None:
    """What a newer version declared is not undone by an older one that still runs."""
    firing = firing_of(box)
    firing.announce()
    redeclared(box, world, every=60, n=2)
    firing.announce()
    assert shown(box, "hourly").when == "every 60 s"


# ------------------------------------------------------------------------------------------------- firing


def test_I2_a_firing_that_does_not_commit_leaves_its_slot_due(box: todoku.App, world: World, hourly: Any) -> None:
    """Message and next slot are one commit."""
    slot = until_next(box, world, "hourly")
    firing = firing_of(box)
    with armed("fire.before_commit", lose), pytest.raises(DatabaseUnavailable):
        firing.fire_due()
    assert slots_fired(world) == []
    assert row(box, "hourly").next_run_at == slot
    with armed("fire.after_commit", lose), pytest.raises(DatabaseUnavailable):
        firing.fire_due()
    firing.fire_due()
    assert slots_fired(world) == [slot]


def test_I3_however_many_look_at_once_each_slot_is_fired_once(box: todoku.App, world: World) -> None:
    """Issue 4: exactly one firing per slot however many daemons run."""
    for number in range(5):
        box.schedule(f"tick {number}", _ticking(box, number), every=1, missed="all")
    box.migrate()
    first = [row(box, f"tick {number}").next_run_at for number in range(5)]
    world.advance(60)
    stores = [world.another_store(lock_timeout_sec=60) for _ in range(6)]
    start = threading.Barrier(len(stores))
    errors: list[Exception] = []

    def fire(store: Store) -> None:
        firing = firing_of(box, store)
        start.wait()
        try:
            for _ in range(5):
                firing.fire_due()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=fire, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    firing_of(box).fire_due()
    assert errors == []
    topics = [topic for (topic,) in world.sql("select topic from todoku_message order by seq")]
    fired = sorted(zip(topics, slots_fired(world), strict=True))
    assert len(set(fired)) == len(fired)
    for number in range(5):
        slots = [slot for topic, slot in fired if topic == f"tick{number}"]
        assert slots == [first[number] + timedelta(seconds=place) for place in range(len(slots))]  # type: ignore[operator]
        assert len(slots) >= 60


def _ticking(box: todoku.App, number: int) -> todoku.Job[..., None]:
    @box.job(f"tick{number}")
    def tick() -> None: ...

    return tick


def test_a_slot_is_not_fired_again_when_somebody_moves_the_schedule_back(
    box: todoku.App, world: World, hourly: Any
) -> None:
    """The ledger remembers it: a restored or edited row is no second firing, not even with another payload."""
    slot = until_next(box, world, "hourly")
    firing_of(box).fire_due()
    redeclared(box, world, every=HOUR, n=2)
    moved_back(box, world, "hourly", slot)
    firing_of(box).fire_due()
    assert slots_fired(world) == [slot]
    assert row(box, "hourly").next_run_at == slot + HOUR


def moved_back(box: todoku.App, world: World, name: str, slot: datetime) -> None:
    at = slot if world.backend == "postgres" else round(slot.timestamp() * 1e6)
    world.sql("update todoku_schedule set next_run_at = ? where name = ?", at, name)


def test_two_schedules_of_one_job_at_one_time_are_two_messages(box: todoku.App, world: World, hourly: Any) -> None:
    box.schedule("hourly too", hourly, every=HOUR)
    box.migrate()
    slot = until_next(box, world, "hourly")
    firing_of(box).fire_due()
    assert slots_fired(world) == [slot, slot]
    world.settle(world.claim(world.worker()))
    assert len(world.history()) == 2


def test_a_unique_job_is_fired_at_every_slot(box: todoku.App, world: World) -> None:
    """The schedule says how often."""

    @box.every(60, missed="all", unique_for=3600)
    def often() -> None: ...

    box.migrate()
    until_next(box, world, "often", and_then=timedelta(minutes=2))
    firing_of(box).fire_due()
    assert len(slots_fired(world)) == 3


@pytest.mark.parametrize(
    ("missed", "fired"),
    [("skip", []), ("once", [3]), ("all", [0, 1, 2, 3])],
)
def test_after_an_outage_the_policy_decides(box: todoku.App, world: World, missed: Any, fired: list[int]) -> None:
    """Issue 4: policy for missed firings. Nobody was there for more than three hours."""

    @box.every(HOUR, missed=missed)
    def hourly() -> None: ...

    box.migrate()
    first = until_next(box, world, "hourly", and_then=3 * HOUR + timedelta(minutes=5))
    box.migrate()
    firing_of(box).fire_due()
    assert slots_fired(world) == [first + HOUR * number for number in fired]
    assert row(box, "hourly").next_run_at == first + 4 * HOUR
    counted = _counted(box.telemetry)
    assert counted == (len(fired), 0 if missed == "all" else 4 - len(fired))
    until_next(box, world, "hourly")
    firing_of(box).fire_due()
    assert slots_fired(world)[len(fired) :] == [first + 4 * HOUR]


def _counted(telemetry: Telemetry) -> tuple[float, float]:
    counters = msgspec.msgpack.decode(telemetry.dump())["counters"]
    return counters["schedule_fired_total"][""], counters["schedule_missed_total"][""]


def test_more_missed_slots_than_one_round_fires_are_fired_in_several(box: todoku.App, world: World) -> None:
    @box.every(1, missed="all")
    def tick() -> None: ...

    box.migrate()
    first = until_next(box, world, "tick", and_then=timedelta(seconds=2499))
    box.migrate()
    firing_of(box).fire_due()
    fired = slots_fired(world)
    assert fired[:2500] == [first + timedelta(seconds=number) for number in range(2500)]


def test_a_job_nobody_knows_is_fired_all_the_same_and_becomes_a_dead_letter(
    box: todoku.App, world: World, hourly: Any
) -> None:
    """Never silently nothing: any worker on the database fires it, and nobody takes it."""
    slot = until_next(box, world, "hourly")
    stranger = todoku.App(world.url)
    firing_of(stranger, world.store).fire_due()
    assert slots_fired(world) == [slot]
    world.advance(700)
    assert world.store.retention.expire(unknown_after=600) == (0, 1)
    (dead,) = world.deliveries()
    assert (dead.status, dead.reason) == ("aborted", "UNKNOWN_DESTINATION")
    stranger.close()


def test_a_plan_that_cannot_be_read_is_said_and_keeps_nobody_else(box: todoku.App, world: World, hourly: Any) -> None:
    """A newer version wrote it, or a hand: its slot stays due for a worker that can."""
    slot = until_next(box, world, "hourly")
    box.schedules.add("also", hourly, every=HOUR, **ADA)
    moved_back(box, world, "also", slot)
    spec = row(box, "hourly").spec.replace('"every"', '"moon phase"')
    world.sql("update todoku_schedule set spec = ? where name = 'hourly'", spec)
    firing = firing_of(box)
    firing.fire_due()
    firing.fire_due()
    assert slots_fired(world) == [slot]
    broken = shown(box, "hourly")
    assert "spec cannot be read" in (broken.error or "")
    assert (broken.when, broken.next_run_at) == ("?", slot)
    redeclared(box, world, every=HOUR)
    firing_of(box).fire_due()
    assert slots_fired(world) == [slot, slot]
    assert shown(box, "hourly").error is None


def test_a_disabled_worker_fires_nothing(box: todoku.App, world: World, hourly: Any) -> None:
    """`enabled = false`: nothing is done by it."""
    until_next(box, world, "hourly")
    firing_of(box, enabled=False).fire_due()
    assert slots_fired(world) == []


def test_the_trace_of_who_declares_it_is_not_stored(box: todoku.App, world: World) -> None:
    """Two processes declare the same plan, whatever spans they are in."""
    trace = pytest.importorskip("opentelemetry.sdk.trace")

    @box.job
    def work() -> None: ...

    with trace.TracerProvider().get_tracer("test").start_as_current_span("declaring"):
        box.schedule("traced", work.using(headers={"who": "me"}), every=HOUR)
    assert box.plans["traced"].message.headers == '{"who":"me"}'


def test_messages_of_an_encrypted_job_are_sealed_when_they_are_fired(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a worker without the master key says so instead of storing them in plain."""
    stranger = todoku.App(world.url)
    monkeypatch.setenv("TODOKU_MASTER_KEYS", format_master_key("k1", os.urandom(32)))
    box = todoku.App(world.url)

    @box.every(HOUR, encrypted=True)
    def secret() -> None: ...

    @box.job(encrypted=True)
    def told(name: str) -> None: ...

    with pytest.raises(todoku.InvalidSetting, match="told is encrypted, and a schedule keeps its arguments"):
        box.schedule("told", told.call("canary"), every=HOUR)
    declare(world.store, box.plans)
    world.advance(3600)
    world.store.schedules.announce(["secret"])
    firing_of(stranger, world.store).fire_due()
    assert slots_fired(world) == []
    assert "there is no master key" in (row(box, "secret").error or "")
    firing_of(box, world.store).fire_due()
    assert len(slots_fired(world)) == 1
    (claim,) = world.claim(world.worker())
    assert kind_of(claim.content_type) is not None
    assert box.outbox.opener.open(claim).payload == "{}"
    assert row(box, "secret").error is None
    for app in (box, stranger):
        app.close()


# ---------------------------------------------------------------------------------- what a person does


def test_a_paused_schedule_fires_nothing_and_resumes_with_its_next_slot(
    box: todoku.App, world: World, hourly: Any
) -> None:
    """What was missed in the pause is not made up for."""
    box.schedules.pause("hourly", by="ada", why="the warehouse moves")
    world.advance(3 * 3600)
    firing_of(box).fire_due()
    assert slots_fired(world) == []
    assert shown(box, "hourly").overdue == 0
    box.schedules.resume("hourly", by="ada", why="it has moved")
    box.migrate()
    firing_of(box).fire_due()
    assert slots_fired(world) == []
    slot = until_next(box, world, "hourly")
    firing_of(box).fire_due()
    assert slots_fired(world) == [slot]
    assert audit(world) == [
        ("ada", "pause", "schedule:hourly", "the warehouse moves"),
        ("ada", "resume", "schedule:hourly", "it has moved"),
    ]


def audit(world: World) -> list[tuple[Any, ...]]:
    return world.sql("select by, action, target, why from todoku_audit order by id")


def test_resuming_what_is_not_paused_swallows_no_slot(box: todoku.App, world: World, hourly: Any) -> None:
    slot = until_next(box, world, "hourly")
    box.schedules.resume("hourly", **ADA)
    firing_of(box).fire_due()
    assert slots_fired(world) == [slot]


def test_run_now_publishes_one_message_and_moves_nothing(box: todoku.App, world: World, hourly: Any) -> None:
    before = row(box, "hourly")
    woken: list[int] = []
    box.outbox.wake = lambda: woken.append(1)
    box.schedules.pause("hourly", **ADA)
    one, two = (box.schedules.run_now("hourly", **ADA) for _ in range(2))
    assert one is not None
    assert two is not None
    assert one.id != two.id
    after = row(box, "hourly")
    assert (after.next_run_at, after.last_message_id, after.paused) == (before.next_run_at, two.id, True)
    assert ran(box, world) == [None, None]
    assert woken == [1, 1]
    assert [entry[:3] for entry in audit(world)][1:] == [("ada", "run now", "schedule:hourly")] * 2


def test_a_schedule_is_stored_changed_and_removed_at_run_time(box: todoku.App, world: World) -> None:
    """Nobody declares it: the database keeps it, and any worker fires it."""

    @box.job
    def work(n: int) -> None: ...

    assert box.schedules.add("mine", work.call(1), every=60, **ADA) == row(box, "mine").next_run_at
    assert (shown(box, "mine").source, shown(box, "mine").when) == ("stored", "every 60 s")
    box.schedules.add("mine", work.call(2), cron="0 9 * * *", tz="Asia/Tokyo", missed="skip", **ADA)
    changed = shown(box, "mine")
    assert (changed.when, changed.tz, changed.missed) == ("0 9 * * *", "Asia/Tokyo", "skip")
    world.advance(30 * 86_400)
    moved_back(box, world, "mine", now(world))
    stranger = todoku.App(world.url)
    firing_of(stranger, world.store).fire_due()
    assert len(slots_fired(world)) == 1
    box.schedules.remove("mine", **ADA)
    assert box.schedules.list() == ()
    assert len(world.deliveries()) == 1
    assert [entry[1] for entry in audit(world)] == ["schedule", "schedule", "remove"]
    stranger.close()


def test_what_code_declares_is_changed_there(box: todoku.App, world: World, hourly: Any) -> None:
    for act in (
        lambda: box.schedules.remove("hourly", **ADA),
        lambda: box.schedules.add("hourly", hourly, every=60, **ADA),
        lambda: box.schedules.remove("hourly", **ADA, dry_run=True),
        lambda: box.schedules.add("hourly", hourly, every=60, **ADA, dry_run=True),
    ):
        with pytest.raises(InvalidAct, match="'hourly' is declared by an App"):
            act()  # type: ignore[no-untyped-call]
    assert shown(box, "hourly").when == "every 3600 s"
    assert audit(world) == []
    world.advance(3 * 3600)  # nobody has announced it for long
    box.schedules.remove("hourly", **ADA)
    assert box.schedules.list() == ()


def test_a_dry_run_changes_nothing(box: todoku.App, world: World, hourly: Any) -> None:
    before = box.store.schedules.rows()
    box.schedules.add("new", hourly, every=60, **ADA, dry_run=True)
    box.schedules.pause("hourly", **ADA, dry_run=True)
    box.schedules.resume("hourly", **ADA, dry_run=True)
    assert box.schedules.run_now("hourly", **ADA, dry_run=True) is None
    (after,) = box.store.schedules.rows()
    assert msgspec.structs.replace(after, now=before[0].now) == before[0]
    assert (audit(world), world.deliveries()) == ([], [])


@pytest.mark.parametrize("act", ["remove", "pause", "resume", "run_now"])
@pytest.mark.parametrize("dry_run", [False, True])
def test_an_act_on_no_schedule_says_so(box: todoku.App, world: World, act: str, dry_run: bool) -> None:
    with pytest.raises(InvalidAct, match="there is no schedule 'nobody'"):
        getattr(box.schedules, act)("nobody", **ADA, dry_run=dry_run)
    with pytest.raises(InvalidAct, match="who and why"):
        getattr(box.schedules, act)("nobody", by="ada", why=" ")
    assert audit(world) == []


async def test_async_code_has_twins_and_is_told_of_them(box: todoku.App, world: World) -> None:
    @box.job
    def work() -> None: ...

    await box.schedules.aadd("mine", work, every=60, **ADA)
    assert [one.name for one in await box.schedules.alist()] == ["mine"]
    await box.schedules.apause("mine", **ADA)
    await box.schedules.aresume("mine", **ADA)
    message = await box.schedules.arun_now("mine", **ADA)
    assert message is not None
    for call in (
        box.schedules.list,
        lambda: box.schedules.add("mine", work, every=60, **ADA),
        lambda: box.schedules.pause("mine", **ADA),
        lambda: box.schedules.resume("mine", **ADA),
        lambda: box.schedules.run_now("mine", **ADA),
        lambda: box.schedules.remove("mine", **ADA),
    ):
        with pytest.raises(BlockingCall, match=r"await box\.schedules\.a"):
            call()  # type: ignore[no-untyped-call]
    await box.schedules.aremove("mine", **ADA)
    assert await asyncio.to_thread(world.sql, "select count(*) from todoku_schedule") == [(0,)]


def test_doctor_names_what_is_overdue_broken_or_not_declared_any_more(
    box: todoku.App, world: World, hourly: Any
) -> None:
    def told() -> list[tuple[str, str]]:
        return [(found.level, found.text) for found in examine(box.store, box.settings) if found.what == "schedules"]

    assert told() == [("ok", "1, none of them overdue")]
    box.schedules.add("mine", hourly, every=60, **ADA)
    world.advance(3 * 3600)
    levels = {text.split(" ")[0]: (level, text) for level, text in told()}
    assert levels["mine"][0] == "warn"
    assert "has been due for" in levels["mine"][1]
    assert levels["hourly"] == ("warn", "hourly is not declared by any App any more, so it does not fire")
    box.store.schedules.record_failure("mine", "tz cannot be 'Mars'")
    assert ("problem", "mine cannot be fired: tz cannot be 'Mars'") in told()


# ---------------------------------------------------------------------------------------------- bad input


def test_bad_input_is_refused_where_it_is_said_and_nothing_is_stored(box: todoku.App, world: World) -> None:
    """Issue 4: bad cron, unknown time zone: a clear error naming the field."""

    @box.job
    def work(n: int) -> None: ...

    call: Any = work.call(1)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"cron": "61 * * * *"}, "cron cannot be '61 [*] [*] [*] [*]': bad minute"),
        ({"cron": "0 9 * * *", "tz": "Asia/Tokio"}, "tz cannot be 'Asia/Tokio'"),
        ({"every": 0}, "every cannot be 0"),
        ({"every": -5}, "every cannot be -5"),
        ({"every": 60, "cron": "0 9 * * *"}, "needs either cron or every"),
        ({}, "needs either cron or every"),
        ({"every": 60, "missed": "never"}, "missed cannot be 'never'"),
    ]
    for given, told in wrong:
        with pytest.raises(todoku.InvalidSetting, match=told):
            box.schedule("mine", call, **given)
        with pytest.raises(todoku.InvalidSetting, match=told):
            box.schedules.add("mine", call, **given, **ADA)
    for name in ("", "x" * 300, "a\nb", None):
        with pytest.raises(todoku.InvalidSetting, match="name cannot be"):
            box.schedules.add(name, call, every=60, **ADA)  # type: ignore[arg-type]
    with pytest.raises(todoku.NoRoute):
        box.schedules.add("mine", "nobody.listens", {}, every=60, **ADA)
    with pytest.raises(InvalidAct, match="who and why"):
        box.schedules.add("mine", call, every=60, by="", why="")
    assert box.plans == {}
    assert world.sql("select count(*) from todoku_schedule") == [(0,)]
    assert audit(world) == []


def test_a_decorator_refuses_what_cannot_be(box: todoku.App) -> None:
    def work(n: int) -> None: ...

    with pytest.raises(todoku.InvalidSetting, match="cron cannot be 'daily'"):
        box.cron("daily")
    with pytest.raises(todoku.InvalidSetting, match="tz cannot be 'Moon'"):
        box.cron("0 9 * * *", tz="Moon")
    with pytest.raises(todoku.InvalidSetting, match=r"every cannot be 0\.2"):
        box.every(0.2)
    with pytest.raises(todoku.InvalidMessage, match="missing a required argument: 'n'"):
        box.cron("0 9 * * *")(work)
    with pytest.raises(todoku.InvalidMessage, match="Expected `int`, got `str`"):
        box.cron("0 9 * * *", name="other", args=("7",))(work)
    job = box.job("third")(work)
    with pytest.raises(todoku.InvalidSetting, match="a job has its own options"):
        box.cron("0 9 * * *", queue="mail", args=(1,))(job)
    box.cron("0 9 * * *", args=(1,))(job)
    with pytest.raises(todoku.InvalidSetting, match="two schedules named 'third'"):
        box.every(60, args=(1,))(job)
    for option in ({"tx": object()}, {"at": datetime.now(UTC)}, {"idempotency_key": "k"}, {"best_effort": True}):
        with pytest.raises(todoku.InvalidSetting, match=f"a scheduled call has no {next(iter(option))}"):
            box.schedule("fourth", job.using(**option).call(1), every=60)
    with pytest.raises(todoku.InvalidSetting, match="a call has its own payload"):
        box.schedule("fourth", job.call(1), {"n": 1}, every=60)
    assert list(box.plans) == ["third"]
