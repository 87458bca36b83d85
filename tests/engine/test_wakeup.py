"""A sleeping worker is woken: what its row says, and who writes it (DESIGN §4 Wake-up, H25, MEND-3).

`tests/model/wakeup.py` searches the same protocol exhaustively.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import pytest

from tests.support.crew import Crew, until
from tests.support.world import World
from todoku.core.outcome import Retry
from todoku.engine import claim
from todoku.engine.context import Context
from todoku.engine.worker.claimer import Claimer
from todoku.engine.worker.worker import Worker
from todoku.store.audit import Signed
from todoku.store.claims import ClaimStore, Waiting
from todoku.store.failpoint import armed, lose
from todoku.store.sqlite import file_watch

A_MINUTE = 60.0
"""The poll interval of these tests: what does not wake a worker is found by no poll."""


announcing = pytest.mark.parametrize("backend", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
"""Only on PostgreSQL do workers write that they sleep: on SQLite they watch the file."""

watching = pytest.mark.parametrize("backend", ["sqlite"], indirect=True)


def state_of(world: World, worker: Worker) -> str | None:
    """What the database says of this incarnation of a worker."""
    return next((row.state for row in world.store.leases.workers() if row.id == worker.health().worker_id), None)


def asleep(world: World, worker: Worker) -> None:
    """Wait until publishers can see that the worker sleeps."""
    until(lambda: state_of(world, worker) == "idle", what="sleep")


def publish_until(world: World, met: Callable[[], bool]) -> int:
    """Give the worker so much to do that it writes "running", which a few messages do not. Returns how much.

    By large portions: a worker that has a pause between two of them goes on wanting notices.
    """
    published = 0
    deadline = time.monotonic() + A_MINUTE
    while time.monotonic() < deadline:
        published += len(world.publish(1000))
        if met():
            return published
    raise AssertionError(f"the worker was given {published} messages, and did not say that it is running")


@contextmanager
def held_back(name: str, begin: Callable[[], None] = lambda: None) -> Iterator[threading.Event]:
    """A thread that reaches this failpoint waits there until the event is set. `begin` makes one reach it."""
    reached, go = threading.Event(), threading.Event()

    def hold_back() -> None:
        reached.set()
        assert go.wait(60)

    with armed(name, hold_back):
        begin()
        assert reached.wait(60)
        yield go


def test_MEND_3_a_renewal_leaves_the_state_alone(world: World) -> None:
    """H25: a heartbeat that wrote the state it had read before would undo "idle" behind the claimer's back."""
    worker = world.worker(lease=60)
    world.store.leases.set_state(worker, "idle")
    assert world.store.leases.renew(worker, lease=60)
    assert [row.state for row in world.store.leases.workers()] == ["idle"]


@announcing
def test_MEND_3_a_renewal_meets_the_claimer_on_the_row(world: World, crew: Crew) -> None:
    """H25: a renewal holds the row while the claimer wants to write its state: in the end the state stands there."""
    crew.handles("warehouse")
    waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    with crew.running(poll_interval_sec=A_MINUTE, lease_sec=8) as worker:
        asleep(world, worker)
        with held_back("renew.before_commit") as go:
            published = publish_until(world, lambda: world.sql(waits) == [(1,)])
            go.set()
            asleep(world, worker)
        world.publish()
        until(lambda: len(crew.seen) == published + 1, what="waking up")


@announcing
def test_MEND_3_a_new_incarnation_announces_its_sleep_anew(world: World, crew: Crew) -> None:
    """H25: the row of a new lease begins as "running"; a claimer that remembers the old row does not write "idle"."""
    crew.handles("warehouse")
    renewals: list[None] = []
    with (
        armed("renew.before_commit", lambda: renewals.append(None)),
        crew.running(poll_interval_sec=A_MINUTE, lease_sec=40) as worker,
    ):
        asleep(world, worker)
        first = worker.health().worker_id
        world.sql("delete from todoku_worker where id = ?", str(first))
        until(lambda: worker.health().worker_id != first, what="a new incarnation")
        before = len(renewals)
        asleep(world, worker)
        assert len(renewals) == before, "the worker's row waited for a renewal"
        world.publish()
        until(lambda: len(crew.seen) == 1, what="waking up")


@contextmanager
def lost_once(name: str) -> Iterator[threading.Event]:
    """The next pass of a failpoint loses the reply. The event says that it did."""
    lost = threading.Event()

    def lose_first() -> None:
        if not lost.is_set():
            lost.set()
            lose()

    with armed(name, lose_first):
        yield lost


@pytest.mark.parametrize("side", ["before", "after"])
@announcing
def test_MEND_3_a_lost_reply_leaves_the_state_unknown_and_it_is_written_again(
    world: World, crew: Crew, side: str
) -> None:
    """H25: whether the write was committed or not, in both directions: the worker's row says "idle" in the end."""
    crew.handles("warehouse")
    with crew.running(poll_interval_sec=A_MINUTE, lease_sec=600) as worker:
        published = 0
        for _ in range(2):
            asleep(world, worker)
            with lost_once(f"set_state.{side}_commit") as lost:
                published += publish_until(world, lost.is_set)
                until(lambda: len(crew.seen) == published, what="waking up")  # noqa: B023 - runs at once
                asleep(world, worker)


@pytest.fixture
def costly_scans(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each full scan has cost so much that the next one is an hour away, unless something else asks for it."""
    look = ClaimStore.waiting

    def look_at_great_cost(claims: ClaimStore, destinations: Sequence[str] | None) -> Waiting:
        found = look(claims, destinations)
        claims.seconds += 3600.0
        return found

    monkeypatch.setattr(ClaimStore, "waiting", look_at_great_cost)
    monkeypatch.setattr(claim, "_IDLE", 3600.0)


def test_MEND_3_a_notice_looks_everywhere_whatever_looks_have_cost(
    world: World, crew: Crew, costly_scans: None
) -> None:
    """H25: the first look of a worker took 15 to 30 ms, so a notice asked only the places that it knew: none."""
    crew.handles("warehouse")
    with crew.running(poll_interval_sec=A_MINUTE, lease_sec=600) as worker:
        if world.backend == "postgres":
            asleep(world, worker)
        else:
            until(lambda: worker.health().database_ok, what="the first beat")
        world.publish()
        until(lambda: len(crew.seen) == 1, what="waking up")


def test_a_worker_that_sleeps_is_woken_when_a_queue_is_resumed(world: World, crew: Crew) -> None:
    crew.handles("warehouse")
    world.store.queues.pause("warehouse", Signed("ada", "a test"), paused=True)
    world.publish()
    with crew.running(poll_interval_sec=A_MINUTE, lease_sec=600) as worker:
        if world.backend == "postgres":
            asleep(world, worker)
        else:
            until(lambda: worker.health().database_ok, what="the first beat")
        assert not crew.seen
        world.store.queues.pause("warehouse", Signed("ada", "a test"), paused=False)
        until(lambda: len(crew.seen) == 1, what="waking up")


@watching
def test_MEND_3_the_watch_of_a_file_begins_with_a_notice(world: World) -> None:
    """H25: a worker looks, and only then begins to watch the file: nothing else tells it of a commit in between."""
    noticed = threading.Event()
    world.publish()
    listener = world.store.listen(noticed.set, lambda: None)
    try:
        assert noticed.wait(60), "what was committed before the watch began is found by no notice"
    finally:
        listener.close()


@watching
def test_the_file_is_watched_less_often_for_a_busy_worker(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own commits change the file all the time, and it looks for more work by itself."""
    monkeypatch.setattr(file_watch, "_BUSY", A_MINUTE)
    begun, told = threading.Event(), threading.Event()
    listener = world.store.listen(lambda: told.set() if begun.is_set() else begun.set(), lambda: None, lambda: True)
    try:
        assert begun.wait(60)
        world.publish()
        assert not told.wait(0.2)
    finally:
        listener.close()


@watching
def test_a_worker_is_busy_while_it_works_and_is_woken_by_commits_afterwards(world: World, crew: Crew) -> None:
    crew.handles("warehouse")
    with crew.running(poll_interval_sec=A_MINUTE, lease_sec=600) as worker:
        until(lambda: worker._claimer, what="a claimer")
        claimer = cast("Claimer", worker._claimer)
        assert not claimer.is_busy()
        published = publish_until(world, claimer.is_busy)
        until(lambda: len(crew.seen) == published, what="all of them")
        until(lambda: not claimer.is_busy(), what="a pause")
        world.publish()
        until(lambda: len(crew.seen) == published + 1, what="waking up")


@announcing
def test_MEND_3_a_worker_that_has_said_it_sleeps_looks_everywhere_once_more(
    world: World, crew: Crew, costly_scans: None
) -> None:
    """H25: a publisher commits while the worker writes "idle": it saw no sleeping worker, so it gives no notice."""
    crew.handles("warehouse")
    published: list[None] = []

    def publish_once() -> None:
        if not published:
            published.append(None)
            world.publish()

    with (
        armed("set_state.before_commit", publish_once),
        crew.running(poll_interval_sec=A_MINUTE, lease_sec=600),
    ):
        until(lambda: len(crew.seen) == 1, what="the message without a notice")


@announcing
def test_MEND_3_a_worker_polls_soon_after_it_has_said_that_it_sleeps(
    world: World, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H25: these find a publisher that looked for sleepers before there was one and commits after the last look."""
    crew.handles("warehouse")
    happened: list[str | float] = []
    longest_wait = Claimer._longest_wait

    def noted(claimer: Claimer) -> float:
        happened.append(claimer._wait)
        return longest_wait(claimer)

    monkeypatch.setattr(Claimer, "_longest_wait", noted)
    with (
        armed("set_state.after_commit", lambda: happened.append("idle")),
        crew.running(poll_interval_sec=A_MINUTE, lease_sec=600) as worker,
    ):
        asleep(world, worker)
        until(lambda: happened[-1] != "idle", what="the first sleep")
    said = happened.index("idle")
    waits = [wait for wait in happened if isinstance(wait, float)]
    assert happened[said + 1] == min(waits), "it starts again with the shortest wait"


@announcing
def test_MEND_3_a_publisher_that_commits_while_the_worker_sleeps_is_found_without_a_notice(
    world: World, crew: Crew
) -> None:
    """The publisher looked for sleepers before there was one, so it gives no notice: polls find it."""
    crew.handles("warehouse")
    publisher = threading.Thread(target=world.publish)
    with (
        held_back("publish.before_commit", publisher.start) as go,
        crew.running(poll_interval_sec=A_MINUTE) as worker,
    ):
        asleep(world, worker)
        go.set()
        until(lambda: len(crew.seen) == 1, what="the message without a notice")
    publisher.join()


@announcing
def test_a_retry_that_is_due_soon_waits_for_no_notice(world: World, crew: Crew) -> None:
    """Nothing gives notice of it, however long the worker has slept before: polls begin anew after each attempt."""

    def fail_once(ctx: Context) -> None:
        crew.seen.append(ctx)
        if len(crew.seen) == 1:
            raise Retry(after=0.05)

    crew.handles("warehouse", fail_once, run="thread")
    with crew.running(poll_interval_sec=A_MINUTE, lease_sec=600) as worker:
        asleep(world, worker)
        assert worker._claimer is not None
        worker._claimer._state.idle_since -= A_MINUTE
        world.publish()
        until(lambda: len(crew.seen) == 2, what="the retry")


@announcing
def test_a_worker_that_may_not_claim_does_not_ask_to_be_woken(world: World, crew: Crew) -> None:
    """Publishers would give notice, at the price of a lock, to a worker that does nothing with it."""
    crew.handles("warehouse")
    with crew.running(enabled=False, poll_interval_sec=0.01) as worker:
        until(lambda: worker.health().database_ok, what="the first beat")
        assert state_of(world, worker) == "running"


def test_a_draining_worker_says_so_at_once(world: World, crew: Crew) -> None:
    """I11: `explain` and publishers see it in the worker's row, not only at the next renewal of the lease."""
    started, go = threading.Event(), threading.Event()

    def slow(_ctx: object) -> None:
        started.set()
        assert go.wait(60)

    crew.handles("warehouse", slow, run="thread")
    world.publish()
    with crew.running() as worker:
        assert started.wait(60)
        worker.drain()
        until(lambda: state_of(world, worker) == "draining", what="draining")
        go.set()


@announcing
def test_MEND_1_threads_without_work_do_not_wake_their_worker(
    world: World, crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle daemon costs next to nothing: a resting thread says once that it has room, not once a second."""
    crew.handles("warehouse", lambda _: None, run="thread")
    pokes: list[str] = []
    poke = Claimer.poke
    monkeypatch.setattr(Claimer, "poke", lambda claimer: (pokes.append(threading.current_thread().name), poke(claimer)))
    with crew.running(poll_interval_sec=A_MINUTE) as worker:
        asleep(world, worker)
        before = len(pokes)
        threading.Event().wait(2.5)  # nothing is to happen: more than two of the seconds after which threads look up
        assert pokes[before:] == []


@announcing
def test_a_lone_message_does_not_change_what_the_worker_s_row_says(world: World, crew: Crew) -> None:
    """H25: publishers go on giving notice. Two more transactions for each message would buy nothing."""
    written: list[None] = []
    crew.handles("warehouse")
    with crew.running(poll_interval_sec=A_MINUTE, lease_sec=600) as worker:
        asleep(world, worker)
        with armed("set_state.before_commit", lambda: written.append(None)):
            world.publish()
            until(lambda: world.store.statistics.counts().of("succeeded") == 1, what="the settle")
            assert written == []


@announcing
def test_a_worker_that_has_no_room_does_not_ask_to_be_woken(world: World, crew: Crew) -> None:
    """H25: a full pool finds nothing because it asks for nothing, and has no use for a notice."""
    go, renewals = threading.Event(), threading.Semaphore(0)

    def wait(ctx: Context) -> None:
        crew.seen.append(ctx)
        assert go.wait(60)

    crew.handles("warehouse", wait, run="thread")
    world.publish(number=5)
    with (
        armed("renew.before_commit", renewals.release),
        crew.running(poll_interval_sec=0.05, lease_sec=1, concurrency=1) as worker,
    ):
        until(lambda: crew.seen, what="the first of five")
        for _ in range(3):  # a second, in which it could fall asleep many times
            assert renewals.acquire(timeout=60)
        try:
            assert state_of(world, worker) == "running"
        finally:
            go.set()
        until(lambda: len(crew.seen) == 5, what="the rest")
        asleep(world, worker)
