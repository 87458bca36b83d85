"""The page of one message reads by indexes: its cost does not depend on how many others there are."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from tests.plans import filling
from tests.plans.explaining import MODES, ExplainingPostgres, ExplainingSqlite, nodes
from tests.plans.test_plans import gated_draft, publishing
from todoku.store.columns import moment
from todoku.store.publish import publish
from todoku.store.store import Store

QUERIES = (
    "message", "find_of_message", "attempts", "audits", "find_followers", "followers_beyond", "labelled_messages",
    "delivery", "finished_delivery", "known_message", "history_from",
)  # fmt: skip


def look(store: Store) -> None:
    """Everything that the page reads of the message of a delivery that waits, and of one that succeeded."""
    assert store.deliveries.get(50_000) is not None
    (message,) = store.run(publish(publishing(store.database), [gated_draft()]))
    assert store.messages.story(message.id) is not None
    now = moment(store.ping())
    window = (now - timedelta(hours=1), now)
    store.messages.find_followers(message.id, [window], needles=["x"])
    store.messages.find_labelled(["blue"])
    assert store.deliveries.get(10_000_000) is None


def test_on_sqlite_every_table_is_read_by_an_index(sqlite_url: str) -> None:
    database = ExplainingSqlite(sqlite_url)
    store = Store(database, ledger_ttl=60)
    store.migrate()
    filling.fill_sqlite(sqlite_url)
    look(store)
    plans: dict[str, str] = {name: " ".join(plan) for name, _, plan in database.plans}
    assert set(QUERIES) <= plans.keys()
    for name in QUERIES:
        for table in ("message", "delivery", "history", "attempt", "label", "audit"):
            assert f"SCAN todoku_{table}" not in plans[name], (name, plans[name])
    store.close()


@pytest.mark.postgres
def test_on_postgresql_every_table_is_read_by_an_index(postgres_url: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        filling.fill_postgres(connection)
        connection.execute("analyze")
    database = ExplainingPostgres(postgres_url)
    store = Store(database, ledger_ttl=60)
    look(store)
    for name in QUERIES:
        for mode in MODES:
            for plan in database.plans[name, mode]:
                kinds: list[Any] = [node["Node Type"] for node, _ in nodes(plan)]
                assert "Seq Scan" not in kinds, (name, mode, plan)
    store.close()
