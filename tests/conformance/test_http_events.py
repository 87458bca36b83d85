"""What happened to requests: told by the rows that are there anyway, newest first, page by page (S4-6, S4-28)."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest

from tests.support.requesting import Requesting, answered
from tests.support.world import SOMEBODY, World
from todoku.core.errors import InvalidMessage
from todoku.engine.http import request_events, requests
from todoku.engine.http.request_events import EventFilter, HttpEvent
from todoku.store.columns import moment
from todoku.store.deliveries import Filter


@pytest.fixture
def requesting(world: World) -> Requesting:
    return Requesting(world)


def everything(requesting: Requesting, wanted: EventFilter | None = None, *, limit: int = 1000) -> list[HttpEvent]:
    """All pages, newest first."""
    found: list[HttpEvent] = []
    cursor = None
    while True:
        page = request_events.find(requesting.outbox, wanted or EventFilter(), cursor=cursor, limit=limit)
        assert len(page.items) <= limit
        found += page.items
        if (cursor := page.cursor) is None:
            return found


def states(found: list[HttpEvent], id: UUID) -> list[str]:
    """What one message went through, oldest first."""
    return [event.state for event in reversed(found) if event.message_id == id]


def test_a_request_that_fails_twice_and_is_delivered_tells_all_of_it(requesting: Requesting, world: World) -> None:
    id = requesting.post()
    requesting.run(answered(500))
    requesting.run(answered(503))
    requesting.run()
    expected = ["CREATED", "ACTIVE", "ERROR", "RETRY", "ACTIVE", "ERROR", "RETRY", "DELIVERED"]
    assert states(everything(requesting), id) == expected
    assert states(everything(requesting, EventFilter(which=Filter(message_ids=(id,)))), id) == expected
    errors = [event for event in everything(requesting) if event.state == "ERROR"]
    assert [event.response.status for event in errors if event.response] == [503, 500]
    assert [event.attempt for event in errors] == [2, 1]
    assert world.history()


def test_a_dead_letter_failed_and_after_a_replay_it_is_still_told_that_it_had(requesting: Requesting) -> None:
    id = requesting.post()
    requesting.run(answered(500))
    requesting.run(answered(489, dead=True))
    dead = ["CREATED", "ACTIVE", "ERROR", "RETRY", "ACTIVE", "ERROR", "FAILED"]
    assert states(everything(requesting), id) == dead
    (failed,) = everything(requesting, EventFilter(states=("FAILED",)))
    assert failed.response is not None
    assert failed.response.status == 489
    requesting.world.store.acts.replay(Filter(), SOMEBODY)
    assert states(everything(requesting), id) == dead
    requesting.run()
    for wanted in (EventFilter(), EventFilter(which=Filter(message_ids=(id,)))):
        assert states(everything(requesting, wanted), id) == [*dead, "DELIVERED"]


def test_what_was_cancelled_was_asked_and_then_cancelled(requesting: Requesting) -> None:
    id = requesting.post()
    requests.cancel(requesting.outbox, id, SOMEBODY)
    assert states(everything(requesting), id) == ["CREATED", "CANCEL_REQUESTED", "CANCELED"]


def test_what_was_to_be_sent_again_and_then_cancelled_tells_both(requesting: Requesting) -> None:
    id = requesting.post()
    requesting.run(answered(500))
    requests.cancel(requesting.outbox, id, SOMEBODY)
    expected = ["CREATED", "ACTIVE", "ERROR", "RETRY", "CANCEL_REQUESTED", "CANCELED"]
    assert states(everything(requesting), id) == expected


def test_what_runs_is_active_and_in_progress_if_one_asks_so(requesting: Requesting) -> None:
    id = requesting.post()
    requesting.claim()
    assert states(everything(requesting), id) == ["CREATED", "ACTIVE"]
    assert states(everything(requesting, EventFilter(states=("IN_PROGRESS",))), id) == ["IN_PROGRESS"]
    requests.cancel(requesting.outbox, id, SOMEBODY)
    assert states(everything(requesting), id) == ["CREATED", "ACTIVE", "CANCEL_REQUESTED"]


def test_jobs_are_not_told_of(requesting: Requesting, world: World) -> None:
    world.publish(5, to=["warehouse"])
    requesting.run(answered(500, dead=True))
    world.publish(5, to=["warehouse"])
    requesting.run()
    assert everything(requesting) == []


def test_pages_of_any_size_tell_the_same_in_the_same_order_and_nothing_twice(
    requesting: Requesting, world: World
) -> None:
    """Twenty of one moment, of every kind, among failed attempts of jobs: a page may end between any two of them."""
    for n in range(20):
        requesting.post(labels=("odd",) if n % 2 else ())
    world.publish(10, to=["warehouse"])
    requesting.run(answered(500))
    requesting.world.store.acts.cancel(Filter(ids=(world.deliveries()[0].id,)), SOMEBODY)
    requesting.run()
    requesting.post()
    requesting.run(answered(500, dead=True))
    whole = everything(requesting)
    keys = [event.key for event in whole]
    assert keys == sorted(set(keys), reverse=True)
    assert len(whole) == 20 * 4 + 19 + 2 + 4
    for limit in (1, 3, 7, 50):
        assert [event.key for event in everything(requesting, limit=limit)] == keys
    odd = EventFilter(which=Filter(labels=("odd",)), states=("DELIVERED", "ERROR"))
    expected = [event.key for event in whole if event.state in odd.states and "odd" in event.request.labels]
    for limit in (1, 4, 100):
        assert [event.key for event in everything(requesting, odd, limit=limit)] == expected


def test_dates_and_states_and_what_requests_have_in_common_narrow_it(requesting: Requesting, world: World) -> None:
    first = requesting.post("https://a.example/x")
    requesting.run()
    world.advance(7200)
    between = moment(world.store.ping()) - timedelta(hours=1)
    second = requesting.post("https://b.example/y")
    requesting.run()
    delivered = EventFilter(states=("DELIVERED",))
    assert [event.message_id for event in everything(requesting, delivered)] == [second, first]
    late = EventFilter(states=("DELIVERED",), since=between)
    early = EventFilter(states=("DELIVERED",), until=between)
    assert [event.message_id for event in everything(requesting, late)] == [second]
    assert [event.message_id for event in everything(requesting, early)] == [first]
    hosts = EventFilter(which=Filter(hosts=("a.example",)), states=("DELIVERED",))
    assert [event.message_id for event in everything(requesting, hosts)] == [first]


def test_a_filter_that_few_pass_gives_short_pages_and_ends(requesting: Requesting) -> None:
    for _ in range(30):
        requesting.post()
    id = requesting.post(labels=("rare",))
    for _ in range(30):
        requesting.post()
    found = everything(requesting, EventFilter(which=Filter(labels=("rare",))), limit=1)
    assert [event.message_id for event in found] == [id]


@pytest.mark.parametrize("cursor", ["", "1", "a.b.c.d.e", "1.2.3.4", "-1.0.0.0.0", "9" * 50 + ".0.0.0.0", "1.9.0.0.0"])
def test_a_cursor_that_is_none_is_refused(requesting: Requesting, cursor: str) -> None:
    with pytest.raises(InvalidMessage, match="cursor"):
        request_events.find(requesting.outbox, cursor=cursor)


def test_a_state_that_is_none_is_refused(requesting: Requesting) -> None:
    with pytest.raises(InvalidMessage, match="state"):
        request_events.find(requesting.outbox, EventFilter(states=("CANCELLED",)))
