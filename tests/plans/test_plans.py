"""Every query of the line has one plan, whatever the statistics say (DESIGN §4, H20).

The stores here are the product's own, driven through their port over 100,000 deliveries; the plans are those of the
statements they ran, in the transactions they ran them in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from uuid import uuid4

import psycopg
import pytest

from tests.plans import filling
from tests.plans.explaining import MODES, ExplainingPostgres, ExplainingSqlite, Plan, nodes
from tests.support.world import SOMEBODY, aborted, failed
from todoku.app import new_id
from todoku.core.decision import SUCCEEDED, Settlement
from todoku.core.limit import Limit
from todoku.core.message import Claimed, Draft
from todoku.core.status import Status
from todoku.core.topic_pattern import Route
from todoku.engine.publish import MessageOptions, draft
from todoku.store.claim_lists import Listing
from todoku.store.database import Database, Slice
from todoku.store.deliveries import Filter
from todoku.store.limits import Counted, Gated
from todoku.store.publish import Publishing, publish
from todoku.store.store import Store

# What grows with the number of messages. Everything else has a row per worker, queue or destination.
LARGE = ("delivery", "message", "ledger", "history", "attempt", "lane", "gate", "gate_call")


def drive(store: Store) -> None:
    """Everything a worker does: each query of the line runs at least once, and finds something to do."""
    worker = uuid4()
    store.leases.register(worker, name="plans", lease=600)
    assert store.leases.renew(worker, lease=600)
    waiting = store.claims.waiting(None)
    assert all((waiting.groups, waiting.suspects, waiting.lanes, waiting.gates)), waiting
    store.claims.waiting(["d0"])
    assert store.statistics.lag(stuck_after=600).due
    store.alerts.unwanted_dead()
    claims = store.claims.take(worker, [Slice(*place[:3]) for place in waiting.groups[:3]], limit=500)
    suspects = store.claims.take_suspect(worker, waiting.suspects)
    listing = Listing(tuple({place[1] for place in waiting.lanes}), 1)
    store.claims.release(store.claims.take_lanes(worker, waiting.lanes, lanes=1, limit=5, listing=listing))
    ordered = store.claims.take_lanes(worker, waiting.lanes, lanes=50, limit=500)
    gated = store.claims.take_gates(
        worker, [Gated(*place[:2], 2, 1000) for place in waiting.gates], number=50, limit=100
    )
    assert (len(claims) > 12, len(suspects), bool(ordered), bool(gated)) == (True, 1, True, True)
    assert len(store.leases.owned(worker)) == len(claims) + len(suspects) + len(ordered) + len(gated)
    store.limits.set("d0", SOMEBODY, of="queue", concurrency=1000, rate=100)
    store.claims.release(store.claims.take(worker, [Slice("d0", "d0", 0)], limit=5, counted=Counted(frozenset({"d0"}))))
    store.claims.take_suspect(worker, [("none", "none")])
    store.run(publish(publishing(store.database), [gated_draft()]))
    store.claims.settle(
        [(one, SUCCEEDED) for one in store.claims.take_gates(worker, [Gated("d9", "d9", 1)], number=1, limit=1)]
    )
    assert store.claims.effects(claims)
    settled = [*_outcomes(claims[10:]), *((claim, SUCCEEDED) for claim in (*ordered, *gated))]
    assert not store.claims.settle(settled).lost
    assert not store.claims.settle(settled).lost  # read back: settled before
    assert not store.claims.release([*claims[:10], *suspects])
    assert store.leases.reclaim().freed
    store.leases.end(worker, lost=True)
    store.retention.expire(unknown_after=3600)
    store.retention.prune(history_ttl=3600)


def _outcomes(claims: Sequence[Claimed]) -> Iterator[tuple[Claimed, Settlement]]:
    kept = Settlement(status=Status.SUCCEEDED, result="1")
    kinds = (SUCCEEDED, kept, failed(), aborted())
    return ((claim, kinds[place % len(kinds)]) for place, claim in enumerate(claims))


def gated_draft() -> Draft:
    """The only message of its key, which has a limit."""
    routes = [Route(pattern="**", destination="d9", queue="d9", per_key=Limit(concurrency=1))]
    return draft(new_id(), "order.created", {}, MessageOptions(key="alone"), routes, max_payload_bytes=1024)


def keyed_drafts() -> list[Draft]:
    """Three messages with idempotency keys, in one lane."""
    routes = [Route(pattern="**", destination="d0", queue="d0", ordered=True)]
    options = [MessageOptions(key="k", idempotency_key=f"key {number}") for number in range(3)]
    return [draft(new_id(), "order.created", {}, option, routes, max_payload_bytes=1024) for option in options]


# -------------------------------------------------------------------------------------------- PostgreSQL

CLAIMED = {"message_pkey", "ledger_pkey"}
INTENDED: dict[str, set[str]] = {
    "claim": {"delivery_due", *CLAIMED},  # and the ctid of each row it has locked
    "claim_suspect": {"delivery_suspect", "delivery_pkey", *CLAIMED},
    "take_lanes": {"lane_due", "lane_pkey"},
    "claim_lane_rows": {"delivery_lane", "delivery_pkey", *CLAIMED},
    "claim_lane_list": {"delivery_lane", "delivery_pkey", *CLAIMED},
    "effects": {"ledger_pkey"},
    "settle_effects": {"delivery_pkey"},
    "settle_reservations": {"ledger_pkey"},
    "settle_done": {"delivery_pkey"},
    "settle_rest": {"delivery_pkey"},
    "settle_lanes": {"delivery_lane", "delivery_owner", "delivery_pkey"},
    "drop_empty_lanes": {"delivery_lane", "lane_pkey"},
    "settled_before": {"history_message", "attempt_delivery"},
    "release": {"delivery_pkey"},
    "owned": {"delivery_owner"},
    "free_orphans": {"delivery_owner", "delivery_pkey", *CLAIMED},
    "free_lanes": {"lane_owner"},
    "waiting": {"delivery_due"},
    "waiting_work": {"delivery_due", "delivery_suspect", "lane_due", "gate_due", "gate_call_place"},
    "heed_calls": {"gate_call_place", "gate_call_pkey"},
    "lock_gates": {"gate_pkey"},
    "take_gates": {"gate_due", "gate_pkey"},
    "claim_gate_rows": {"delivery_gate", "delivery_pkey", *CLAIMED},
    "spend_gates": {"gate_pkey"},
    "refresh_gates": {"gate_pkey", "delivery_gate", "delivery_gate_running"},
    "drop_gates": {"gate_pkey", "delivery_gate"},
    "suspect_gates": {"delivery_suspect"},
    "rooms": {"delivery_owner"},
    "lag_due": {"delivery_due"},
    "lag_apart": {"delivery_lane", "delivery_suspect", "delivery_gate"},
    "lag_held": {"delivery_owner", "delivery_dead"},
    "unwanted_dead": {"delivery_dead"},
    "expire": {"delivery_expiring", "delivery_pkey"},
    "prune_messages": {"message_pkey", "delivery_message"},
    "prune_ledger": {"ledger_expiring", "message_key_hash", "message_id_key", "delivery_message"},
    "prune_attempts": {"attempt_ended", "delivery_pkey"},
    "publish_reserved": {"ledger_pkey", "message_id_key"},
}
# By either a lane is found at once: all lanes of one worker, or all that are named.
ALSO = {"settle_lanes": {"lane_owner", "lane_pkey"}, "free_lanes": {"lane_pkey"}}
# Walked from one end: the first hop stops at its first row, and in flight are only as many as workers can hold.
WALKED = {
    ("waiting", "delivery_due"),
    ("waiting_work", "delivery_due"),
    ("waiting_work", "delivery_suspect"),
    ("waiting_work", "lane_due"),
    ("waiting_work", "gate_due"),
    ("waiting_work", "gate_call_place"),
    ("free_orphans", "delivery_owner"),
    ("free_lanes", "lane_owner"),
    ("rooms", "delivery_owner"),
    # Up to a limit, or as many as are in flight.
    ("lag_apart", "delivery_lane"),
    ("lag_apart", "delivery_suspect"),
    ("lag_apart", "delivery_gate"),
    ("lag_held", "delivery_owner"),
    ("lag_held", "delivery_dead"),
    ("unwanted_dead", "delivery_dead"),
}
# Where rows are found, and where they are locked: (query, the CTE or None, the index, what is above its scan).
# Found in the order of the index, and locked one by one up to the limit.
# A delete locks what it takes, as it comes out of the index.
FOUND, LOCKED, DELETED = ("Limit",), ("Limit", "LockRows"), ("ModifyTable",)
PLACES = (
    ("claim", "CTE due", "delivery_due", LOCKED),
    ("claim_suspect", "CTE due", "delivery_suspect", LOCKED),
    ("take_lanes", "CTE due", "lane_due", LOCKED),
    ("take_gates", "CTE due", "gate_due", LOCKED),
    ("claim_gate_rows", "CTE due", "delivery_gate", LOCKED),
    ("claim_lane_rows", "CTE first", "delivery_lane", FOUND),
    ("claim_lane_rows", "CTE held", "delivery_pkey", ("LockRows",)),  # exactly what `first` found
    ("claim_lane_list", "CTE first", "delivery_lane", FOUND),
    ("claim_lane_list", "CTE held", "delivery_pkey", ("LockRows",)),
    ("settle_done", "CTE gone", "delivery_pkey", DELETED),
    ("settle_rest", "CTE held", "delivery_pkey", LOCKED),
    ("settle_reservations", None, "ledger_pkey", LOCKED),
    ("release", "CTE held", "delivery_pkey", LOCKED),
)


def problems(query: str, plan: Plan) -> Iterator[str]:
    """What is wrong with a plan, in words."""
    used: set[str] = set()
    for node, _ in nodes(plan):
        relation = node.get("Relation Name", "").removeprefix("todoku_")
        if not relation.startswith(LARGE):
            continue
        if node["Node Type"] in ("Index Scan", "Index Only Scan"):
            index = short(node["Index Name"])
            used.add(index)
            if "Index Cond" not in node and (query, index) not in WALKED:
                yield f"walks all of {index}"
        elif node["Node Type"] not in ("ModifyTable", "Tid Scan"):
            yield f"{node['Node Type']} on {relation}"
    if missing := INTENDED[query] - used:
        yield f"does not use {sorted(missing)}"
    if strange := used - INTENDED[query] - ALSO.get(query, set()):
        yield f"uses {sorted(strange)}"
    yield from lock_problems(query, plan)


def short(index: str) -> str:
    """An index without its prefix; that of a history partition by the name of the partitioned one."""
    partition = re.fullmatch(r"todoku_history_\w+_message_seq_idx", index)
    return "history_message" if partition else index.removeprefix("todoku_")


def lock_problems(query: str, plan: Plan) -> Iterator[str]:
    """Rows are locked as they come out of the index: not after a sort, and not more of them than asked for."""
    for _, cte, index, above in (place for place in PLACES if place[0] == query):
        inside = [path for path in paths(plan, index) if any(step.get("Subplan Name") == cte for step in path)]
        if not inside:
            yield f"{cte} does not look in {index}"
        for path in inside:
            start = next(place for place, step in enumerate(path) if step.get("Subplan Name") == cte)
            kinds = tuple(step["Node Type"] for step in path[start:-1])
            if kinds[-len(above) :] != above:
                yield f"{cte} is not {above} over {index}: {kinds}"
            if any("Sort" in kind for kind in kinds):
                yield f"{cte} sorts: {kinds}"


def paths(plan: Plan, index: str) -> Iterator[tuple[Plan, ...]]:
    """From the root to each scan of an index."""
    for node, above in nodes(plan):
        if "Index Name" in node and short(node["Index Name"]) == index:
            yield (*above, node)


SITUATIONS = ("small", "never analysed", "analysed", "analysed when empty", "finished since", "rush since")


def arrange(situation: str, connection: psycopg.Connection[object]) -> None:
    """Statistics as they are at some time of a database's life; autovacuum comes too late."""
    filling.without_autovacuum(connection)
    if situation == "analysed when empty":
        connection.execute("analyze")
    filling.fill_postgres(connection, every=1000 if situation == "small" else 1)
    if situation == "rush since":
        filling.claim_all_postgres(connection)
    if situation in ("small", "analysed", "finished since", "rush since"):
        connection.execute("analyze")
    if situation in ("finished since", "rush since"):
        filling.finish_postgres(connection)
        filling.fill_postgres(connection, every=10)


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.parametrize("situation", SITUATIONS)
def test_PostgreSQL_takes_the_intended_index_whatever_its_statistics(postgres_url: str, situation: str) -> None:
    """H20, §4: claim, settle, reclaim and their neighbours; custom and generic plans; nothing walks a large table.

    `small` are the plans that a session keeps from the time when there was almost nothing.
    """
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        arrange(situation, connection)
    database = ExplainingPostgres(postgres_url)
    store = Store(database, ledger_ttl=3600)
    drive(store)
    if situation != "small":  # on a caller's connection our settings do not hold: a small table may be read whole
        database.publish_as_caller(publish(publishing(database), keyed_drafts()))
    store.close()
    wrong = [
        f"{query} ({mode}): {problem}"
        for (query, mode), plans in database.plans.items()
        if query in INTENDED
        for plan in plans
        for problem in problems(query, plan)
    ]
    assert sorted(set(wrong)) == []
    expected = INTENDED.keys() - ({"publish_reserved"} if situation == "small" else set())
    assert {(query, mode) for query in expected for mode in MODES} <= database.plans.keys()


def publishing(database: Database) -> Publishing:
    return Publishing(database.dialect, database.queries, database.now())


@pytest.mark.postgres
def test_the_time_and_the_position_of_a_claim_are_bounds_of_its_index(postgres_url: str) -> None:
    """H20: with clock_timestamp(), or with priority left free, an idle poll walked a million future rows."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        filling.fill_postgres(connection, every=100)
    database = ExplainingPostgres(postgres_url)
    store = Store(database, ledger_ttl=3600)
    drive(store)
    store.close()
    for mode in MODES:
        for plan in database.plans["claim", mode]:
            ((*_, scan),) = paths(plan, "delivery_due")
            for bound in (
                "(queue = ",
                "(destination = ",
                "(priority = ",
                "(next_run_at <= statement_timestamp())",
                "(ROW(next_run_at, id) > ROW(",
            ):
                assert bound in scan["Index Cond"], (mode, scan["Index Cond"])


@pytest.mark.postgres
def test_what_a_gate_holds_back_is_behind_bounds_of_its_index(postgres_url: str) -> None:
    """A million rows of a full gate, or for later, are never walked: a full gate is in no index that a claim reads."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        filling.fill_postgres(connection, every=100)
    database = ExplainingPostgres(postgres_url)
    store = Store(database, ledger_ttl=3600)
    drive(store)
    store.close()
    for mode in MODES:
        for plan in database.plans["take_gates", mode]:
            ((*_, scan),) = paths(plan, "gate_due")
            for bound in ("(queue = ", "(destination = ", "(ready_at <= statement_timestamp())"):
                assert bound in scan["Index Cond"], (mode, scan["Index Cond"])
        for plan in database.plans["claim_gate_rows", mode]:
            ((*_, scan),) = paths(plan, "delivery_gate")
            for bound in ("(gate = ", "(priority = ", "(next_run_at <= statement_timestamp())"):
                assert bound in scan["Index Cond"], (mode, scan["Index Cond"])


@pytest.mark.postgres
def test_renewing_a_lease_touches_one_row_by_its_key(postgres_url: str) -> None:
    """§4 Lease: the heartbeat must not depend on how many workers there were."""
    database = ExplainingPostgres(postgres_url)
    store = Store(database, ledger_ttl=3600)
    worker = uuid4()
    store.leases.register(worker, name="plans", lease=60)
    assert store.leases.renew(worker, lease=60)
    store.close()
    for mode in MODES:
        for plan in database.plans["renew", mode]:
            scans = [(node["Node Type"], node["Index Name"]) for node, _ in nodes(plan) if "Index Name" in node]
            assert scans == [("Index Scan", "todoku_worker_pkey")]


@pytest.mark.postgres
@pytest.mark.parametrize("analysed", [False, True])
def test_what_a_person_names_is_found_by_its_name(postgres_url: str, analysed: bool) -> None:
    """§5: a story, or a cancellation, of one message must not walk the others; sorting its few rows is allowed."""
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        filling.without_autovacuum(connection)
        filling.fill_postgres(connection, every=10)
        ((id, delivery),) = connection.execute(
            "select m.id, d.id from todoku_message m join todoku_delivery d on d.message_seq = m.seq order by 2 limit 1"
        ).fetchall()
        if analysed:
            connection.execute("analyze")
    database = ExplainingPostgres(postgres_url)
    store = Store(database, ledger_ttl=3600)
    assert store.messages.story(id) is not None
    assert store.deliveries.find(Filter(ids=(delivery,))).items
    assert store.acts.cancel(Filter(message_id=id), SOMEBODY).changed == (delivery,)
    assert store.acts.replay(Filter(ids=(delivery,)), SOMEBODY).changed == (delivery,)
    store.close()
    for query in ("message", "find", "pick", "attempts", "cancel", "replay"):
        # A generic plan must serve filters that are absent too; the plan cache compares, and stays with custom ones.
        for plan in database.plans[query, "force_custom_plan"]:
            scans = [node for node, _ in nodes(plan) if "Scan" in node["Node Type"] and "Relation Name" in node]
            assert scans
            assert [node for node in scans if "Index Cond" not in node] == []


# ------------------------------------------------------------------------------------------------ SQLite

ROWID = "INTEGER PRIMARY KEY"
INTENDED_SQLITE: dict[str, set[str]] = {
    "claim": {"delivery_due", ROWID, "PRIMARY KEY"},
    "claim_suspect": {"delivery_suspect", ROWID, "PRIMARY KEY"},
    "take_lanes": {"lane_due", ROWID},
    "claim_lane_rows": {"delivery_lane", ROWID, "PRIMARY KEY"},
    "effects": {"PRIMARY KEY"},
    "settle_effects": {ROWID},
    "settle_reservations": {"PRIMARY KEY"},
    "settle_done": {ROWID},
    "settle_rest": {ROWID},
    "settle_lanes": {"delivery_lane", "delivery_owner", "lane_owner"},
    "drop_empty_lanes": {"delivery_lane", ROWID},
    "settled_before": {"history_message", "attempt_delivery"},
    "release": {ROWID},
    "owned": {"delivery_owner"},
    "free_orphans": {"delivery_owner", ROWID, "PRIMARY KEY"},
    "free_lanes": {"lane_owner"},
    "waiting": {"delivery_due", ROWID},
    "waiting_work": {"delivery_due", "delivery_suspect", "lane_due", "gate_due", "gate_call_place", ROWID},
    "heed_calls": {"gate_call_place", ROWID},
    "lock_gates": {ROWID},
    "take_gates": {"gate_due", ROWID},
    "claim_gate_rows": {"delivery_gate", ROWID, "PRIMARY KEY"},
    "spend_gates": {ROWID},
    "refresh_gates": {"delivery_gate", "delivery_gate_running", ROWID},
    "drop_gates": {"delivery_gate", ROWID},
    "suspect_gates": {"delivery_suspect"},
    "rooms": {"delivery_owner"},
    "lag_due": {"delivery_due"},
    "lag_apart": {"delivery_lane", "delivery_suspect", "delivery_gate"},
    "lag_held": {"delivery_owner", "delivery_dead"},
    "unwanted_dead": {"delivery_dead"},
    "expire": {"delivery_expiring", ROWID},
    "prune_messages": {ROWID, "delivery_message"},
    "prune_ledger": {
        "ledger_expiring",
        "message_key_hash",
        "sqlite_autoindex_todoku_message_1",
        "delivery_message",
        "PRIMARY KEY",
    },
    "prune_attempts": {"attempt_ended", ROWID},
    "prune_history": {"history_finished", ROWID},
    "publish_reserved": {"PRIMARY KEY", "sqlite_autoindex_todoku_message_1"},
    "publish_delivery": {"sqlite_autoindex_todoku_message_1"},
}
ALSO_SQLITE = {"settle_lanes": {ROWID}}
_STEP = re.compile(r"(SEARCH|SCAN) (?P<what>\S+)(?: USING (?:COVERING )?(?:INDEX (?P<index>\w+)|(?P<key>[A-Z ]*KEY)))?")


def sqlite_problems(query: str, statement: str, plan: list[str]) -> Iterator[str]:
    """Whole tables that are walked; sorts where the index has the order."""
    names = large_names(statement)
    for line in plan:
        step = _STEP.match(line)
        if step is None or step["what"] not in names:
            continue
        index = (step["index"] or "").removeprefix("todoku_")
        if step[1] == "SCAN" and (query, index) not in WALKED:
            yield line
    if query in ("claim", "claim_suspect") and "USE TEMP B-TREE FOR ORDER BY" in plan:
        yield "sorts"


def used_by_sqlite(statement: str, plan: list[str]) -> set[str]:
    """The indexes through which a statement reads large tables."""
    steps = [step for line in plan if (step := _STEP.match(line)) and step["what"] in large_names(statement)]
    return {(step["index"] or step["key"] or "nothing").removeprefix("todoku_").strip() for step in steps}


def large_names(statement: str) -> set[str]:
    """The large tables of a statement, and what it calls them."""
    table = rf"(todoku_(?:{'|'.join(LARGE)}))\b(?:\s+(?:as\s+)?(\w+))?"
    return {name for found in re.findall(table, statement) for name in found if name}


def arrange_sqlite(situation: str, url: str) -> None:
    """As `arrange`; SQLite has statistics only if somebody ran ANALYZE."""
    if situation == "analysed when empty":
        filling.change_sqlite(url, "analyze")
    filling.fill_sqlite(url)
    if situation == "analysed":
        filling.change_sqlite(url, "analyze")
    if situation == "rush since":
        filling.change_sqlite(
            url,
            "update todoku_delivery set status = 'sending', worker_id = 'rush' where status = 'pending'",
            "analyze",
            "update todoku_delivery set status = 'pending', worker_id = null where worker_id = 'rush'",
        )


@pytest.mark.slow
@pytest.mark.parametrize("situation", ["never analysed", "analysed", "analysed when empty", "rush since"])
def test_SQLite_takes_the_intended_index_whatever_its_statistics(sqlite_url: str, situation: str) -> None:
    """§5: the same operations, each statement of them."""
    database = ExplainingSqlite(sqlite_url)
    store = Store(database, ledger_ttl=3600)
    store.migrate()
    arrange_sqlite(situation, sqlite_url)
    drive(store)
    store.run(publish(publishing(database), keyed_drafts()))
    store.close()
    ran = [(query, statement, plan) for query, statement, plan in database.plans if query in INTENDED_SQLITE]
    assert sorted({f"{q}: {line}" for q, text, plan in ran for line in sqlite_problems(q, text, plan)}) == []
    used: dict[str, set[str]] = {}
    for query, statement, plan in ran:
        used.setdefault(query, set()).update(used_by_sqlite(statement, plan) - ALSO_SQLITE.get(query, set()))
    assert used == INTENDED_SQLITE
