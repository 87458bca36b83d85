"""A session is found by its keys, however many there are, and the expired ones by their index."""

from __future__ import annotations

import psycopg
import pytest

from tests.plans.explaining import ExplainingPostgres, ExplainingSqlite, nodes
from tests.support.world import World
from todoku.store.sessions import Person, SessionStore
from todoku.store.users import UserStore

ADA = Person(kind="user", subject="ada", name="ada", role="viewer")
FILL = {
    "sqlite": (
        "with recursive n(i) as (select 1 union all select i + 1 from n where i < 20000) "
        "insert into todoku_session select 'h' || i, 'user', 'u' || i, 'n', 'viewer', 'c', 0, 1e18, 1e18 from n"
    ),
    "postgres": (
        "insert into todoku_session select 'h' || i, 'user', 'u' || i, 'n', 'viewer', 'c', now(), 'infinity', "
        "'infinity' from generate_series(1, 20000) i"
    ),
}


def use(sessions: SessionStore, users: UserStore) -> None:
    assert sessions.by_hash("h7", idle=60.0) is None  # there is no user u7
    sessions.record_use("h7", every=60.0)
    sessions.end_all(ADA)
    sessions.end("none")
    users.by_name("ada")
    users.rows(limit=10)


def test_on_sqlite_every_query_is_by_an_index(sqlite_url: str) -> None:
    world = World("sqlite", sqlite_url)
    world.store.migrate()
    world.sql(FILL["sqlite"].replace("1e18", "9000000000000000000"))
    world.close()
    database = ExplainingSqlite(sqlite_url)
    use(SessionStore(database), UserStore(database))
    plans = {name: " ".join(plan) for name, _, plan in database.plans}
    assert {"session", "see_session", "end_sessions", "end_session", "user", "users"} <= plans.keys()
    for name, plan in plans.items():
        assert "SCAN todoku" not in plan.replace("SCAN todoku_copy", ""), (name, plan)
    database.close()


@pytest.mark.postgres
@pytest.mark.parametrize("analysed", [True, False])
def test_on_postgresql_no_query_reads_all_sessions(postgres_url: str, analysed: bool) -> None:
    world = World("postgres", postgres_url)
    world.sql(FILL["postgres"])
    world.close()
    if analysed:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("vacuum (analyze) todoku_session")
    database = ExplainingPostgres(postgres_url)
    use(SessionStore(database), UserStore(database))
    for (name, _), plans in database.plans.items():
        for plan in plans:
            for node, _ in nodes(plan):
                whole = node["Node Type"] == "Seq Scan" and node.get("Relation Name") == "todoku_session"
                assert not whole, (name, plan)
    database.close()
