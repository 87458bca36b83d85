"""Steps, signals and calls of runs are found by indexes, whatever the statistics say; no table is walked."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any
from uuid import UUID

import psycopg
import pytest

from tests.plans import filling
from tests.plans.explaining import MODES, ExplainingPostgres, ExplainingSqlite, nodes
from todoku.app import new_id
from todoku.core.errors import NotThere
from todoku.core.flow import KeyedRun, StepRow
from todoku.core.identity import key_hash
from todoku.core.message import Claimed
from todoku.core.sealed import SEALED
from todoku.store.database import Database, Tx
from todoku.store.publish import Publishing
from todoku.store.runs import SealedRun, signal
from todoku.store.store import Store

QUERIES = {
    "steps", "store_steps", "stored_step", "take_signal", "call_run", "call_keyed_run", "take_back_call",
    "run_data_keys", "signal", "keyed_runs", "call_runs", "has_run_calls", "heed_run_calls", "run_of", "undoing",
    "undoable", "mark_undo", "mark_undone", "prune_messages", "has_steps", "parked_number", "parked_sample",
}  # fmt: skip
_STEP = """
insert into todoku_step (message_seq, step_key, number, name, kind, state, awaits, started_at, ended_at, epoch)
select {first} + place, 'wait:1', 1, 'wait', 'wait', case when n % 2 = 0 then 'open' else 'done' end,
       case when n % 2 = 0 then 'approval' || n end, {now}, {now}, 1 from {numbers} where true
"""
_SIGNAL = """
insert into todoku_signal (message_seq, name, payload, created_at)
select {first} + place, 'approval', '1', {now} from {numbers} where true
"""
_CALL = """
insert into todoku_run_call (message_seq, awaits)
select {first} + place, 'approval' || n from {numbers} where n > 80000
"""
_KEYS = """
insert into todoku_data_key (id, day, master_key_id, wrapped, created_at)
select {new_id}, '2026-11-16', 'k', {sealed}, {now} from {numbers} where n < 5000
"""
KEY, SEALED_RUN = "order 7", UUID(int=8)
SEALED_BYTES = "01" + UUID(int=9).hex + "00" * 40
_KEYED = f"update todoku_message set key_hash = '{key_hash(KEY)}', scope = 'publish:order.created' where seq = 50000"
_SEALED = f"""
update todoku_message set id = '{SEALED_RUN}', content_type = '{SEALED};of=application/json', payload = null,
       payload_bytes = {{sealed}} where seq = 50001
"""
SCRIPT = (_STEP, _SIGNAL, _CALL)
CLAIM: Any = {"id": 98_500, "epoch": 0, "message_seq": 98_500, "worker": UUID(filling.GONE)}
DONE = StepRow("charge:1", 2, "charge", "step", "done", result="1")
WAIT = StepRow("wait:2", 3, "wait", "wait", "open", awaits="approval")


def claim() -> Claimed:
    """A run of a worker, as far as the store looks at it."""
    fields: dict[str, Any] = dict.fromkeys(Claimed.__struct_fields__)
    return Claimed(**(fields | CLAIM))


def drive(store: Store, message_id: UUID) -> None:
    """Each query once."""
    runs, mine, database = store.runs, claim(), store.database
    assert runs.store_steps([(mine, DONE)]) == set()
    runs.take_signal(mine, "approval", str, WAIT)
    assert len(runs.steps(mine.message_seq)) == 3
    _send(store, message_id)
    assert runs.standing(message_id) is not None
    assert runs.heed_calls() > 0
    _count_parked(database)
    runs.mark_undone(mine.message_seq, "charge:1")
    _in_endings(database, mine.message_seq, message_id)
    store.retention.prune(history_ttl=0.0)


def _count_parked(database: Database) -> None:
    """What a scrape asks of a place."""
    place: dict[str, Any] = {"queue": "default", "destination": "d0", "priority": 0, "soonest": 0.0, "latest": 1e10}

    def work(tx: Tx) -> None:
        tx.rows("has_steps")
        tx.rows("parked_sample", most=100, **place)
        tx.rows("parked_number", most=10_000, **place)

    database.read(work)


def _send(store: Store, message_id: UUID) -> None:
    """Signals: by the id, by a key that no run has, by one that a run has, and to an encrypted run."""
    database = store.database
    to = Publishing(database.dialect, database.queries, database.now())
    store.run(signal(to, message_id, "approval", "1", lambda _, text: text))
    for key in ("none", KEY):
        with suppress(NotThere):
            store.run(signal(to, KeyedRun(key, ("order.created",)), "approval", "1", lambda _, text: text))
    with pytest.raises(LookupError):
        store.run(signal(to, SEALED_RUN, "approval", "1", _no_key))
    assert store.runs.keyed(KEY) == []  # it has no mark of a run


def _no_key(run: SealedRun, text: str) -> str:
    raise LookupError(run.message_id)


def _in_endings(database: Database, message_seq: int, message_id: UUID) -> None:
    """What the end of a batch, and of a run, asks."""

    def work(tx: Tx) -> None:
        tx.rows("call_runs", awaits=["approval500", str(new_id())])
        tx.rows("undoing", ids=[CLAIM["id"]])
        tx.rows("undoable", message_ids=[str(message_id)])
        tx.rows("mark_undo", message_seq=message_seq, arguments=None)

    database.write("settle", work)


@pytest.mark.postgres
@pytest.mark.slow
@pytest.mark.parametrize("analysed", ["full", "empty", "never"])
def test_PostgreSQL_finds_what_a_run_needs_by_indexes(postgres_url: str, analysed: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        filling.without_autovacuum(connection)
        if analysed == "empty":  # the statistics of the first minute
            connection.execute("analyze")
        filling.fill_postgres(connection)
        numbers = f"(select place, place as n from generate_series(1, {filling.ROWS}) place) numbers"
        filled = {"first": 0, "now": "todoku_now()", "numbers": numbers, "new_id": "gen_random_uuid()"}
        filled["sealed"] = f"decode('{SEALED_BYTES}', 'hex')"
        for statement in (*SCRIPT, _KEYS, _KEYED, _SEALED):
            connection.execute(statement.format(**filled))
        if analysed == "full":
            connection.execute("analyze")
        ((id,),) = connection.execute("select id from todoku_message where seq = 50000").fetchall()
    database = ExplainingPostgres(postgres_url)
    drive(Store(database, ledger_ttl=60), id)
    database.close()
    assert {name for name, _ in database.plans} >= QUERIES
    walked = {
        (name, mode, node["Relation Name"])
        for name in QUERIES
        for mode in MODES
        for plan in database.plans[name, mode]
        for node, _ in nodes(plan)
        if node["Node Type"] == "Seq Scan" and (name, node["Relation Name"]) != ("signal", "todoku_worker")
    }
    assert walked - {("has_run_calls", mode, "todoku_run_call") for mode in MODES} == set()  # the first row is enough


@pytest.mark.slow
@pytest.mark.parametrize("analysed", [True, False])
def test_SQLite_finds_what_a_run_needs_by_indexes(sqlite_url: str, analysed: bool) -> None:
    database = ExplainingSqlite(sqlite_url)
    store = Store(database, ledger_ttl=60)
    store.migrate()
    filling.fill_sqlite(sqlite_url)
    numbers = f"""with recursive numbers(n, place) as (
        select 1, 1 union all select n + 1, place + 1 from numbers where n < {filling.ROWS})"""
    now = "(cast(strftime('%s', 'now') as integer) * 1000000)"
    filled = {"first": 0, "now": now, "numbers": "numbers", "new_id": "hex(randomblob(16))"}
    filled["sealed"] = f"x'{SEALED_BYTES}'"
    filling.change_sqlite(
        sqlite_url,
        *(numbers + statement.format(**filled) for statement in (*SCRIPT, _KEYS)),
        *(statement.format(**filled) for statement in (_KEYED, _SEALED)),
        *(["analyze"] if analysed else []),
        f"update todoku_message set id = '{UUID(int=7)}' where seq = 50000",
    )
    drive(store, UUID(int=7))
    store.close()
    assert {name for name, _, _ in database.plans} >= QUERIES
    walked = {
        (name, step)
        for name, _, plan in database.plans
        for step in plan
        if name in QUERIES and re.match(r"SCAN (todoku_\w+|[cdmsl])\b", step) and not re.search("USING|VIRTUAL", step)
    }
    # The first call, or step, is enough; calls are taken from the oldest on; a chunk of messages read by its key.
    allowed = {("has_run_calls", "SCAN todoku_run_call"), ("heed_run_calls", "SCAN c"), ("prune_messages", "SCAN c")}
    allowed |= {("has_steps", "SCAN todoku_step")}
    assert walked - allowed == set()
