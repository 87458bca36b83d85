"""The proof of the proof: the model is what the server has, and the checker finds every fault that is planted."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from tests.capture.agreement import Seen, arrived, compare
from tests.capture.source_model import Change
from tests.capture.workload import STOCK, STOCKED, Plan
from tests.capture.writers import Committed, Model, Progress, Writer, set_up
from tests.support.postgres import fresh_database

SEED = "a stream"
WRITERS = 3


def transactions(seed: str, number: int) -> list[object]:
    plan = Plan(seed, 0, rows=20)
    return [*plan.setup(), *(plan.next() for _ in range(number))]


def test_a_plan_depends_on_its_seed_alone() -> None:
    assert transactions("7", 200) == transactions("7", 200)
    assert transactions("7", 200) != transactions("8", 200)


def test_a_plan_has_every_shape() -> None:
    """Issue 15: savepoints, rollbacks, keys that change, DDL, TRUNCATE, long values, partitions, thousands of rows."""
    plan = Plan(SEED, 0, rows=50)
    list(plan.setup())
    drawn = [plan.next() for _ in range(3000)]
    sql = {statement.sql.partition(" shop.")[0] for one in drawn for statement in one.statements}
    assert sql >= {"insert into", "update", "delete from", "truncate", "copy", "savepoint part_0", "alter table"}
    assert sql >= {"savepoint part_1", "rollback to savepoint part_0", "release savepoint part_1"}
    assert any(statement.fails for one in drawn for statement in one.statements)
    words = {word for one in drawn for s in one.statements if s.sql.startswith("alter") for word in s.sql.split()}
    assert words >= {"add", "drop", "rename", "type"}
    assert not all(one.commit for one in drawn)
    changes = [change for one in drawn for change in one.changes]
    assert {change.op for change in changes} == {"insert", "update", "delete", "truncate", "alter"}
    assert any(change.may_lack for change in changes)
    assert max(len(one.changes) for one in drawn if one.statements[0].sql.startswith("copy")) >= 1500


@pytest.mark.postgres
@pytest.mark.parametrize("seed", ["1", "2"])
def test_the_model_is_what_the_server_has(postgres_dsn: str, seed: str) -> None:
    """Every table, row by row, after writers at once; and the shared rows counted each change."""
    with fresh_database(postgres_dsn) as url:
        plans = [Plan(seed, writer, rows=100) for writer in range(WRITERS)]
        set_up(url, plans)
        progress = Progress(1 << 30)
        writers = [Writer(url, plan, 400, progress) for plan in plans]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join(120)
        assert [writer.error for writer in writers] == [None] * WRITERS
        with psycopg.connect(url) as connection:
            connection.execute("set timezone = 'UTC'")
            for table in (table for plan in plans for table in plan.tables):
                rows = connection.execute(f"select {', '.join(table.columns)} from {table.name}").fetchall()
                found = {tuple(str(row[list(table.columns).index(k)]) for k in table.key): row for row in rows}
                assert found.keys() == table.rows.keys(), table.name
                for key, row in table.rows.items():
                    assert [_plain(value) for value in found[key]] == [_plain(v) for v in row.values()], (table, key)
            ((counted,),) = connection.execute(f"select sum(v) from {STOCK}").fetchall()
        shared = [one for writer in writers for one in writer.committed if one.counted is not None]
        assert counted == len(shared) > 10


def _plain(value: object) -> object:
    """As text where psycopg has an object of its own."""
    match value:
        case bytes():
            return "\\x" + value.hex()
        case None | bool() | int() | float() | str() | list() | dict():
            return value
        case _:
            text = str(value)
            return text.replace(" ", "T") if text.endswith("+00:00") else text


# ------------------------------------------------------------------------------------------------------ the checker


def committed(number: int = 300) -> Model:
    """A model whose transactions no server has seen."""
    model = Model({STOCK: {(str(n),): {"id": n, "v": 0, "who": "nobody"} for n in range(STOCKED)}})
    counts = [0] * STOCKED
    for writer in range(WRITERS):
        plan = Plan(SEED, writer, rows=60, large=(100,))
        list(plan.setup())
        model.initial |= plan.initial
        done = []
        for place in range(number):
            one = plan.next()
            changes = one.changes
            if one.stock is not None:
                counts[one.stock] += 1
                row = {"id": one.stock, "v": counts[one.stock], "who": f"{writer}.{one.number}"}
                changes = (*changes, Change(STOCK, "update", (str(one.stock),), row))
            if one.commit:
                done.append(Committed(str(1000 * writer + place), changes))
        model.writers.append(done)
    return model


def stream(model: Model) -> list[Seen]:
    """What a capture without fault stores: here one writer after another, and the snapshot before."""
    seen: list[Seen] = []

    def say(change: Change, lsn: int, xid: str | None) -> None:
        width = 1 if change.key is None else len(change.key)
        key = None if change.key is None else change.key[0] if width == 1 else json.dumps(change.key)
        old = None
        if change.op == "delete" and change.key is not None:
            names = {"lines": ("order_id", "line"), "regions": ("region", "id")}
            old = dict(zip(names.get(change.table.split(".")[1].split("_")[0], ("id",)), change.key, strict=True))
        payload: dict[str, Any] = {
            "op": change.op,
            "table": change.table,
            "row": change.row,
            "old": old,
            "unchanged": [],
        }
        headers = {"capture-lsn": f"0/{lsn:X}"} | ({} if xid is None else {"capture-xid": xid})
        seen.append(Seen(len(seen) + 1, f"{change.table}.{change.op}", key, payload, headers))

    for table, rows in model.initial.items():
        for key, row in rows.items():
            say(Change(table, "snapshot", key, row), 1, None)
    order = [one for writer in model.writers for one in writer]  # as they were drawn: so the shared rows count up
    for lsn, transaction in enumerate(order, start=2):
        for change in transaction.changes:
            if change.op != "alter":
                say(change, lsn, transaction.xid)
    return seen


def test_a_true_stream_has_no_fault() -> None:
    model = committed()
    verdict = compare(model, stream(model), complete_at=0)
    assert verdict.problems == []
    assert verdict.counts["changes compared"] > 1000
    assert verdict.counts["truncate messages"] > 0


def index(seen: list[Seen], op: str, chance: random.Random) -> int:
    return chance.choice([place for place, one in enumerate(seen) if one.payload["op"] == op])


def drop(seen: list[Seen], op: str, chance: random.Random) -> None:
    del seen[index(seen, op, chance)]


def double(seen: list[Seen], op: str, chance: random.Random) -> None:
    place = index(seen, op, chance)
    seen.insert(place, seen[place])


def change_row(seen: list[Seen], op: str, chance: random.Random) -> None:
    place = index(seen, op, chance)
    one = seen[place]
    row = one.payload["row"]
    other = {"id": -1} if row is None else row | {next(iter(row)): "another"}
    seen[place] = replace(one, payload=one.payload | {"row": other})


def another_transaction(seen: list[Seen], op: str, chance: random.Random) -> None:
    place = index(seen, op, chance)
    seen[place] = replace(seen[place], headers=seen[place].headers | {"capture-xid": "4000000000"})


def another_op(seen: list[Seen], op: str, chance: random.Random) -> None:
    place = index(seen, op, chance)
    seen[place] = replace(seen[place], payload=seen[place].payload | {"op": "update" if op != "update" else "insert"})


def too_late(seen: list[Seen], op: str, chance: random.Random) -> None:
    """Of a key with a later change: the first behind it."""
    while True:
        place = index(seen, op, chance)
        one = seen[place]
        later = [
            n for n, other in enumerate(seen) if n > place and other.key == one.key
            and other.payload["table"] == one.payload["table"]
        ]  # fmt: skip
        if later:
            seen.insert(later[0], seen.pop(place))
            return


def unchanged(seen: list[Seen], op: str, chance: random.Random) -> None:
    """A value that is left out although it changed."""
    place = index(seen, op, chance)
    seen[place] = replace(seen[place], payload=seen[place].payload | {"unchanged": ["amount", "rate", "open", "v"]})


FAULTS: list[tuple[Callable[[list[Seen], str, random.Random], None], str]] = [
    *((fault, op) for fault in (drop, double, another_op) for op in ("insert", "update", "delete", "truncate")),
    *((fault, op) for fault in (another_transaction,) for op in ("insert", "update", "delete", "truncate")),
    *((change_row, op) for op in ("insert", "update", "delete", "snapshot")),
    *((too_late, op) for op in ("insert", "update", "snapshot")),
    (unchanged, "update"), (unchanged, "insert"), (drop, "snapshot"), (double, "snapshot"),
]  # fmt: skip


@pytest.mark.parametrize(("fault", "op"), FAULTS, ids=[f"{fault.__name__}-{op}" for fault, op in FAULTS])
def test_the_checker_finds_one_fault_among_thousands(
    fault: Callable[[list[Seen], str, random.Random], None], op: str
) -> None:
    model = committed(150)
    good = stream(model)
    for seed in range(5):
        bad = list(good)
        fault(bad, op, random.Random(seed))
        renumbered = [replace(one, seq=place) for place, one in enumerate(bad, start=1)]
        assert compare(model, renumbered, complete_at=0).problems, seed


def test_the_checker_finds_a_lost_portion_and_an_interrupted_transaction() -> None:
    model = committed(150)
    good = stream(model)
    assert compare(model, good[:-40], complete_at=0).problems
    assert compare(model, good[:700] + good[760:], complete_at=0).problems
    several = next(n for n, one in enumerate(good) if n > 700 and one.lsn == good[n + 1].lsn < good[n + 2].lsn)
    moved = [*good[: several + 1], good[several + 2], good[several + 1], *good[several + 3 :]]
    moved = [replace(one, seq=place) for place, one in enumerate(moved, start=1)]
    assert "greater position" in " ".join(compare(model, moved, complete_at=0).problems)


def test_what_arrived_is_compared_by_key() -> None:
    """A repetition is allowed, a first time behind a later one is not."""
    messages = [Seen(n, "t", "k", {}, {}) for n in (1, 2, 3)]
    assert arrived([("k", 1), ("k", 2), ("k", 1), ("k", 2), ("k", 3)], messages).problems == []
    assert arrived([("k", 1), ("k", 3), ("k", 2)], messages).problems
    assert arrived([("k", 1), ("k", 2)], messages).problems
