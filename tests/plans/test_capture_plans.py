"""The keys of captured rows may be millions: each query finds them by an index, and never walks the table."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from uuid import uuid4

import psycopg
import pytest

from tests.plans.explaining import MODES, ExplainingPostgres, ExplainingSqlite, nodes
from tests.support.world import SOMEBODY
from todoku.core.capture import TableRule
from todoku.store.capture_portions import Portion
from todoku.store.database import Database
from todoku.store.sqlite.database import file_path
from todoku.store.store import Store

KEYS = 100_000
BY_KEY, BY_GENERATION = "capture_key_pkey", "capture_key_generation"
OF_TABLES = {"capture_table_pkey", "capture_table_key_set_key"}
INTENDED: dict[str, set[str]] = {
    "add_capture_keys": OF_TABLES,
    "remove_capture_keys": {BY_KEY, *OF_TABLES},
    "stale_capture_keys": {BY_GENERATION, *OF_TABLES},
    "stray_key_sets": {BY_KEY, BY_GENERATION, *OF_TABLES},
    "prune_capture_keys": {BY_KEY},
}
"""The indexes that each query may use."""

FILL = "insert into todoku_capture_key (key_set, key, generation) select {key_set}, 'k' || n, 1 from {numbers}"
STRAY = 7
"""A set of keys that belongs to no table: the lowest."""


def drive(database: Database, fill: Callable[[int], None]) -> None:
    """Each query of the keys, on 200,000 of them."""
    store = Store(database, ledger_ttl=60)
    worker = uuid4()
    store.leases.register(worker, name="plans", lease=600)
    store.captures.declare("main", [TableRule(table="public.t", topic="t", key=("id",))], snapshot=True)
    fill(STRAY)
    generation = store.captures.restart("main", None, SOMEBODY).generation
    row = store.captures.take("main", worker)
    assert row is not None
    added, removed = [("public.t", f"k{n}") for n in range(500)], [("public.t", f"k{n}") for n in range(500, 900)]
    assert store.captures.store(row.fence, Portion(lsn=1, added=added, removed=removed), notify=False) == "stored"
    assert len(store.captures.stale_keys("main", "public.t", generation, 100)) == 100
    assert store.captures.measure(row.fence, behind=0, retained=0)


@pytest.mark.postgres
@pytest.mark.slow
@pytest.mark.parametrize("analysed", [True, False])
def test_PostgreSQL_finds_keys_by_indexes(postgres_url: str, analysed: bool) -> None:
    def fill(stray: int) -> None:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            numbers = f"generate_series(1, {KEYS}) as s(n)"
            for key_set in ("(select key_set from todoku_capture_table)", stray):
                connection.execute(FILL.format(key_set=key_set, numbers=numbers))
            if analysed:
                connection.execute("analyze")

    database = ExplainingPostgres(postgres_url)
    drive(database, fill)
    database.close()
    for query, indexes in INTENDED.items():
        for mode in MODES:
            found = [node for plan in database.plans[query, mode] for node, _ in nodes(plan)]
            assert found, (query, mode)
            used = {node["Index Name"].removeprefix("todoku_") for node in found if "Index Name" in node}
            walked = {node["Relation Name"] for node in found if node["Node Type"] == "Seq Scan"}
            assert (used - indexes, walked - {"todoku_capture_table"}) == (set(), set()), (query, mode)


@pytest.mark.slow
def test_SQLite_finds_keys_by_indexes(sqlite_url: str) -> None:
    def fill(stray: int) -> None:
        numbers = "(with recursive s(n) as (select 1 union all select n + 1 from s where n < {0}) select n from s)"
        connection = sqlite3.connect(file_path(sqlite_url))
        with connection:
            for key_set in ("(select key_set from todoku_capture_table)", stray):
                connection.execute(FILL.format(key_set=key_set, numbers=numbers.format(KEYS)))
        connection.close()

    database = ExplainingSqlite(sqlite_url)
    database.migrate()
    drive(database, fill)
    database.close()
    assert {query for query, _, _ in database.plans} >= INTENDED.keys()
    walked = [
        (query, step)
        for query, _, plan in database.plans
        if query in INTENDED
        for step in plan
        if re.match(r"SCAN (todoku_capture_key|k)\b", step)
    ]
    assert walked == []
