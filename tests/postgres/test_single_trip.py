"""A publish of one message is begin, insert and commit in one round trip, and all else is as in three (decision 43)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest

from tests.conformance.test_pgbouncer import pooled
from tests.postgres.conftest import Make
from tests.postgres.shop import TEXT
from tests.support.crew import until
from tests.support.world import World
from todoku.core.errors import DatabaseBusy, DatabaseUnavailable
from todoku.store.postgres.single_trip import WARM, SingleTrip

pytestmark = pytest.mark.postgres

OTHERS = "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
WAITING = f"select query {OTHERS} and wait_event_type = 'Lock'"


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One for each statement that was stored in one trip."""
    sent: list[str] = []
    run = SingleTrip.run

    def counted(*given: object) -> object:
        rows = run(*given)  # type: ignore[arg-type]
        if rows is not None:
            sent.append("sent")
        return rows

    monkeypatch.setattr(SingleTrip, "run", counted)
    return sent


@pytest.fixture
def url(make_database: Make) -> str:
    """A database in which a backslash in a plain literal is an escape, as in old ones."""
    return make_database(standard_conforming_strings="off", escape_string_warning="off")


@pytest.fixture
def world(url: str) -> Iterator[World]:
    world = World("postgres", url, lock_timeout_sec=0.3)
    world.store.migrate()
    yield world
    world.close()


@pytest.fixture
def warm(world: World, trips: list[str]) -> World:
    """A world whose connection has the statement prepared."""
    for _ in range(WARM + 1):
        world.publish()
    assert trips == ["sent"]
    return world


def test_a_connection_that_published_some_sends_the_rest_in_one_trip(warm: World, trips: list[str]) -> None:
    large = TEXT * 20_000  # more than a socket takes at once
    warm.publish(payload=lambda _: TEXT)
    warm.publish(payload=lambda _: large)
    assert len(trips) == 3
    worker = warm.worker()
    claims = warm.claim(worker)
    assert len(claims) == WARM + 3
    assert [TEXT, large] == [json.loads(claim.payload or "") for claim in claims[-2:]]


def test_what_needs_more_than_one_statement_goes_another_way(warm: World, trips: list[str]) -> None:
    warm.publish(idempotency_key="k")
    warm.publish(key="lane", ordered=True)
    warm.publish(2)
    assert trips == ["sent"]


def test_a_connection_that_the_server_ended_is_replaced(warm: World) -> None:
    """Nothing was sent on it, so nothing is in doubt: the publish goes on over another connection."""
    with psycopg.connect(warm.url, autocommit=True) as admin:
        admin.execute(f"select pg_terminate_backend(pid) {OTHERS}")
        until(lambda: not admin.execute(f"select 1 {OTHERS}").fetchall(), what="the end of the backends")
    warm.publish()
    assert warm.sql("select count(*) from todoku_message") == [(WARM + 2,)]


def test_I1_a_lock_that_is_not_had_stores_nothing_and_spoils_nothing(warm: World) -> None:
    with psycopg.connect(warm.url) as other:
        other.execute("lock table todoku_delivery in access exclusive mode")
        with pytest.raises(DatabaseBusy):
            warm.publish()
    warm.publish()
    assert warm.sql("select count(*) from todoku_message") == [(WARM + 2,)]


def test_I1_a_connection_that_breaks_in_the_trip_is_an_unknown_outcome(url: str, trips: list[str]) -> None:
    world = World("postgres", url)
    world.store.migrate()
    for _ in range(WARM + 1):
        world.publish()
    with ThreadPoolExecutor(1) as pool, psycopg.connect(url) as other, psycopg.connect(url, autocommit=True) as admin:
        other.execute("lock table todoku_delivery in access exclusive mode")
        publishing = pool.submit(world.publish, payload=lambda _: "SECRET")
        until(lambda: admin.execute(WAITING).fetchall(), what="a publish that waits")
        ((query,),) = admin.execute(WAITING).fetchall()
        assert "SECRET" not in query  # a payload is a parameter, which nobody else can read
        admin.execute(f"select pg_terminate_backend(pid) {OTHERS} and wait_event_type = 'Lock'")
        with pytest.raises(DatabaseUnavailable):
            publishing.result(60)
    world.publish()
    assert world.sql("select count(*) from todoku_message") == [(WARM + 2,)]
    world.close()


def test_behind_a_pooler_of_transactions_nothing_is_prepared_and_all_is_stored(url: str, trips: list[str]) -> None:
    """PgBouncer gives each transaction any server process, so nothing may be kept in one."""
    with pooled(url) as through:
        world = World("postgres", through, connections=1)
        world.store.migrate()
        for _ in range(WARM + 3):
            world.publish()
        world.close()
    assert trips == []
    with psycopg.connect(url) as direct:
        assert direct.execute("select count(*) from todoku_message").fetchall() == [(WARM + 3,)]
