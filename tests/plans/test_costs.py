"""MEND-1: no plan of ours contains a node that our own settings disable.

The queries of the line run with sequential and bitmap scans disabled. Where the planner has no other way it takes one
all the same, at a cost of 1e10, and a PostgreSQL that was built with LLVM (Debian, RDS, Cloud SQL) then compiles the
query each time it runs: 0.1 took a second for a message there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from tests.plans import filling
from tests.plans.explaining import ExplainingPostgres, disabled
from tests.plans.test_plans import SITUATIONS, arrange, drive, publishing
from tests.support.world import SOMEBODY
from todoku.app import new_id
from todoku.core.message import Draft
from todoku.core.search import Criteria
from todoku.core.topic_pattern import Route
from todoku.engine.publish import MessageOptions, draft
from todoku.store.data_keys import DataKeyStore
from todoku.store.postgres.planner_settings import PIN_PLANS
from todoku.store.publish import publish
from todoku.store.sql import load, restyle
from todoku.store.statistics import Statistics
from todoku.store.store import Store
from todoku.store.tokens import TokenStore

pytestmark = pytest.mark.postgres

# Read in transactions that leave the plan to the planner: lists of small tables, charts, copies, and `verify`.
UNPINNED = {
    "api_keys", "data_key_days", "ended", "ended_sampled", "history_days", "known", "seqs_of_ids", "series", "workers",
}  # fmt: skip
_PLACEHOLDER = re.compile(r"%\((\w+)\)s")
_STATEMENT = re.compile(r"\s*(select|with|insert|update|delete)\b")


def pinned_queries() -> Iterator[tuple[str, str]]:
    """Every query that runs with pinned plans, with `$1` for its first parameter; no fragments."""
    for name, query in load("todoku.store.postgres").items():
        if name in UNPINNED or name.startswith("verify_") or not _STATEMENT.match(query):
            continue
        text = restyle(query, "pyformat")
        for place, parameter in enumerate(dict.fromkeys(_PLACEHOLDER.findall(text)), 1):
            text = text.replace(f"%({parameter})s", f"${place}")
        yield name, text.replace("%%", "%").rstrip("; \n")


@pytest.mark.parametrize("rows", ["empty", "filled"])
def test_no_pinned_query_has_a_disabled_node(postgres_url: str, rows: str) -> None:
    """MEND-1: by the generic plan, which needs no values, so that no query is left out."""
    wrong: dict[str, list[str]] = {}
    looked_at = 0
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        if rows == "filled":
            filling.fill_postgres(connection, every=100)
            connection.execute("analyze")
        for name, query in pinned_queries():
            with connection.transaction(force_rollback=True):
                connection.execute(f"{PIN_PLANS}; set local plan_cache_mode = force_generic_plan")  # type: ignore[arg-type]
                try:
                    connection.execute(f"prepare explained as {query}")  # type: ignore[arg-type]
                except psycopg.errors.UndefinedTable:
                    assert name.startswith(("copy_", "failed_event")), name  # tables that are there only meanwhile
                    continue
                number = len(set(re.findall(r"\$\d+", query)))
                values = f"({', '.join(['null'] * number)})" if number else ""
                ((plan,),) = connection.execute(f"explain (format json) execute explained {values}").fetchall()  # type: ignore[arg-type]
            connection.execute("deallocate all")
            looked_at += 1
            if found := disabled(plan[0]["Plan"]):
                wrong[name] = found
    assert wrong == {}
    assert looked_at > 200


@pytest.mark.slow
@pytest.mark.parametrize("situation", SITUATIONS)
def test_no_plan_that_ran_has_a_disabled_node(postgres_url: str, situation: str) -> None:
    """MEND-1: as the store runs them, with values, generic and custom; what lists whole tables is not pinned."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        arrange(situation, connection)
    database = ExplainingPostgres(postgres_url)
    store = Store(database, ledger_ttl=3600)
    drive(store)
    look(store, database)
    database.publish_as_caller(publish(publishing(database), [plain_draft()]))
    database.publish_as_caller(publish(publishing(database), [plain_draft(), plain_draft()]))
    store.close()
    wrong = {
        f"{query} ({mode})": found
        for (query, mode), plans in database.plans.items()
        for plan in plans
        if (found := disabled(plan))
    }
    assert wrong == {}
    assert {"limits", "publish", "publish_one", *UNPINNED - {"ended_sampled", "history_days"}} <= {
        query for query, _ in database.plans
    }


def look(store: Store, database: ExplainingPostgres) -> None:
    """What a worker asks every second, and what a person asks."""
    store.queues.pause("d0", SOMEBODY, paused=True)
    assert store.limits.read().queues
    assert store.destinations.known().queues
    store.statistics.counts()
    store.leases.held_by([worker.id for worker in store.leases.workers()], most=5)
    store.hooks()
    store.search.find(Criteria(ids=(1,)))
    store.attempts.tail(since=0)
    DataKeyStore(database).days()
    TokenStore(database).rows()
    until = datetime.now(UTC).replace(microsecond=0)
    Statistics(database).series(since=until - timedelta(minutes=1), until=until, width=60)
    store.rates.flows(since=until - timedelta(minutes=1), until=until, width=60)
    store.samples.successes(most=100)
    store.samples.failures(since=until - timedelta(hours=1), most=100)
    store.depths.queues()
    store.depths.running()
    store.depths.dead_reasons()


def plain_draft() -> Draft:
    """A message without a key, as most are."""
    routes = [Route(pattern="**", destination="d0", queue="d0")]
    return draft(new_id(), "order.created", {}, MessageOptions(), routes, max_payload_bytes=1024)
