"""Very many deliveries are sampled: neither whether there are many nor the sample itself walks over the table."""

from __future__ import annotations

import psycopg
import pytest

from tests.plans import filling
from tests.plans.explaining import MODES, ExplainingPostgres, ExplainingSqlite, nodes
from todoku.store import statistics
from todoku.store.statistics import Statistics

SAMPLES = {"size", "count_sample", "lag_sample"}


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is filled is very many."""
    monkeypatch.setattr(statistics, "COUNTED_EXACTLY", 100)
    monkeypatch.setattr(statistics, "LAG_COUNTED", 100)


def drive(found: Statistics) -> None:
    assert not found.counts().exact
    assert not found.lag(stuck_after=600).exact


@pytest.mark.postgres
def test_blocks_are_sampled_on_postgresql_and_only_the_newest_rows_counted(postgres_url: str) -> None:
    """The oldest lie behind the index entries of everything that was deleted while a backlog is drained."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        filling.fill_postgres(connection)
    database = ExplainingPostgres(postgres_url)
    drive(Statistics(database))
    for query in SAMPLES:
        for plan in (plan for mode in MODES[:2] for plan in database.plans[query, mode]):
            scans = [node for node, _ in nodes(plan) if node.get("Relation Name") == "todoku_delivery"]
            assert "Sample Scan" in {node["Node Type"] for node in scans}, (query, plan)
            rest = [node for node in scans if node["Node Type"] != "Sample Scan"]
            assert all(node["Scan Direction"] == "Backward" for node in rest), (query, plan)
    database.close()


def test_both_ends_of_the_ids_are_found_by_probes_on_sqlite(sqlite_url: str) -> None:
    database = ExplainingSqlite(sqlite_url)
    database.migrate()
    filling.fill_sqlite(sqlite_url)
    drive(Statistics(database))
    plans = {name: plan for name, _, plan in database.plans}
    for query in ("id_range", "edges", "count_sample", "lag_sample"):
        read = [line for line in plans[query] if "todoku_delivery" in line or " d " in line]
        assert read, plans[query]
        assert not [line for line in read if line.startswith("SCAN")], plans[query]
    database.close()
