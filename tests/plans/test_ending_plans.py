"""What follows an end finds its rows by their keys, among however many batches (H20)."""

from __future__ import annotations

import sqlite3

import psycopg
import pytest

from tests.plans.explaining import MODES, ExplainingPostgres, ExplainingSqlite, nodes
from tests.support.world import SOMEBODY, World
from todoku.app import new_id
from todoku.core.decision import SUCCEEDED
from todoku.core.ending import Following, NewBatch, add_to_batch
from todoku.store.batches import begin
from todoku.store.deliveries import Filter
from todoku.store.publish import Publishing
from todoku.store.sqlite.database import file_path
from todoku.store.store import Store

BATCHES = 20_000
TABLES = ("batch", "delivery", "message")
INTENDED = {
    "over": {"delivery_pkey", "message_pkey"},
    "lock_batches": {"batch_pkey"},
    "count_batches": {"batch_pkey"},
    "finish_batches": {"batch_pkey"},
    "due_batches": {"batch_due"},
    "take_batch": {"batch_due"},
    "give_up_batches": {"batch_pkey"},
    "prune_batches": {"batch_done", "batch_pkey"},
    "batch": {"batch_pkey"},
}


def drive(world: World, store: Store) -> None:
    """Everything that touches a batch, once."""
    database = store.database
    to = Publishing(database.dialect, database.queries, database.now())
    ids = [new_id(), new_id()]
    for id in ids:
        drafts = tuple(add_to_batch(draft, id) for draft in world.drafts(2))
        next = Following((world.drafts(to=["then"])[0],))
        store.run(begin(to, [Following(drafts, NewBatch(id=id, total=2, on="succeeded", next=next))]))
    claims = world.claim(world.worker(), destinations=["warehouse"], store=store)
    store.claims.settle([(claim, SUCCEEDED) for claim in claims[:2]])
    store.claims.release(claims[2:])
    store.acts.cancel(Filter(ids=tuple(claim.id for claim in claims[2:])), SOMEBODY)
    store.acts.purge(Filter(ids=tuple(claim.id for claim in claims[2:])), SOMEBODY)
    world.sql("update todoku_batch set open = 0, aborted = 0, done_at = null where next is null and open = 0")
    assert store.follow_batches() > 0
    store.retention.prune(history_ttl=3600)
    assert store.batch(ids[0]) is not None


@pytest.mark.postgres
@pytest.mark.parametrize("analysed", [False, True])
def test_PostgreSQL_finds_batches_by_their_keys(postgres_url: str, analysed: bool) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(
            'insert into todoku_batch (id, total, open, succeeded, "on", created_at, done_at)'
            " select gen_random_uuid(), 2, n % 2, 2 - n % 2, 'finished', now(), case when n % 2 = 0 then now() end"
            f" from generate_series(1, {BATCHES}) n"
        )
        if analysed:
            connection.execute("analyze")
    world = World("postgres", postgres_url)
    database = ExplainingPostgres(postgres_url)
    store = Store(database, ledger_ttl=3600)
    drive(world, store)
    store.close()
    world.close()
    for query, indexes in INTENDED.items():
        for mode in MODES:
            assert database.plans[query, mode], query
            for plan in database.plans[query, mode]:
                scans = [node for node, _ in nodes(plan) if "Scan" in node["Node Type"] and "Relation Name" in node]
                scans = [node for node in scans if node["Relation Name"].removeprefix("todoku_") in TABLES]
                used = {node.get("Index Name", node["Node Type"]).removeprefix("todoku_") for node in scans}
                assert used == indexes, (query, mode, used)
                walked = {node["Index Name"] for node in scans if "Index Cond" not in node}
                assert walked <= {"todoku_batch_due"}, (query, mode, walked)


@pytest.mark.parametrize("analysed", [False, True])
def test_SQLite_finds_batches_by_their_keys(sqlite_url: str, analysed: bool) -> None:
    world = World("sqlite", sqlite_url)
    world.store.migrate()
    connection = sqlite3.connect(file_path(sqlite_url))
    with connection:
        connection.execute(
            f"with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < {BATCHES})"
            ' insert into todoku_batch (id, total, open, succeeded, "on", created_at, done_at)'
            " select lower(hex(randomblob(16))), 2, n % 2, 2 - n % 2, 'finished', 1,"
            " case when n % 2 = 0 then 9223372036854 end from numbers"
        )
        if analysed:
            connection.execute("analyze")
    connection.close()
    database = ExplainingSqlite(sqlite_url)
    store = Store(database, ledger_ttl=3600)
    drive(world, store)
    store.close()
    world.close()
    ran = {query for query, _, _ in database.plans}
    assert INTENDED.keys() - {"lock_batches"} <= ran
    walks = {
        (query, line)
        for query, _, plan in database.plans
        for line in plan
        if query in INTENDED and line.startswith(("SCAN todoku_", "SCAN b", "SCAN d", "SCAN m"))
    }
    assert walks <= {("due_batches", "SCAN todoku_batch USING COVERING INDEX todoku_batch_due")} | {
        ("due_batches", "SCAN todoku_batch USING INDEX todoku_batch_due")
    }
