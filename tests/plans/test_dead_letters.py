"""Dead letters are grouped and counted from an index alone: with 100,000 of them, their rows are not read."""

from __future__ import annotations

import psycopg
import pytest

from tests.plans import filling
from tests.plans.explaining import MODES, ExplainingPostgres, ExplainingSqlite, nodes
from tests.support.world import World
from todoku.store.deliveries import DeliveryStore, Filter
from todoku.store.statistics import Statistics

QUERIES = ("dead_groups", "dead_causes", "count_dead_matching")
DEAD = 2_000


def drive(statistics: Statistics, deliveries: DeliveryStore) -> None:
    for by_fingerprint in (False, True):
        groups = statistics.dead_letters(by_fingerprint=by_fingerprint)
        assert sum(group.number for group in groups) == DEAD
    assert deliveries.count(Filter(status="aborted"), most=200_000) == DEAD
    assert deliveries.count(Filter(status="aborted", destination="d0", fingerprint=""), most=200_000) == DEAD // 4


@pytest.mark.postgres
def test_groups_and_counts_come_from_the_index_on_postgresql(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        filling.fill_postgres(connection)
        connection.execute("vacuum (analyze) todoku_delivery")
    database = ExplainingPostgres(postgres_url)
    drive(Statistics(database), DeliveryStore(database))
    for query in QUERIES:
        for mode in MODES[: 1 if query == "count_dead_matching" else 2]:  # its filter is known to a custom plan only
            for plan in database.plans[query, mode]:
                scans = [node for node, _ in nodes(plan) if node.get("Relation Name") == "todoku_delivery"]
                whole = [node for node in scans if node.get("Index Name") != "todoku_delivery_pkey"]  # an example's row
                assert {(node["Node Type"], node["Index Name"]) for node in whole} == {
                    ("Index Only Scan", "todoku_delivery_cause")
                }, (query, mode, plan)
    database.close()


def test_groups_and_counts_come_from_the_index_on_sqlite(sqlite_url: str) -> None:
    world = World("sqlite", sqlite_url)
    world.store.migrate()
    world.close()
    filling.fill_sqlite(sqlite_url)
    database = ExplainingSqlite(sqlite_url)
    drive(Statistics(database), DeliveryStore(database))
    plans = {name: " ".join(plan) for name, _, plan in database.plans}
    for query in QUERIES:
        assert "todoku_delivery_cause" in plans[query], plans[query]
        assert "TEMP B-TREE FOR GROUP BY" not in plans[query], "the groups come in the order of the index"
    database.close()
