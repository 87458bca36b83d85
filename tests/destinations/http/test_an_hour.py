"""A receiver that is down for an hour: nothing is lost; dead letters are found by reason, re-run and audited."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.destinations.http.receiving import Receiver, answer
from tests.destinations.http.test_worker import serves
from tests.support.crew import Crew
from tests.support.requesting import Requesting
from tests.support.world import World
from todoku.engine import operations
from todoku.store.audit import Signed
from todoku.store.deliveries import Filter

NUMBER = 20
RETRIES = 3


@pytest.fixture
def http(world: World) -> Requesting:
    return Requesting(world)


@pytest.mark.slow
def test_a_receiver_down_for_an_hour_loses_nothing(
    world: World, crew: Crew, http: Requesting, receiver: Receiver
) -> None:
    """Issue 6: three retries at 1, 2 and 4 s are long over by then; what was not delivered waits to be looked at."""
    receiver.reply = answer(503)
    serves(crew)
    asked = {
        http.post(f"{receiver.url}/{n}", retries=RETRIES, retry_delay="pow(2, retried) * 1000") for n in range(NUMBER)
    }
    for _ in range(60):
        crew.drain()
        world.advance(60)
    dead = world.deliveries(status="aborted")
    assert {row.message_id for row in dead} == asked, "each is there, and none of them anywhere else"
    assert {(row.reason, row.attempts) for row in dead} == {("HTTP_5XX", RETRIES + 1)}
    assert Counter(request.target for request in receiver.received) == {f"/{n}": RETRIES + 1 for n in range(NUMBER)}

    receiver.received.clear()
    receiver.reply = answer(204)
    done = operations.replay(world.store, Filter(reason="HTTP_5XX"), Signed("ada", "the receiver is back"))
    crew.drain()
    assert (done.matched, done.replayed) == (NUMBER, NUMBER)
    assert Counter(request.target for request in receiver.received) == {f"/{n}": 1 for n in range(NUMBER)}
    assert {row.message_id for row in world.history()} == asked
    audited = world.sql("select by, why, count(*) from todoku_audit where action = 'replay' group by by, why")
    assert audited == [("ada", "the receiver is back", NUMBER)]
