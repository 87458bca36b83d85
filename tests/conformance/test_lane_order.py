"""Lanes keep order, whatever is interleaved: stories of publishers, workers and deaths that nobody thought of (I10).

test_lanes.py has the cases somebody did think of, and threads that meet by chance. Here every interleaving is drawn, so
one that breaks is found again. TODOKU_TEST_LANE_STORIES=1000 tells more of them, and makes what breaks short, which
takes minutes.

It can fail: with `worker_id = null` in settle_lanes, or with a lane that is ready as soon as any of its rows is and
gives what is due, one of the first few stories was out of order.
"""

from __future__ import annotations

import itertools
import json
import os
from typing import Any, Literal
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.support.ordering import Commits, Sent, order_problems
from tests.support.world import SOMEBODY, World, aborted, failed, snoozed
from todoku.core.decision import SUCCEEDED, Settlement
from todoku.core.message import Claimed
from todoku.store.deliveries import Filter
from todoku.store.join import run

STORIES = os.environ.get("TODOKU_TEST_LANE_STORIES")
QUICKLY = {Phase.reuse, Phase.generate}
PUBLISHERS, WORKERS, KEYS = 3, 2, 3
LEASE = 3600.0
NEVER_TOO_OFTEN = 1_000_000

publishers, workers, keys = (st.integers(0, number - 1) for number in (PUBLISHERS, WORKERS, KEYS))
outcomes = st.lists(st.sampled_from(["done", "retry", "done", "abort", "done", "snooze"]), min_size=1, max_size=5)
endings = st.sampled_from(["commit", "commit", "roll_back", "later"])
publishing = st.tuples(st.just("publish"), publishers, keys, st.integers(1, 4), endings)
working = st.tuples(st.just("work"), workers, st.integers(1, KEYS), st.integers(1, 8), outcomes)
trouble = st.one_of(
    st.tuples(st.just("die"), workers, st.booleans()),
    st.tuples(st.sampled_from(["lapse", "wait", "replay"])),
    st.tuples(st.sampled_from(["commit", "roll_back"]), publishers),
)
steps = st.lists(st.one_of(publishing, working, working, trouble), min_size=20, max_size=50)
numbers = itertools.count()


class Line:
    """A worker: what it holds, lane by lane, in the order it is to be run."""

    def __init__(self, world: World) -> None:
        self.id: UUID = world.worker(lease=LEASE)
        self.lanes: dict[int, list[Claimed]] = {}


class Story:
    """One destination, its publishers and workers, and what was sent."""

    def __init__(self, world: World, on_abort: Literal["skip", "block"]) -> None:
        self.world = world
        self.destination = f"story{next(numbers)}"
        self.skips = on_abort == "skip"
        world.store.destinations.set_on_abort(self.destination, skip=self.skips)
        self.names = itertools.count(1)
        self.open: dict[int, Any] = {}
        self.unsaid: dict[int, list[tuple[str, str]]] = {}
        self.commits = Commits()
        self.sent: list[Sent] = []
        self.lines = [Line(world) for _ in range(WORKERS)]
        self.zombies: list[list[Claimed]] = []
        for key in range(KEYS):
            self.publish(0, key, 3, "commit")

    # ---------------------------------------------------------------------------------------- publishers

    def publish(self, who: int, key: int, number: int, ending: str) -> None:
        """More messages in an open transaction, which ends now or later."""
        for other in [other for other, rows in self.unsaid.items() if other != who and self.in_the_way(rows, key)]:
            self.commit(other)  # it would be waited for
        rows = [(str(key), f"{key}.{next(self.names)}") for _ in range(number)]
        drafts = [
            draft
            for _, name in rows
            for draft in self.world.drafts(
                1, to=[self.destination], ordered=True, key=str(key), payload=lambda _, name=name: name,
                max_attempts=NEVER_TOO_OFTEN,
            )
        ]  # fmt: skip
        if who not in self.open:
            self.open[who] = self.world.connect()
        run(self.open[who], self.world.store.database.dialect, self.world.steps(drafts))
        self.unsaid[who] = self.unsaid.get(who, []) + rows
        if ending != "later":
            getattr(self, ending)(who)

    def in_the_way(self, rows: list[tuple[str, str]], key: int) -> bool:
        """SQLite has one lock for all lanes."""
        return self.world.backend == "sqlite" or str(key) in dict(rows)

    def let_write(self) -> None:
        """On SQLite nobody writes while a publisher has its transaction open: it ends before anybody would wait."""
        if self.world.backend == "sqlite":
            for who in list(self.open):
                self.commit(who)

    def commit(self, who: int) -> None:
        if who in self.open:
            self.commits.add(self.unsaid.pop(who))
            connection = self.open.pop(who)
            connection.commit()
            connection.close()

    def roll_back(self, who: int) -> None:
        if who in self.open:
            del self.unsaid[who]
            connection = self.open.pop(who)
            connection.rollback()
            connection.close()

    # ------------------------------------------------------------------------------------------- workers

    def work(self, who: int, lanes: int, limit: int, outcomes: list[str]) -> None:
        """Claim, and run as many as outcomes are given; what is not run stays in its hands."""
        self.let_write()
        line = self.lines[who]
        places = [(self.destination, self.destination)]
        for claim in self.world.store.claims.take_lanes(line.id, places, lanes=lanes, limit=limit):
            assert claim.lane is not None
            assert all(claim.lane not in other.lanes for other in self.lines if other is not line), "I3"
            line.lanes.setdefault(claim.lane, []).append(claim)
        for outcome in outcomes:
            if line.lanes:
                self.run(line, outcome)

    def run(self, line: Line, outcome: str) -> None:
        """Send the first one of a lane, and settle it; after anything but a success the rest of the lane is let go."""
        lane = min(line.lanes, key=lambda lane: len(line.lanes[lane]))
        claim, *rest = line.lanes.pop(lane)
        settlement, told = self.come_to(outcome)
        self.sent.append(Sent(claim.key or "", json.loads(claim.payload or ""), told))
        assert self.world.settle([claim], settlement).lost == ()
        if outcome == "done" and rest:
            line.lanes[lane] = rest
        elif rest:
            assert self.world.store.claims.release(rest) == ()

    def come_to(self, outcome: str) -> tuple[Settlement, Any]:
        match outcome:
            case "retry":
                return failed(delay=5.0), "again"
            case "snooze":
                return snoozed(delay=5.0), "again"
            case "abort":
                return aborted(), "skipped" if self.skips else "again"
            case _:
                return SUCCEEDED, "done"

    def die(self, who: int, after_sending: bool) -> None:
        """Its supervisor ends the lease; `after_sending`: it had just sent something, and nobody knows."""
        self.let_write()
        line = self.lines[who]
        if after_sending and line.lanes:
            first = line.lanes[min(line.lanes)][0]
            self.sent.append(Sent(first.key or "", json.loads(first.payload or ""), "died"))
        self.world.store.leases.end(line.id, lost=True, max_lost=NEVER_TOO_OFTEN)
        self.abandon(who)

    def lapse(self) -> None:
        """All leases run out, and somebody reclaims; the workers live on as zombies."""
        self.let_write()
        self.world.advance(LEASE + 1)
        self.world.store.leases.reclaim(max_lost=NEVER_TOO_OFTEN)
        for who in range(WORKERS):
            self.abandon(who)

    def abandon(self, who: int) -> None:
        self.zombies += self.lines[who].lanes.values()
        self.lines[who] = Line(self.world)

    def wait(self) -> None:
        self.world.advance(6.0)

    def replay(self) -> None:
        """A person lets a parked head run again. What was skipped is never asked for again here."""
        if not self.skips:
            self.let_write()
            self.world.store.acts.replay(Filter(destination=self.destination, status="aborted"), SOMEBODY)

    # ------------------------------------------------------------------------------------------- the end

    def finish(self) -> None:
        """What is open is committed or not, zombies try once more, and the rest is run."""
        for who in list(self.open):
            (self.commit if who % 2 else self.roll_back)(who)
        for claims in self.zombies:
            assert self.world.settle(claims).lost == tuple(claims), "I3: a stale token changes nothing"
        for _ in range(500):
            for who in range(WORKERS):
                self.work(who, KEYS, 10, [])
                while self.lines[who].lanes:
                    self.run(self.lines[who], "done")
            if not self.left():
                break
            self.wait()
            self.replay()
        for line in self.lines:
            self.world.store.leases.end(line.id, lost=False)

    def left(self) -> list[int]:
        """What should still arrive."""
        found = self.world.deliveries(destination=self.destination)
        return [one.id for one in found if not (self.skips and one.status == "aborted")]

    def check(self) -> None:
        assert self.left() == [], "stranded"
        assert order_problems(self.commits.by_key, self.sent) == []
        assert self.world.sql("select id from todoku_lane where destination = ?", self.destination) == []
        done = {one.name for one in self.sent if one.outcome == "done"}
        arrived = [one for one in self.world.history() if one.destination == self.destination]
        assert len(arrived) == len(done), "each succeeded once"


def test_messages_of_a_key_arrive_in_the_order_of_their_commits(world: World) -> None:
    """I10, I3: under retries, snoozes, aborts skipped or replayed, deaths, lapsed leases and open publishers."""

    @settings(
        max_examples=int(STORIES or 8), phases=QUICKLY | ({Phase.shrink} if STORIES else set()), deadline=None,
        print_blob=True, report_multiple_bugs=False, suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(story=steps, on_abort=st.sampled_from(["skip", "block"]))
    def told(story: list[tuple[Any, ...]], on_abort: Literal["skip", "block"]) -> None:
        one = Story(world, on_abort)
        try:
            for what, *how in story:
                getattr(one, what)(*how)
            one.finish()
        finally:
            for who in list(one.open):
                one.roll_back(who)
        one.check()

    told()


# --------------------------------------------------------------------------------- and the checker can find something


A, B, C = "a", "b", "c"


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        ([Sent("k", A, "done"), Sent("k", C, "done"), Sent("k", B, "done")], "c was sent before b was settled"),
        ([Sent("k", A, "again"), Sent("k", B, "done")], "b was sent before a was settled"),
        ([Sent("k", A, "died"), Sent("k", B, "done")], "b was sent before a was settled"),
        ([Sent("k", A, "done"), Sent("k", B, "done"), Sent("k", A, "done")], "a was sent after b"),
        ([Sent("k", A, "done"), Sent("k", B, "done")], "k had the effects ['a', 'b'] instead of ['a', 'b', 'c']"),
        ([Sent("k", "d", "done")], "d was sent and never committed"),
        ([Sent("other", A, "done")], "a was sent and never committed"),
    ],
)
def test_what_is_out_of_order_is_named(sent: list[Sent], problem: str) -> None:
    assert problem in order_problems({"k": [A, B, C]}, sent)


def test_only_what_is_explained_may_be_sent_again_after_its_follower() -> None:
    sent = [Sent("k", A, "done"), Sent("k", B, "died"), Sent("k", A, "done"), Sent("k", B, "done")]
    assert order_problems({"k": [A, B]}, sent, explained={A}) == []
    assert order_problems({"k": [A, B]}, sent, explained={B}) == ["a was sent after b"]


def test_what_is_in_order_is_no_problem() -> None:
    sent = [
        Sent("k", A, "again"), Sent("other", A, "done"), Sent("k", A, "died"), Sent("k", A, "done"),
        Sent("k", B, "skipped"), Sent("k", C, "done"), Sent("k", C, "done"),
    ]  # fmt: skip
    assert order_problems({"k": [A, B, C], "other": [A]}, sent) == []
