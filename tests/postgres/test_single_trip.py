"""One statement with begin and commit in one round trip, and all else as in three (decisions 43 and 48).

A publish of one message is such a statement, a claim without limits, the look for what waits, and a worker's state.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from tests.conformance.test_pgbouncer import pooled
from tests.postgres.conftest import Make
from tests.postgres.shop import BYTES, TEXT
from tests.support.crew import until
from tests.support.world import SOMEBODY, World
from todoku.core.decision import SUCCEEDED
from todoku.core.errors import DatabaseBusy, DatabaseUnavailable, StoreError
from todoku.core.message import Claimed
from todoku.store.database import Slice, Tx
from todoku.store.limits import UNCOUNTED, Counted
from todoku.store.postgres.single_trip import WARM, LoneTx
from todoku.store.postgres.transaction import adapt
from todoku.store.sql import Row, Statement

pytestmark = pytest.mark.postgres

OTHERS = "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
WAITING = f"select query {OTHERS} and wait_event_type = 'Lock'"


def end_backends(url: str) -> None:
    """The server ends every connection of the database, and sees to it that they are over."""
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"select pg_terminate_backend(pid) {OTHERS}")
        until(lambda: not admin.execute(f"select 1 {OTHERS}").fetchall(), what="the end of the backends")


def break_in_the_trip(url: str, act: Callable[[], object]) -> None:
    """The server ends the connection of `act` while its statement waits for a lock."""
    with ThreadPoolExecutor(1) as pool, psycopg.connect(url) as other, psycopg.connect(url, autocommit=True) as admin:
        other.execute("lock table todoku_delivery in access exclusive mode")
        acting = pool.submit(act)
        until(lambda: admin.execute(WAITING).fetchall(), what="a statement that waits")
        ((query,),) = admin.execute(WAITING).fetchall()
        assert "SECRET" not in query  # a payload is a parameter, which nobody else can read
        admin.execute(f"select pg_terminate_backend(pid) {OTHERS} and wait_event_type = 'Lock'")
        with pytest.raises(DatabaseUnavailable):
            acting.result(60)


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operation of each statement that was sent in one trip."""
    sent: list[str] = []
    run = LoneTx._run

    def noted(tx: LoneTx, text: str, values: Mapping[str, object]) -> list[Row]:
        rows = run(tx, text, values)
        sent.append(tx._operation)
        return rows

    monkeypatch.setattr(LoneTx, "_run", noted)
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
    assert trips == ["publish"]
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
    assert trips == ["publish"]


def test_a_connection_that_the_server_ended_is_replaced(warm: World) -> None:
    """Nothing was sent on it, so nothing is in doubt: the publish goes on over another connection."""
    end_backends(warm.url)
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
    break_in_the_trip(url, lambda: world.publish(payload=lambda _: "SECRET"))
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


# ---------------------------------------------------------------------------------------------------------- claims

HERE = [Slice("warehouse", "warehouse", 0)]


class Claiming:
    """A worker whose connection has its claim prepared."""

    def __init__(self, world: World, trips: list[str]) -> None:
        self.world = world
        self.trips = trips
        self.worker = world.worker()
        assert self.take() == []
        assert trips == ["claim"]  # what a worker runs it runs again: prepared at once
        trips.clear()

    def take(self, *slices: Slice, counted: Counted = UNCOUNTED) -> list[Claimed]:
        return self.world.store.claims.take(self.worker, slices or HERE, limit=10, counted=counted)


@pytest.fixture
def claiming(world: World, trips: list[str]) -> Claiming:
    return Claiming(world, trips)


def told(claims: list[Claimed]) -> list[tuple[object, ...]]:
    """What a claim says of its deliveries, without what every claim changes."""
    changing = ("epoch", "worker")
    return [
        tuple(getattr(claim, name) for name in Claimed.__struct_fields__ if name not in changing) for claim in claims
    ]


def test_a_claim_in_one_trip_says_what_one_in_three_says(claiming: Claiming) -> None:
    world = claiming.world
    world.publish(payload=lambda _: TEXT)
    world.publish(key="k", idempotency_key="i", headers={"a": TEXT}, expires=3600.5, max_attempts=3)
    world.publish(payload=lambda _: None)
    world.publish(payload=lambda _: BYTES)
    one = claiming.take()
    assert claiming.trips.count("claim") == 1
    world.store.claims.release(one)
    three = world.another_store(prepare_statements=False).claims.take(claiming.worker, HERE, limit=10)
    assert claiming.trips.count("claim") == 1
    assert len(one) == 4
    assert told(one) == told(three)
    assert [claim.epoch + 2 for claim in one] == [claim.epoch for claim in three]


def test_names_of_any_letters_are_claimed_in_one_trip(claiming: Claiming) -> None:
    name = 'a "b" \\ {c, d} NULL — €'
    claiming.world.publish()
    claiming.world.sql("update todoku_delivery set queue = ?, destination = ?", name, "NULL")
    assert len(claiming.take(*HERE, Slice(name, "NULL", 0))) == 1
    assert claiming.trips.count("claim") == 1


def test_I3_a_worker_whose_lease_ended_claims_nothing_in_one_trip(claiming: Claiming) -> None:
    claiming.world.publish()
    claiming.world.store.leases.end(claiming.worker, lost=False)
    assert claiming.take() == []
    assert claiming.trips.count("claim") == 1
    assert len(claiming.world.claim(claiming.world.worker())) == 1


def test_claims_that_count_limits_go_another_way(claiming: Claiming) -> None:
    claiming.world.publish(3)
    claiming.world.store.limits.set("warehouse", SOMEBODY, of="queue", concurrency=2, rate=None)
    assert len(claiming.take(counted=Counted(queues=frozenset({"warehouse"})))) == 2
    assert "claim" not in claiming.trips


def test_I13_a_claim_on_a_connection_that_the_server_ended_is_made_on_another(claiming: Claiming) -> None:
    """Nothing was sent on it, so nothing is in doubt, and no attempt is lost."""
    claiming.world.publish()
    end_backends(claiming.world.url)
    (claim,) = claiming.take()
    assert claim.attempt == 1


def test_H3_a_claim_whose_connection_breaks_in_the_trip_has_an_unknown_outcome(url: str, trips: list[str]) -> None:
    """What the worker owns without knowing it, if anything, the database can say."""
    patient = World("postgres", url)
    patient.store.migrate()
    claiming = Claiming(patient, trips)
    patient.publish()
    break_in_the_trip(url, claiming.take)
    assert patient.store.leases.owned(claiming.worker) == []
    (claim,) = claiming.take()
    assert (claim.attempt, claim.epoch) == (1, 1)
    patient.close()


def test_a_lock_that_a_claim_does_not_get_takes_nothing_and_spoils_nothing(claiming: Claiming) -> None:
    claiming.world.publish()
    with psycopg.connect(claiming.world.url) as other:
        other.execute("lock table todoku_delivery in access exclusive mode")
        with pytest.raises(DatabaseBusy):
            claiming.take()
    (claim,) = claiming.take()
    assert claim.attempt == 1


def test_a_claim_is_prepared_anew_after_a_rollback(claiming: Claiming) -> None:
    """psycopg drops everything that is prepared on a connection after one."""
    world = claiming.world

    def fail(tx: Tx) -> None:
        tx.rows("set_state", worker=claiming.worker, state="idle")
        raise ZeroDivisionError

    for _ in range(WARM + 1):  # so often that psycopg has prepared something of its own, too
        with pytest.raises(ZeroDivisionError):
            world.store.database.write("set_state", fail)
    world.publish()
    assert len(claiming.take()) == 1
    claiming.take()
    claiming.trips.clear()
    world.publish()
    assert len(claiming.take()) == 1
    assert "claim" in claiming.trips


def test_a_settle_is_prepared_when_it_runs_first(claiming: Claiming) -> None:
    world = claiming.world
    world.publish()
    (claim,) = claiming.take()
    world.store.claims.settle([(claim, SUCCEEDED)])

    def prepared(tx: Tx) -> list[Any]:
        return tx.statement(Statement("select statement from pg_prepared_statements where name like '_pg3%'", {}))

    statements = [text for (text,) in world.store.database.read(prepared)]
    assert len([text for text in statements if "todoku_history" in text]) == 1


def test_an_empty_list_is_bound_as_a_full_one_is() -> None:
    """As a literal: by psycopg's own adapter it would have another type, and its statement a plan for each."""
    assert [type(adapt(value)) for value in ([], (), [1], (1,))] == [str] * 4


def test_behind_a_pooler_of_transactions_claims_are_made_in_three_trips(url: str, trips: list[str]) -> None:
    with pooled(url) as through:
        world = World("postgres", through, connections=1)
        world.store.migrate()
        worker = world.worker()
        for _ in range(WARM + 3):
            world.publish()
            assert len(world.claim(worker)) == 1
        world.close()
    assert trips == []


# ---------------------------------------------------------------------------------------------------- transactions

SETTINGS = (
    "transaction_isolation", "transaction_read_only", "lock_timeout", "statement_timeout", "jit", "enable_seqscan",
    "idle_in_transaction_session_timeout", "enable_bitmapscan", "plan_cache_mode", "synchronous_commit",
)  # fmt: skip


@pytest.mark.parametrize("operation", ["publish", "claim", "set_state", None])
def test_a_transaction_of_one_trip_has_the_settings_of_one_of_three(
    make_database: Make, trips: list[str], operation: str | None
) -> None:
    """Whatever the database's own are. But a read (None) is planned once in one trip, and maybe more often in three."""
    url = make_database(default_transaction_isolation="serializable", lock_timeout="1h", enable_seqscan="on")
    world = World("postgres", url, lock_timeout_sec=0.3)
    names = [name for name in SETTINGS if operation is not None or name != "plan_cache_mode"]
    calls = [f"current_setting('{name}')" for name in names]
    shown = Statement(f"select {', '.join(calls)}", {})
    database = world.store.database

    def ask(tx: Tx) -> list[Any]:
        return tx.statement(shown)

    expected = database.read(ask) if operation is None else database.write(operation, ask)
    cold = WARM if operation in ("publish", "set_state") else 0
    for _ in range(cold + 2):
        found = database.read_alone(ask) if operation is None else database.write_alone(operation, ask)
        assert found == expected
    assert len(trips) == 2
    world.close()


def test_a_second_statement_in_a_transaction_of_one_is_refused(claiming: Claiming) -> None:
    """It would run in a transaction of its own, after the first was committed."""

    def both(tx: Tx) -> None:
        for _ in range(2):
            tx.rows("set_state", worker=claiming.worker, state="idle")

    database = claiming.world.store.database
    for _ in range(WARM):
        database.write_alone("set_state", both)
    with pytest.raises(StoreError, match="said to be alone"):
        database.write_alone("set_state", both)
