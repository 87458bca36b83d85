"""The companion documents of the seed (S0-7): the tables of their pages have the fields there are, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from orders_example.broker import Fill
from orders_example.reasons import HTTP_STATUS, TRANSIENT
from orders_example.result import BY_HAND, DIGESTED, PARTIAL, SLIPPAGE, Broker, Latency, Result

from tests.examples.orders_at_work import orders_at, rows
from tests.support.world import World
from todoku.core import identity

DOCS = Path(__file__).parents[2] / "docs"
RESULT = (DOCS / "execution-result.md").read_text("utf-8")
LEDGER = (DOCS / "ledger.md").read_text("utf-8")


def table(page: str, first: str) -> list[list[str]]:
    """The rows of the table whose head begins so, without their backquotes."""
    lines = page[page.index(f"| {first} |") :].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines]


def names(page: str, first: str) -> list[str]:
    return [name for row in table(page, first) for name in row[0].split(", ")]


def test_the_page_of_the_execution_result_has_all_its_fields() -> None:
    """S0-7, S0-103."""
    assert names(RESULT, "field") == list(Result.__struct_fields__)
    assert names(RESULT, "field of a fill") == list(Fill.__struct_fields__)
    assert names(RESULT, "field of `broker`") == list(Broker.__struct_fields__)
    assert names(RESULT, "field of `latency_ms`") == list(Latency.__struct_fields__)
    assert all(f"`{warning}`" in RESULT for warning in (PARTIAL, SLIPPAGE, BY_HAND))
    digest = RESULT[RESULT.index("## The digest") :].partition("Times and")[0]
    assert tuple(re.findall(r"`(\w+)`", digest))[1:] == DIGESTED


def test_the_page_of_the_execution_result_has_the_reasons_as_they_are() -> None:
    told = {
        reason: (int(status), again == "yes")
        for reason, status, again in table(RESULT, "`reason_code` | HTTP status of a repetition")
    }
    assert told == {reason.value: (status, reason in TRANSIENT) for reason, status in HTTP_STATUS.items()}


def test_the_page_of_the_ledger_has_all_its_fields_on_both_databases(world: World) -> None:
    """S0-7."""
    asked = {
        "sqlite": "select name from pragma_table_info('todoku_ledger')",
        "postgres": "select column_name from information_schema.columns where table_name = 'todoku_ledger'"
        " and table_schema = current_schema() order by ordinal_position",
    }
    assert names(LEDGER, "field") == [name for (name,) in world.sql(asked[world.backend])]


def test_the_page_of_the_ledger_has_all_scopes() -> None:
    made = {name for name in vars(identity) if name.endswith("_scope")}
    told = {scope.partition(":")[0] for scope in names(LEDGER, "scope")}
    assert told == {name.removesuffix("_scope") for name in made}


def test_the_page_of_the_ledger_has_the_columns_of_the_seed_s_table(sqlite_url: str) -> None:
    with orders_at(sqlite_url) as orders:
        there = [name for (name,) in rows(orders, "select name from pragma_table_info('idempo_ledger')")]
    assert names(LEDGER, "column of `idempo_ledger`") == there
