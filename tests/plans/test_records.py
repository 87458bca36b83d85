"""A chart of an hour costs an hour of history, however much there is of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tests.conformance.test_records import ended_each
from tests.plans.explaining import ExplainingPostgres, ExplainingSqlite, nodes
from tests.support.world import World
from todoku.store.statistics import Statistics

START = datetime(2026, 1, 2, 3, tzinfo=UTC)
SPAN = {"since": START, "until": START + timedelta(minutes=1), "width": 60}


@pytest.mark.postgres
def test_the_blocks_of_a_span_are_found_by_an_index_on_postgresql(postgres_url: str) -> None:
    world = World("postgres", postgres_url)
    ended_each(world, START, 1.0)
    world.close()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("vacuum (analyze) todoku_history_default")  # sums up the blocks, as autovacuum does
    database = ExplainingPostgres(postgres_url)
    assert Statistics(database).series(**SPAN).points[0].succeeded == 60  # type: ignore[arg-type]
    (plan, *_) = database.plans["series", "force_custom_plan"]
    found = list(nodes(plan))
    assert any("finished" in node.get("Index Name", "") for node, _ in found), plan
    assert [node["Relation Name"] for node, _ in found if "Relation Name" in node] == ["todoku_history_default"], (
        "other days are not looked at"
    )
    database.close()


def test_a_span_is_found_by_the_index_on_sqlite(sqlite_url: str) -> None:
    world = World("sqlite", sqlite_url)
    world.store.migrate()
    ended_each(world, START, 1.0)
    world.close()
    database = ExplainingSqlite(sqlite_url)
    assert Statistics(database).series(**SPAN).points[0].succeeded == 60  # type: ignore[arg-type]
    plans = {name: " ".join(plan) for name, _, plan in database.plans}
    for query, index in (("series_size", "history_finished"), ("series", "history_finished"),
                         ("series_failed", "attempt_ended")):  # fmt: skip
        assert f"todoku_{index}" in plans[query], plans[query]
        assert "SCAN todoku" not in plans[query]
    database.close()
