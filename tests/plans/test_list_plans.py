"""What a claim compares with the lists of other workers is hashed, however large their table has grown on disk."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest

from tests.plans.explaining import MODES, ExplainingPostgres, nodes
from todoku.app import App, new_id
from todoku.core.decision import SUCCEEDED
from todoku.core.topic_pattern import Route
from todoku.engine.publish import MessageOptions, draft
from todoku.store.claim_lists import Listing
from todoku.store.database import Slice
from todoku.store.publish import Publishing, publish
from todoku.store.store import Store

pytestmark = pytest.mark.postgres

FORGOTTEN = 1500
"""Lists that were removed and not vacuumed: some ten seconds of a drain."""

FEW = 1000
"""The planner's guess must not grow with the table."""

COMPARING = ("claim", "claim_list", "claim_lane_list", "claim_lane_rows", "settle_lanes")


@pytest.fixture
def database(postgres_url: str) -> Iterator[ExplainingPostgres]:
    """A database in use: no statistics yet, and the places of many lists that are over."""
    App(postgres_url).migrate()
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute("alter table todoku_claim_list set (autovacuum_enabled = false)")
        admin.execute(
            "insert into todoku_claim_list (worker_id, ids, first_id, last_id, claimed_at)"
            " select gen_random_uuid(), array(select generate_series(1, 500)), 1, 500, now()"
            " from generate_series(1, %s)",
            (FORGOTTEN,),
        )
        admin.execute("delete from todoku_claim_list")
    database = ExplainingPostgres(postgres_url)
    yield database
    database.close()


def test_what_lists_name_is_taken_for_few_and_hashed(database: ExplainingPostgres) -> None:
    store = Store(database, ledger_ttl=3600)
    for ordered in (False, True):
        routes = [Route(pattern="**", destination="d", queue="d", ordered=ordered)]
        for key in ("a", "b", "c"):
            one = draft(new_id(), "order.created", {}, MessageOptions(key=key), routes, max_payload_bytes=1024)
            store.run(publish(Publishing(database.dialect, database.queries, database.now()), [one]))
    worker, listing = uuid4(), Listing(("d",), 1)
    store.leases.register(worker, name="plans", lease=600)
    listed = store.claims.take(worker, [Slice("d", "d", 0)], limit=1, listing=listing)
    by_row = store.claims.take(worker, [Slice("d", "d", 0)], limit=1)
    lanes = store.claims.take_lanes(worker, [("d", "d")], lanes=1, limit=1, listing=listing)
    lanes += store.claims.take_lanes(worker, [("d", "d")], lanes=1, limit=1)
    claims = [*listed, *by_row, *lanes]
    assert len(claims) == 4
    assert not store.claims.settle([(claim, SUCCEEDED) for claim in claims]).lost
    for query in COMPARING:
        for mode in MODES:
            (plan, *_) = database.plans[query, mode]
            scans = [(node, above[-1]) for node, above in nodes(plan) if node.get("CTE Name") in ("named", "mine")]
            assert scans, f"{query} compares with no list"
            for scan, parent in scans:
                assert scan["Plan Rows"] <= FEW, f"{query}, {mode}: {scan['Plan Rows']} rows of {scan['CTE Name']}"
                if "SubPlan" in parent.get("Filter", ""):
                    assert "hashed SubPlan" in parent["Filter"], f"{query}, {mode}"
