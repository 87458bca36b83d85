"""Dead letters and events are read down their own indexes, however many are beside them and however deep (H20)."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest

from tests.plans.explaining import MODES, ExplainingPostgres, ExplainingSqlite, Plan, nodes
from todoku.core.http_request import HttpRequest, encode_request
from todoku.engine.publish import encode
from todoku.store.columns import moment
from todoku.store.deliveries import Filter
from todoku.store.request_events import HIGHEST, Kind
from todoku.store.sqlite.database import file_path
from todoku.store.store import Store

NUMBER = 20_000
LARGE = ("delivery", "message", "history", "attempt", "lane")
KINDS: tuple[Kind, ...] = ("created", "sending", "tried", "died", "delivered")
INTENDED = {
    "dead_requests": {"delivery_died", "message_pkey"},
    "dead_requests_of": {"delivery_pkey", "message_pkey"},
    "requests_of": {"message_id_key", "delivery_message", "history_message"},
    "requests": {"message_id_key"},
    "find_of_message": {"message_id_key", "delivery_message", "history_message"},
    "standing": {"message_id_key", "delivery_message", "history_message"},
    "message": {"message_id_key"},
    "last_message": {"message_pkey"},
    "find_repeatable": {"history_message", "message_pkey"},
    "find_dead_requests": {"delivery_died", "message_pkey"},
    "dead_request_position": {"delivery_died"},
    "find_waiting_requests": {"delivery_pkey", "message_pkey"},
    "waiting_request_position": {"delivery_pkey"},
    "last_attempts": {"attempt_delivery", "delivery_pkey", "message_pkey", "history_message"},
    "attempts": {"attempt_delivery", "delivery_pkey", "message_pkey", "history_message"},
    "created_requests": {"message_http"},
    "sending_requests": {"delivery_owner", "message_pkey"},
    "tried_requests": {"attempt_ended", "attempt_delivery", "delivery_pkey", "message_pkey", "history_message"},
    "delivered_requests": {"history_http", "message_pkey"},
    "queue_loads": {"delivery_due", "delivery_suspect", "delivery_lane", "delivery_owner"},
}
# What runs is never much: its index is walked. The last message is at the end of its index.
WALKED = {("sending_requests", "delivery_owner"), ("queue_loads", "delivery_owner"), ("last_message", "message_pkey")}
# Read in the order of the index up to the limit: nothing below the limit sorts more than rows of one moment.
IN_ORDER = {
    "dead_requests": "delivery_died",
    "find_dead_requests": "delivery_died",
    "created_requests": "message_http",
    "delivered_requests": "history_http",
}

_HEADERS = encode({"todoku-http": encode_request(HttpRequest(url="https://shop.example/"))})
_FILL = """
insert into todoku_message (id, topic, type, payload_bytes, content_type, headers, created_at)
select {id}, case when n % 2 = 0 then 'http.request' else 'order.created' end, 'x', null, 'text/plain', {headers}, {at}
  from {numbers};
insert into todoku_delivery (message_seq, destination, queue, priority, status, max_attempts, next_run_at, updated_at)
select seq, 'https://shop.example', case when topic = 'http.request' then 'http' else 'shop' end, 0,
       case when seq % 4 = 0 then 'aborted' else 'pending' end, 4, created_at, created_at
  from todoku_message where seq % 4 <> 2;
insert into todoku_history (finished_at, delivery_id, epoch, message_seq, destination, queue, attempts, replay_count)
select created_at, seq + 1000000, 1, seq, 'https://shop.example', 'http', 1, 0 from todoku_message where seq % 4 = 2;
insert into todoku_attempt (delivery_id, replay, number, epoch, ended_at, reason, message_seq)
select id, 0, 1, 0, updated_at, 'HTTP_5XX', message_seq from todoku_delivery
"""


def drive(store: Store) -> None:
    """Each query once from the top, and once from the middle."""
    now = moment(store.ping())
    page = store.deliveries.find_dead_requests(Filter(), limit=100)
    assert len(page.items) == 100
    late = Filter(since=now - timedelta(days=30), labels=("none",))
    assert store.deliveries.find_dead_requests(late, cursor=page.next, limit=100).items == ()
    ids = [row.message_id for row in page.items if row.message_id is not None]
    assert len(store.deliveries.of_requests(ids)) == len(store.messages.requests(ids)) == 100
    deliveries = [row.id for row in page.items]
    assert len(store.deliveries.of_message(Filter(message_id=ids[0])).items) == 1
    assert store.deliveries.standing(ids[0], ["https://shop.example"]) is not None
    last = store.messages.last_seq()
    (done,) = store.deliveries.find(Filter(status="succeeded"), limit=1).items
    assert len(store.messages.find_repeatable(Filter(message_id=done.message_id), last=last)) == 1
    assert len(store.deliveries.dead_requests(deliveries)) == 100
    assert len(store.attempts.last(deliveries)) == len(store.attempts.of_all(deliveries)) == 100
    waiting = store.deliveries.find_waiting_requests(Filter(hosts=("shop.example",)), after=100, limit=100)
    assert waiting == ((), None)  # here every request is dead or delivered; how they are looked for is what counts
    at = round((now - timedelta(hours=1)).timestamp() * 1e6)
    for top in (253_402_214_400_000_000, at):
        found = store.request_events.page(dict.fromkeys(KINDS, (top, HIGHEST, HIGHEST)), Filter(), since=0, limit=100)
        assert [kind for kind in KINDS if not found[kind]] == ["sending"]
    store.queues.loads(["http:orders", "flow:tenant"])


def problems(query: str, plan: Plan) -> Iterator[str]:
    """What is wrong with a plan, in words."""
    used: set[str] = set()
    for node, above in nodes(plan):
        relation = node.get("Relation Name", "").removeprefix("todoku_")
        if not relation.startswith(LARGE):
            continue
        if node["Node Type"] not in ("Index Scan", "Index Only Scan"):
            yield f"{node['Node Type']} on {relation}"
            continue
        index = short(node["Index Name"])
        used.add(index)
        if "Index Cond" not in node and (query, index) not in WALKED:
            yield f"walks all of {index}"
        if IN_ORDER.get(query) == index:
            kinds = [step["Node Type"] for step in above]
            below = kinds[len(kinds) - kinds[::-1].index("Limit") :] if "Limit" in kinds else ["no limit"]
            if set(below) - {"Append", "Merge Append", "Subquery Scan"}:
                yield f"{index} is not read in order: {kinds}"
    equal = {"delivery_dead": "delivery_pkey", "message_http": "message_id_key"} if query not in IN_ORDER else {}
    filtered = {"attempt_delivery"} if query.startswith("find_") else set()  # only a filter by response reads attempts
    if {equal.get(index, index) for index in used} - filtered != INTENDED[query]:
        yield f"uses {sorted(used)}, not {sorted(INTENDED[query])}"


def short(index: str) -> str:
    """An index without its prefix; that of a history partition by the name of the partitioned one."""
    if index.startswith("todoku_history_"):
        return "history_message" if index.endswith("message_seq_idx") else "history_http"
    return index.removeprefix("todoku_")


@pytest.mark.postgres
@pytest.mark.parametrize("analysed", [False, True])
def test_PostgreSQL_reads_requests_by_their_own_indexes(postgres_url: str, analysed: bool) -> None:
    fill = _FILL.format(
        id="gen_random_uuid()",
        headers=f"'{_HEADERS}'::json",
        at="now() - n * interval '1 second'",
        numbers=f"generate_series(1, {NUMBER}) n",
    )
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
        if query in INTENDED
        for plan in plans
        for problem in problems(query, plan)
    ]
    assert sorted(set(wrong)) == []
    assert {(query, mode) for query in INTENDED for mode in MODES} <= database.plans.keys()


def test_SQLite_reads_requests_by_their_own_indexes(sqlite_url: str) -> None:
    database = ExplainingSqlite(sqlite_url)
    store = Store(database, ledger_ttl=3600)
    store.migrate()
    fill = _FILL.format(
        id="lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-7' || substr(hex(randomblob(2)), 2) || '-8'"
        " || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6)))",
        headers=f"'{_HEADERS}'",
        at="cast(strftime('%s', 'now') as integer) * 1000000 - n * 1000000",
        numbers=f"(with recursive s(n) as (select 1 union all select n + 1 from s where n < {NUMBER}) select n from s)",
    )
    with sqlite3.connect(file_path(sqlite_url)) as connection:
        connection.executescript(fill)
    connection.close()
    drive(store)
    store.close()
    walked = {
        (query, step)
        for query, _, plan in database.plans
        if query in INTENDED
        for step in plan
        if re.match(r"SCAN todoku_|SCAN [dham] ", step)
    }
    assert {(query, step) for query, step in walked if (query, step.split("todoku_")[-1]) not in WALKED} == set()
    for query, index in (*IN_ORDER.items(), ("tried_requests", "attempt_ended")):
        plans = [plan for name, _, plan in database.plans if name == query]
        assert plans
        assert all(any(f"todoku_{index}" in step for step in plan) for plan in plans), (query, plans)
