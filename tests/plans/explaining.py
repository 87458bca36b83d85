"""Stores that keep the plan of every query they run, as they run it.

The connection handed to the product's own transaction is wrapped: each statement arrives here with the text, the bound
values and the settings it really has. It is explained, and then run. On PostgreSQL it is prepared first, as psycopg
does, and explained twice: under a custom plan and under a generic one.
"""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

import psycopg
from psycopg.adapt import PyFormat, Transformer

from todoku.core.settings import read_settings
from todoku.store.database import Tx
from todoku.store.postgres.database import PostgresDatabase
from todoku.store.postgres.transaction import PostgresTx
from todoku.store.sql import Steps, restyle
from todoku.store.sqlite.database import SqliteDatabase, SqliteTx
from todoku.store.sqlite.repeated_rows import spellings

T = TypeVar("T")
Plan = dict[str, Any]
MODES = ("force_custom_plan", "force_generic_plan")
_PLACEHOLDER = re.compile(r"%\((\w+)\)s")


# -------------------------------------------------------------------------------------------- PostgreSQL


class ExplainingConnection:
    """A PostgreSQL connection that explains each query before it runs it."""

    def __init__(self, connection: psycopg.Connection[Any], keep: Callable[[str, str, Plan], None]) -> None:
        self._connection = connection
        self._keep = keep

    def execute(self, query: str, values: Mapping[str, Any], **options: Any) -> Any:
        for mode in MODES:
            self._keep(query, mode, self._explained(query, values, mode))
        return self._connection.execute(cast("Any", query), values, **options)

    def _explained(self, query: str, values: Mapping[str, Any], mode: str) -> Plan:
        names = list(dict.fromkeys(_PLACEHOLDER.findall(query)))
        places = {name: f"${place}" for place, name in enumerate(names, 1)}
        text = _PLACEHOLDER.sub(lambda found: places[found[1]], query).replace("%%", "%")
        adapt: Any = Transformer(self._connection)
        types = [self._type(adapt, values[name]) for name in names]
        literals = [adapt.as_literal(values[name]).decode() for name in names]
        run = cast("Any", self._connection.execute)
        run(f"set local plan_cache_mode = {mode}")
        run(f"prepare explained {_listed(types)} as {text}")
        ((plan,),) = run(f"explain (format json) execute explained {_listed(literals)}").fetchall()
        run("deallocate explained")
        run("set local plan_cache_mode = auto")
        return cast("Plan", plan[0]["Plan"])

    def _type(self, adapt: Any, value: object) -> str:
        """The type that psycopg declares for a parameter; texts it leaves to the server to guess."""
        oid = 0 if value is None else adapt.get_dumper(value, PyFormat.AUTO).oid
        if (info := self._connection.adapters.types.get(oid)) is None:
            return "unknown"
        return f"{info.name}[]" if oid == info.array_oid else info.name


def _listed(items: list[str]) -> str:
    return f"({', '.join(items)})" if items else ""


class ExplainingPostgres(PostgresDatabase):
    """The product's database; `plans` has those of every query so far, by its name and the plan cache's mode."""

    def __init__(self, url: str) -> None:
        # Not prepared by the product, so that claims, too, come through `_transaction`: no statement goes alone.
        super().__init__(read_settings({}, None, database=url, statement_timeout_sec=60, prepare_statements=False))
        self._names = {text: name for name, text in self._restyled.items()}
        self.plans: dict[tuple[str, str], list[Plan]] = defaultdict(list)

    def _transaction(self, operation: str, work: Callable[[Tx], T], begin: str) -> T:
        def explained(tx: Tx) -> T:
            watched = ExplainingConnection(cast("PostgresTx", tx).connection, self.keep)
            return work(PostgresTx(cast("psycopg.Connection[Any]", watched), self._restyled))

        return super()._transaction(operation, explained, begin)

    def keep(self, query: str, mode: str, plan: Plan) -> None:
        self.plans[self._names[query], mode].append(plan)

    def publish_as_caller(self, steps: Steps[T]) -> T:
        """Run publish statements as user code does: on a connection of its own, without our settings."""
        with psycopg.connect(self._settings.database) as connection:
            watched = ExplainingConnection(connection, self.keep)
            try:
                statement = next(steps)
                while True:
                    cursor = watched.execute(restyle(statement.sql, "pyformat"), cast("Any", statement.values))
                    statement = steps.send(cursor.fetchall() if cursor.description else [])
            except StopIteration as end:
                return cast("T", end.value)


def nodes(plan: Plan, above: tuple[Plan, ...] = ()) -> Iterator[tuple[Plan, tuple[Plan, ...]]]:
    """Every node of a plan with the nodes above it, from the root down."""
    yield plan, above
    for child in plan.get("Plans", ()):
        yield from nodes(child, (*above, plan))


def disabled(plan: Plan) -> list[str]:
    """The nodes that the planner took although a setting disables them.

    PostgreSQL 18 says so of each; before, it shows as a cost of 1e10 in the node and in all above it.
    """
    return [
        f"{node['Node Type']} on {node.get('Relation Name', '?')}"
        for node, _ in nodes(plan)
        if node.get("Disabled")
        or (node["Total Cost"] >= 1e9 and not any(below["Total Cost"] >= 1e9 for below in node.get("Plans", ())))
    ]


# ------------------------------------------------------------------------------------------------ SQLite


class ExplainingSqliteConnection:
    """A SQLite connection that explains each statement before it runs it."""

    def __init__(self, connection: sqlite3.Connection, keep: Callable[[str, list[str]], None]) -> None:
        self._connection = connection
        self._keep = keep

    def execute(self, statement: str, values: Mapping[str, Any] | Sequence[Any]) -> sqlite3.Cursor:
        explained = self._connection.execute(f"explain query plan {statement}", values)
        self._keep(statement, [detail for *_, detail in explained])
        return self._connection.execute(statement, values)

    def executemany(self, statement: str, rows: Sequence[Mapping[str, Any]]) -> None:
        for values in rows:
            self.execute(statement, values)


class ExplainingSqlite(SqliteDatabase):
    """The product's database; `plans` has (name of the query, statement, its plan) in the order they ran."""

    def __init__(self, url: str) -> None:
        super().__init__(read_settings({}, None, database=url))
        self._names = {text: name for name, script in self._scripts.items() for text in script}
        self._names |= {
            repeated: name for text, name in self._names.items() for repeated in spellings(text) if repeated != text
        }
        self.plans: list[tuple[str, str, list[str]]] = []

    def write(self, operation: str, work: Callable[[Tx], T]) -> T:
        return super().write(operation, lambda tx: work(self._explaining(tx)))

    def read(self, work: Callable[[Tx], T], *, pinned: bool = True) -> T:
        return super().read(lambda tx: work(self._explaining(tx)), pinned=pinned)

    def _explaining(self, tx: Tx) -> Tx:
        inner = cast("SqliteTx", tx)
        watched = ExplainingSqliteConnection(inner._connection, self._keep)
        return SqliteTx(cast("sqlite3.Connection", watched), inner._queries, inner._now)

    def _keep(self, statement: str, plan: list[str]) -> None:
        self.plans.append((self._names[statement], statement, plan))
