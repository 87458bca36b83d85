"""SQL is read as SQL: blocks by name, fragments in place, a schema in front, parameters as each driver wants them."""

from __future__ import annotations

import sqlite3
from typing import get_args

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.world import World
from todoku.store.sql import ParamStyle, load, parameters, parse, qualify, quote, restyle

BACKENDS = ("todoku.store.sqlite", "todoku.store.postgres")
TEXT = """
-- What is above the first name belongs to nobody.

-- name: live
-- A fragment: why it is safe.
w.expires_at > :now

------------------------------------------------ a heading

-- name: claim
-- Why it is safe,
-- in two lines.
select id from todoku_worker w
 -- a comment inside
 where {live} and w.id = :worker

-- name: nested
-- Why it is safe.
({claim}) union all ({claim})
"""


def test_a_file_is_its_blocks_without_comments_and_with_fragments_in_place() -> None:
    claim = "select id from todoku_worker w\n where w.expires_at > :now and w.id = :worker"
    assert parse(TEXT) == {
        "live": "w.expires_at > :now",
        "claim": claim,
        "nested": f"({claim}) union all ({claim})",
    }


def test_a_file_without_blocks_is_empty() -> None:
    assert parse("") == parse("-- nothing here\n") == {}


def test_a_fragment_that_is_not_there_is_noticed_at_once() -> None:
    with pytest.raises(KeyError, match="livve"):
        parse("-- name: claim\n-- Safe.\nselect 1 where {livve}\n")


@pytest.mark.parametrize("package", BACKENDS)
def test_the_queries_of_a_backend_have_no_comment_and_no_brace_left(package: str) -> None:
    for name, sql in load(package).items():
        assert sql, name
        assert "--" not in sql, name
        assert "{" not in sql.replace("'{}'", ""), name


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select * from todoku_message", 'select * from "q".todoku_message'),
        ("update todoku_lane l set x = todoku_now()", 'update "q".todoku_lane l set x = "q".todoku_now()'),
        ("nextval('todoku_message_seq_seq')", "nextval('\"q\".todoku_message_seq_seq')"),
        ("select a.todoku_x, my_todoku_y", "select a.todoku_x, my_todoku_y"),
        ("todoku_", "todoku_"),
    ],
)
def test_a_schema_is_put_in_front_of_what_is_ours(sql: str, expected: str) -> None:
    assert qualify(sql, "q") == expected
    assert qualify(sql, None) == sql


@pytest.mark.parametrize("package", BACKENDS)
def test_a_schema_reaches_every_name_of_every_query(package: str) -> None:
    plain, ours = load(package), load(package, "q")
    for name, sql in plain.items():
        assert ours[name].replace('"q".', "") == sql, name
        assert ours[name].count('"q".todoku_') == sql.count("todoku_"), name


STRANGE = [
    "Queue", "my schema", "select", 'a"b', "a'b", "a%b", "a\\1b", "a:b", "a :b", "{claim}", "todoku_x", "a.todoku_b",
    "$1", "--", "a;b", "待ち行列", "é",
]  # fmt: skip


@pytest.mark.parametrize("schema", STRANGE)
def test_no_schema_name_is_too_strange_to_be_quoted(schema: str) -> None:
    sql = "select :id, nextval('todoku_s') from todoku_message where x = '100%'"
    ours = qualify(sql, schema)
    assert parameters(ours) == ("id",)
    assert f"from {quote(schema)}.todoku_message" in ours
    assert restyle(ours, "named") == ours


@pytest.mark.postgres
@pytest.mark.parametrize("schema", STRANGE)
def test_the_product_lives_in_a_schema_of_any_name(postgres_url: str, schema: str) -> None:
    """Issue 2: a schema name is a setting."""
    world = World("postgres", postgres_url, schema=schema)
    try:
        world.store.migrate()
        world.publish(key="k", idempotency_key="order 17", ordered=True)
        claims = world.claim_lanes(world.worker())
        assert world.settle(claims).lost == ()
        assert len(world.history()) == len(claims) == 1
        assert world.store.statistics.counts().of("succeeded") == 1
        world.store.retention.prune(history_ttl=3600)
    finally:
        world.close()
    with psycopg.connect(postgres_url) as connection:
        found = connection.execute(f"select count(*) from {quote(schema)}.todoku_history").fetchall()
    assert found == [(1,)]


SQL = "select :id::text, 'effect:' || x, '12:mm', \"a :b\" from t where a = :id and b = :other_1 and c like '5%'"
REST = "'effect:' || x, '12:mm', \"a :b\" from t where a ="


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("named", SQL),
        ("pyformat", f"select %(id)s::text, {REST} %(id)s and b = %(other_1)s and c like '5%%'"),
        ("format", f"select %s::text, {REST} %s and b = %s and c like '5%%'"),
        ("dollar", f"select $1::text, {REST} $1 and b = $2 and c like '5%'"),
    ],
)
def test_parameters_are_written_as_a_driver_wants_them(style: ParamStyle, expected: str) -> None:
    assert restyle(SQL, style) == expected


def test_there_are_four_styles() -> None:
    assert get_args(ParamStyle) == ("named", "pyformat", "format", "dollar")


def test_parameters_are_told_in_order_and_repeated() -> None:
    """Drivers with `%s` take a list: a name that is there twice is bound twice."""
    assert parameters(SQL) == ("id", "id", "other_1")
    assert parameters("select 1, x::text, ':no', \":no\"") == ()


@pytest.mark.postgres
@pytest.mark.parametrize("style", ["pyformat", "format"])
def test_what_the_styles_say_arrives(postgres_dsn: str, style: ParamStyle) -> None:
    sql = "select :a || ':b' || '%' || :a || \"x\" from (select 'y' as x) t"
    values = {"a": "1"}
    bound = values if style == "pyformat" else [values[name] for name in parameters(sql)]
    with psycopg.connect(postgres_dsn) as connection:
        assert connection.execute(restyle(sql, style), bound).fetchall() == [("1:b%1y",)]
    lite = sqlite3.connect(":memory:")
    assert lite.execute(restyle(sql, "named"), values).fetchall() == [("1:b%1y",)]
    lite.close()


@settings(deadline=None)
@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_any_identifier_can_be_quoted(identifier: str) -> None:
    connection = sqlite3.connect(":memory:")
    cursor = connection.execute(f"select 1 as {quote(identifier)}")
    assert cursor.description[0][0] == identifier
    connection.close()


@pytest.mark.parametrize("package", BACKENDS)
@pytest.mark.parametrize("schema", [None, "a :b", "100%"])
def test_every_style_of_every_query_binds_the_same_names(package: str, schema: str | None) -> None:
    for name, sql in load(package, schema).items():
        names = parameters(sql)
        assert restyle(sql, "pyformat").count("%(") == len(names), name
        assert restyle(sql, "format").replace("%%", "").count("%s") == len(names), name
        assert parameters(restyle(sql, "dollar")) == (), name
