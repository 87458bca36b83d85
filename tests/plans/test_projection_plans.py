"""What a projection reads of large tables is found by an index, and never by walking the table."""

from __future__ import annotations

import re

import psycopg
import pytest

from tests.plans import filling
from tests.plans.explaining import MODES, ExplainingPostgres, ExplainingSqlite, nodes
from todoku.store.projections import ProjectionStore

DEAD = {"delivery_dead", "delivery_cause"}
INTENDED: dict[str, set[str]] = {
    "projection_lag": {"lane_due", "lane_owner", "lane_parked", "delivery_lane", "message_pkey"},
    "unfinished_lanes": {"delivery_lane"},
    "projection_dead": {"message_key", "message_key_seq", "message_pkey", "delivery_message", *DEAD},
    "projection_dead_letters": {"message_pkey", *DEAD},
}
"""The indexes that each query may use. The last two are for rare reads: by the keys, or by the dead letters."""


def drive(store: ProjectionStore) -> None:
    """Each query of a projection that reads deliveries, on 100,000 of them."""
    store.lag("d1")
    store.unfinished("d1", ["k1", "k2"])
    store.dead("d1", ["k1", "k2"])
    store.dead_letters("d1", 0, 100)


@pytest.mark.postgres
@pytest.mark.slow
@pytest.mark.parametrize("analysed", [True, False])
def test_PostgreSQL_reads_projections_by_indexes(postgres_url: str, analysed: bool) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        filling.fill_postgres(connection)
        if analysed:
            connection.execute("analyze")
    database = ExplainingPostgres(postgres_url)
    drive(ProjectionStore(database))
    database.close()
    for query, indexes in INTENDED.items():
        for mode in MODES:
            found = [node for plan in database.plans[query, mode] for node, _ in nodes(plan)]
            assert found, (query, mode)
            used = {node["Index Name"].removeprefix("todoku_") for node in found if "Index Name" in node}
            walked = [node["Relation Name"] for node in found if node["Node Type"] == "Seq Scan"]
            assert (used - indexes, walked) == (set(), []), (query, mode)


@pytest.mark.slow
def test_SQLite_reads_projections_by_indexes(sqlite_url: str) -> None:
    database = ExplainingSqlite(sqlite_url)
    database.migrate()
    filling.fill_sqlite(sqlite_url)
    drive(ProjectionStore(database))
    database.close()
    ran = {query for query, _, _ in database.plans}
    assert ran >= INTENDED.keys()
    walked = [
        (query, step)
        for query, _, plan in database.plans
        if query in INTENDED
        for step in plan
        if re.match(r"SCAN (todoku_\w+|[dmn])\b", step) and "USING" not in step
    ]
    assert walked == []
