"""A search reads indexes from its cursor on, up to its bound, however large the tables are beside it (H20)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest

from tests.plans.explaining import ExplainingPostgres, ExplainingSqlite, Plan, disabled, nodes
from todoku.core.search import Criteria
from todoku.store.columns import moment
from todoku.store.sqlite.database import file_path
from todoku.store.store import Store

NUMBER = 20_000
LARGE = ("todoku_delivery", "todoku_message", "todoku_history", "todoku_label", "todoku_lane")
# In flight are only as many as workers can hold; names are those of the newest rows, up to a limit.
WALKED = {"search_running", "looked_running", "in_flight", "recent_names", "workers", "label_names", "limits"}
BY_BLOCKS = {"seqs_of_ids"}

_FILL = """
insert into todoku_message (id, topic, type, key, payload, content_type, headers, labels, created_at)
select {id}, 'order.created', 'x', 'k' || (n % 100), '{{"n": 1}}', 'application/json', '{{"a": "b"}}',
       '["red", "payload.n:1"]', {at}
  from {numbers};
insert into todoku_delivery (message_seq, destination, queue, lane, priority, status, max_attempts, next_run_at,
                             updated_at, fingerprint, reason, worker_id)
select seq, 'shop', 'shop', case when seq % 8 = 1 then seq % 100 end, 0,
       case when seq % 4 = 0 then 'aborted' when seq % 1000 = 1 then 'sending' else 'pending' end, 4, created_at,
       created_at, 'f', 'TIMEOUT', case when seq % 1000 = 1 then {worker} end
  from todoku_message where seq % 4 <> 2;
insert into todoku_history (finished_at, delivery_id, epoch, message_seq, destination, queue, attempts, replay_count)
select created_at, seq + 1000000, 1, seq, 'shop', 'shop', 1, 0 from todoku_message where seq % 4 = 2;
insert into todoku_lane (id, queue, destination, ready_at, parked)
select n, 'shop', 'shop', {at}, {yes} from {lanes};
insert into todoku_label (label, message_seq) select 'red', seq from todoku_message;
insert into todoku_label (label, message_seq) select 'payload.n:1', seq from todoku_message;
"""


def drive(store: Store) -> None:
    """Each walk and each index from the top, from the middle, and where nothing matches."""
    now = moment(store.ping())
    for wanted in (
        Criteria(), Criteria(statuses=("aborted",)), Criteria(statuses=("sending",)), Criteria(statuses=("succeeded",)),
        Criteria(fingerprints=("f",)), Criteria(labels=(("red",),)), Criteria(keys=("k7",)), Criteria(ids=(3, 1000002)),
        Criteria(queues=("none",)), Criteria(payload=(("n", "2"),)), Criteria(headers=(("a", "c"),)),
        Criteria(since=now - timedelta(hours=2), until=now - timedelta(hours=1)),
        Criteria(errors=("none",), topics=("order.*",), hosts=("a",), labels=(("red",), ("payload.n:1",))),
    ):  # fmt: skip
        page = store.search.find(wanted, limit=20, look=500)
        if page.next is not None:
            store.search.find(wanted, limit=20, look=500, cursor=page.next)
        store.search.situations(page.items)
    store.search.known_words(["red", "k7", "none"])
    store.search.declared_fields(["n", "m"])
    assert store.search.label_names("") == ("payload.n:", "red")
    store.search.recent_names()


def problems(query: str, plan: Plan) -> Iterator[str]:
    for node, above in nodes(plan):
        relation = node.get("Relation Name", "")
        if not relation.startswith(LARGE) or query in BY_BLOCKS:
            continue
        if node["Node Type"] not in ("Index Scan", "Index Only Scan"):
            yield f"{node['Node Type']} on {relation}"
        elif "Index Cond" not in node and query not in WALKED:
            kinds = {step["Node Type"] for step in above}
            if "Limit" not in kinds:
                yield f"walks all of {node['Index Name']}"
        sorts = [step for step in above if step["Node Type"] == "Sort" and step["Plan Rows"] > 10_000]
        if sorts and query.startswith("search_"):
            yield f"sorts {sorts[0]['Plan Rows']} rows of {relation}"


@pytest.mark.postgres
@pytest.mark.parametrize("analysed", [False, True])
def test_PostgreSQL_searches_by_indexes(postgres_url: str, analysed: bool) -> None:
    fill = _FILL.format(
        id="gen_random_uuid()", at="now() - (20001 - n) * interval '1 second'", yes="true",
        worker="'00000000-0000-4000-8000-000000000000'::uuid",
        numbers=f"generate_series(1, {NUMBER}) n", lanes="generate_series(0, 99) n",
    )  # fmt: skip
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(fill)  # type: ignore[call-overload]
        if analysed:
            connection.execute("analyze")
    database = ExplainingPostgres(postgres_url)
    store = Store(database, ledger_ttl=3600)
    drive(store)
    store.close()
    wrong = [
        f"{query} ({mode}): {problem}"
        for (query, mode), plans in database.plans.items()
        for plan in plans
        for problem in (
            *problems(query, plan),
            *(disabled(plan) if query.startswith(("search", "looked", "seq")) else ()),
        )
    ]
    assert sorted(set(wrong)) == []


def test_SQLite_searches_by_indexes(sqlite_url: str) -> None:
    database = ExplainingSqlite(sqlite_url)
    store = Store(database, ledger_ttl=3600)
    store.migrate()
    numbers = f"(with recursive c(n) as (select 1 union all select n + 1 from c where n < {NUMBER}) select n from c)"
    fill = _FILL.format(
        id="lower(hex(randomblob(16)))", worker="'00000000-0000-4000-8000-000000000000'", yes="1", numbers=numbers,
        at="(cast(strftime('%s', 'now') as integer) - 20001 + n) * 1000000", lanes=f"{numbers} where n < 100",
    )  # fmt: skip
    connection = sqlite3.connect(file_path(sqlite_url))
    connection.executescript(fill)
    connection.close()
    database.plans.clear()
    drive(store)
    store.close()
    wrong = {
        f"{query}: {detail}"
        for query, _, plan in database.plans
        if query not in WALKED | BY_BLOCKS
        for detail in plan
        if detail.startswith("SCAN")
        and any(detail.startswith(f"SCAN {name}") for name in (*LARGE, "m USING", "l USING"))
    }
    assert wrong == set()
