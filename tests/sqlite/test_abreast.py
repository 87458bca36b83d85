"""Many rows in one statement: the same rows as one by one, in their order, whatever their number."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from todoku.store.sqlite.repeated_rows import execute_all, spellings

PLAIN = "insert into t (a, b, c) values (:a, :b + cast(:a * 2 as integer), null)"
UPSERT = """insert into t (a, b, c) values (:a, :b, (select max(t.b) from t where t.a = :a))
    on conflict (a) do update set b = excluded.b where t.b < excluded.b"""


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    db = sqlite3.connect(":memory:", isolation_level=None)
    db.execute("create table t (a integer primary key, b integer, c)")
    yield db
    db.close()


@pytest.mark.parametrize("number", [1, 2, 3, 63, 64, 65, 127, 300])
@pytest.mark.parametrize("sql", [PLAIN, UPSERT])
def test_each_row_is_stored_once(db: sqlite3.Connection, sql: str, number: int) -> None:
    rows = [{"a": n, "b": n * 10, "unused": None} for n in range(number)]
    execute_all(db, sql, rows)
    together = db.execute("select * from t order by a").fetchall()
    db.execute("delete from t")
    for row in rows:
        db.execute(sql, row)
    assert together == db.execute("select * from t order by a").fetchall()
    assert len(together) == number


def test_rows_take_effect_in_their_order(db: sqlite3.Connection) -> None:
    execute_all(db, UPSERT, [{"a": 1, "b": b} for b in (1, 5, 3)])
    assert db.execute("select b from t").fetchall() == [(5,)]


def test_a_statement_that_binds_elsewhere_is_executed_row_by_row(db: sqlite3.Connection) -> None:
    execute_all(db, "insert into t (a, b) values (:a, 0) on conflict (a) do update set b = :b", [{"a": 1, "b": 0}] * 2)
    execute_all(db, "update t set b = :b where a = :a", [{"a": 1, "b": 7}, {"a": 1, "b": 8}])
    assert db.execute("select b from t").fetchall() == [(8,)]
    assert spellings("update t set b = :b") == ("update t set b = :b",)


def test_all_or_none_of_a_statement(db: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        execute_all(db, "insert into t (a, b) values (:a, :b)", [{"a": 1, "b": 1}, {"a": 1, "b": 2}])
    assert db.execute("select count(*) from t").fetchone() == (0,)
