"""Alerts as all daemons on one database share them (DESIGN §8, S4-34…36): exactly one of many tells each."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from tests.support.world import SOMEBODY, World, aborted
from todoku.core.alert import LEASE, DueAlert, Name, Raised
from todoku.store.alerts import AlertStore
from todoku.store.deliveries import Filter

QUIET, REMIND = 60.0, 3600.0
DEAD: dict[Name, Raised] = {"dead_letters": Raised("dead_letters", 3.0, 0.0)}
SINKS = ("mail", "webhook")


def taken(alerts: AlertStore, found: dict[Name, Raised], *sinks: str) -> list[tuple[str, str]]:
    """(kind, sink) of what this daemon is to tell; it does not say that it has."""
    return [(one.kind, one.standing.sink) for one in take(alerts, found, *sinks)]


def take(alerts: AlertStore, found: dict[Name, Raised], *sinks: str) -> tuple[DueAlert, ...]:
    return alerts.take(found, sinks or SINKS, quiet=QUIET, remind=REMIND)


def told(alerts: AlertStore, found: dict[Name, Raised], *sinks: str) -> list[tuple[str, str]]:
    """As taken, and it is told."""
    found_ones = take(alerts, found, *sinks)
    for one in found_ones:
        alerts.record_sent(one, remind=REMIND)
    return [(one.kind, one.standing.sink) for one in found_ones]


def test_of_many_daemons_that_see_it_at_once_one_tells_each_sink(world: World) -> None:
    daemons = [world.another_store(lock_timeout_sec=60).alerts for _ in range(6)]
    together = Barrier(len(daemons))

    def look(alerts: AlertStore) -> list[tuple[str, str]]:
        together.wait()
        return taken(alerts, DEAD)

    with ThreadPoolExecutor(len(daemons)) as pool:
        seen = [one for some in pool.map(look, daemons) for one in some]
    assert sorted(seen) == [("begun", "mail"), ("begun", "webhook")]


def test_it_is_told_reminded_of_and_told_to_be_over(world: World) -> None:
    alerts = world.store.alerts
    assert told(alerts, DEAD, "mail") == [("begun", "mail")]
    assert told(alerts, DEAD, "mail") == []
    world.advance(REMIND)
    assert told(alerts, DEAD, "mail") == [("reminder", "mail")]
    assert told(alerts, {}, "mail") == []  # not seen just now: another daemon may see it
    world.advance(QUIET)
    assert told(alerts, {}, "mail") == [("over", "mail")]
    assert alerts.rows() == ()
    assert told(alerts, {}, "mail") == []


def test_what_one_daemon_cannot_tell_another_does(world: World) -> None:
    """It died, or its network did: after its lease it is anybody's."""
    first, second = world.store.alerts, world.another_store().alerts
    lost = take(first, DEAD, "mail")[0]
    world.advance(LEASE / 2)
    assert told(second, DEAD, "mail") == []
    world.advance(LEASE / 2)
    assert told(second, DEAD, "mail") == [("begun", "mail")]
    first.record_sent(lost, remind=1.0)  # it comes back: its token is of an earlier try
    (known,) = second.rows()
    assert known.next_at - (known.told_at or 0) == REMIND


def test_an_end_is_told_although_the_daemon_that_saw_it_is_gone(world: World) -> None:
    told(world.store.alerts, DEAD, "mail")
    world.advance(QUIET)
    assert told(world.another_store().alerts, {}, "mail") == [("over", "mail")]


def test_daemons_with_other_sinks_leave_each_others_alone(world: World) -> None:
    here, there = world.store.alerts, world.another_store().alerts
    assert told(here, DEAD, "mail") == [("begun", "mail")]
    assert told(there, DEAD, "sentry") == [("begun", "sentry")]
    world.advance(QUIET)
    assert told(there, {}, "sentry") == [("over", "sentry")]
    assert told(here, {}, "mail") == [("over", "mail")]


def test_the_age_of_dead_letters_is_that_of_the_one_that_died_first(world: World) -> None:
    """S4-34, S4-35. Not of its publication: it may have been retried for a day before it died."""
    assert world.store.alerts.unwanted_dead() == (0, 0.0)
    world.publish(2)
    world.advance(1000)
    world.settle(world.claim(world.worker(), 1), aborted())
    world.advance(500)
    world.settle(world.claim(world.worker(), 1), aborted())
    number, age = world.store.alerts.unwanted_dead()
    assert number == 2
    assert 500 <= age < 1000


def test_what_a_person_ended_on_purpose_is_no_news(world: World) -> None:
    messages = world.publish(3)
    ids = [delivery.id for delivery in world.deliveries()]
    assert len(messages) == len(ids)
    world.settle(world.claim(world.worker(), 1), aborted())
    world.store.acts.cancel(Filter(ids=(ids[1],)), SOMEBODY)
    world.store.acts.settle_by_hand(Filter(ids=(ids[2],)), SOMEBODY, succeeded=False)
    assert sorted(str(delivery.reason) for delivery in world.deliveries())[:2] == ["BY_HAND", "CANCELLED"]
    assert world.store.alerts.unwanted_dead()[0] == 1
