"""Limits that people set at run time: what running workers read, every second or so, in one cheap statement."""

from __future__ import annotations

import time
from uuid import UUID

import pytest

from tests.support.world import SOMEBODY, World
from todoku.store.values import Limit, Limits, Signed

QUIET = Limits((), (), ())


def unlimited(name: str, **what: object) -> Limit:
    """A limit that says only `what`."""
    fields: dict[str, object] = {
        "name": name, "paused": False, "concurrency": None, "rate": None, "open_until": 0.0, "failures": 0,
    }  # fmt: skip
    return Limit(**(fields | what))  # type: ignore[arg-type]


def audited(world: World) -> list[tuple[str, ...]]:
    """Every act of a person, in order."""
    return world.sql("select by, action, target, why from todoku_audit order by id")


def test_where_nobody_said_anything_there_is_nothing_to_read(world: World) -> None:
    world.publish(3)
    world.store.announce(["warehouse", "mail"])
    assert world.store.limits() == QUIET


def test_a_limit_is_read_as_it_was_set_and_is_audited(world: World) -> None:
    world.store.set_limit("mail", Signed("ana", "the provider complains"), of="queue", concurrency=3, rate=2.5)
    world.store.set_limit("http", SOMEBODY, of="destination", concurrency=None, rate=0.1, lasts=1800)
    limits = world.store.limits()
    assert limits.queues == (unlimited("mail", concurrency=3, rate=2.5),)
    assert limits.destinations == (unlimited("http", rate=0.1),)
    assert audited(world) == [
        ("ana", "limit to 3 at once and 2.5/s", "queue:mail", "the provider complains"),
        ("somebody", "limit to 0.1/s for 1800 s", "destination:http", "a test"),
    ]


def test_a_limit_states_all_of_it_and_none_takes_it_away(world: World) -> None:
    """The second limit of a name replaces the first; a pause beside it stays."""
    world.store.set_queue("mail", SOMEBODY, paused=True)
    world.store.set_limit("mail", SOMEBODY, of="queue", concurrency=3, rate=2.0, lasts=5)
    world.store.set_limit("mail", SOMEBODY, of="queue", concurrency=None, rate=1.0)
    world.advance(10)
    assert world.store.limits().queues == (unlimited("mail", paused=True, rate=1.0),)
    world.store.set_limit("mail", SOMEBODY, of="queue", concurrency=None, rate=None)
    assert world.store.limits().queues == (unlimited("mail", paused=True),)
    world.store.set_queue("mail", SOMEBODY, paused=False)
    assert world.store.limits() == QUIET
    assert [row[1] for row in audited(world)][-2:] == ["limit off", "resume"]


@pytest.mark.parametrize("of", ["queue", "destination"])
def test_a_limit_for_some_time_ends_by_itself_by_the_databases_clock(world: World, of: str) -> None:
    """I12."""
    world.store.set_limit("mail", SOMEBODY, of=of, concurrency=1, rate=1.0, lasts=30)  # type: ignore[arg-type]
    world.advance(25)
    assert world.store.limits() != QUIET
    world.advance(10)
    assert world.store.limits() == QUIET


def test_a_pause_outlives_the_limit_beside_it(world: World) -> None:
    world.store.set_queue("mail", SOMEBODY, paused=True)
    world.store.set_limit("mail", SOMEBODY, of="queue", concurrency=1, rate=None, lasts=5)
    world.advance(10)
    assert world.store.limits().queues == (unlimited("mail", paused=True),)


def test_a_limit_touches_neither_the_breaker_nor_the_policy_of_its_destination(world: World) -> None:
    world.store.set_breaker("http", open_for=60, failures=5)
    world.store.set_on_abort("http", skip=True)
    world.store.set_limit("http", SOMEBODY, of="destination", concurrency=1, rate=None)
    (http,) = world.store.limits().destinations
    assert (http.concurrency, http.failures) == (1, 5)
    assert 0 < http.open_until - time.time() <= 61
    world.advance(120)
    assert world.store.limits().destinations == (unlimited("http", concurrency=1, failures=5),)
    assert world.sql("select on_abort from todoku_destination") == [("skip",)]


def test_a_limit_announces_no_destination(world: World) -> None:
    """UNKNOWN_DESTINATION: a person's limit is no worker that knows the destination."""
    world.publish()
    world.store.set_limit("warehouse", SOMEBODY, of="destination", concurrency=1, rate=None)
    world.advance(700)
    assert world.store.expire(unknown_after=600) == (0, 1)


def test_the_workers_that_share_a_limit_are_the_live_leases_sorted(world: World) -> None:
    long = [world.worker(lease=60) for _ in range(5)]
    world.worker(lease=5)
    world.advance(10)
    alive = world.store.limits().workers
    assert sorted(alive, key=str) == list(alive)
    assert set(alive) == set(long)
    world.store.bury(long[0], lost=False)
    assert set(world.store.limits().workers) == set(long[1:])


def test_workers_tells_of_each_lease_and_what_it_holds(world: World) -> None:
    world.publish(5)
    busy, idle = world.worker(lease=60, name="busy"), world.worker(lease=5, name="idle")
    world.claim(busy, limit=3)
    world.store.renew(busy, lease=60, state="draining")
    world.advance(10)
    rows = {row.name: row for row in world.store.workers()}
    assert {name: (row.id, row.state, row.held) for name, row in rows.items()} == {
        "busy": (busy, "draining", 3),
        "idle": (idle, "running", 0),
    }
    assert all(isinstance(row.id, UUID) and row.started_at < row.expires_at for row in rows.values())
    assert rows["idle"].expires_at.timestamp() < world.store.ping() < rows["busy"].expires_at.timestamp()
