"""Transactions of random shape, by a seed, and what each must become.

A `Plan` belongs to one writer. It draws transaction after transaction over tables that no other writer changes, and
keeps the model of them: so its own order is the order of its commits. A transaction that a crash undid is run again as
it was drawn; the plan depends on the seed alone. Rows of `shop.stock` are changed by every writer: there the server
counts (`v = v + 1`), and its numbers are the order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.capture.source_model import LONG, Change, Key, Row, Table, Value, draw

SCHEMA = "shop"
STOCK = f"{SCHEMA}.stock"
STOCKED = 7
"""Rows of the table that all writers change."""

LEDGER = f"{SCHEMA}.ledger"
REGIONS = ("north", "south", "west", "far")
KINDS = ("integer", "text", "boolean", "numeric(12,2)", "timestamptz", "integer[]")
"""Of columns that DDL adds."""


@dataclass(frozen=True)
class Statement:
    """SQL with its values; several rows of values are one COPY. `fails`: the server is to refuse it."""

    sql: str
    values: tuple[str | None, ...] = ()
    copied: tuple[tuple[str | None, ...], ...] = ()
    fails: bool = False


@dataclass(frozen=True)
class Transaction:
    """What a writer does, and what of it must be seen. `stock`: a row of the shared table to change before the end."""

    number: int
    statements: tuple[Statement, ...]
    changes: tuple[Change, ...]
    commit: bool
    stock: int | None = None


@dataclass
class _Draft:
    """A transaction that is being drawn."""

    statements: list[Statement] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    undo: list[Callable[[], None]] = field(default_factory=list)

    def run(self, sql: str, *values: str | None) -> None:
        self.statements.append(Statement(sql, values))

    def back_to(self, changes: int, undo: int) -> None:
        """Take back what came after a savepoint."""
        while len(self.undo) > undo:
            self.undo.pop()()
        del self.changes[changes:]


def tables_of(writer: int) -> list[Table]:
    """The tables of one writer: a plain one, one with two key columns and a full identity, a partitioned one."""
    items = Table(
        f"{SCHEMA}.items_{writer}", ("id",),
        {"id": "bigint", "name": "text", "amount": "integer", "price": "numeric(12,2)", "data": "jsonb",
         "note": "external", "at": "timestamptz", "sizes": "integer[]"},
    )  # fmt: skip
    lines = Table(
        f"{SCHEMA}.lines_{writer}", ("order_id", "line"),
        {"order_id": "integer", "line": "integer", "note": "external", "rate": "double precision", "raw": "bytea"},
        after=(f"alter table {SCHEMA}.lines_{writer} replica identity full",),
    )  # fmt: skip
    name = f"{SCHEMA}.regions_{writer}"
    regions = Table(
        name, ("region", "id"), {"region": "text", "id": "integer", "note": "external", "open": "boolean"},
        " partition by list (region)",
        (f"create table {name}_rest partition of {name} default",
         *(f"create table {name}_{one} partition of {name} for values in ('{one}')" for one in REGIONS[:2])),
    )  # fmt: skip
    return [items, lines, regions]


def captured(writers: int) -> dict[str, tuple[str, ...]]:
    """The tables to capture, each with its key."""
    return {table.name: table.key for writer in range(writers) for table in tables_of(writer)} | {STOCK: ("id",)}


def shared_tables() -> list[str]:
    """What creates the tables that all writers use. The ledger is the writers' own memory, and not captured."""
    return [
        f"create schema {SCHEMA}",
        f"create table {LEDGER} (writer integer, number integer, xid text not null, primary key (writer, number))",
        f"create table {STOCK} (id integer primary key, v bigint not null, who text)",
        f"insert into {STOCK} select n, 0, 'nobody' from generate_series(0, {STOCKED - 1}) n",
    ]


class Plan:
    """One writer's tables, and its transactions one after another."""

    def __init__(self, seed: str, writer: int, *, rows: int, large: Sequence[int] = (1500, 3000)) -> None:
        self.writer = writer
        self.tables = tables_of(writer)
        self._chance = random.Random(f"{seed} {writer}")
        self._rows = rows
        self._large = large
        self._number = 0
        self._heap: tuple[int, int] | None = None
        self.initial: dict[str, dict[Key, Row]] = {}

    # ------------------------------------------------------------------------------------------------ the beginning

    def setup(self) -> Iterator[Statement]:
        """What creates the tables and fills them, before anything is captured."""
        for table in self.tables:
            columns = ", ".join(_definition(name, kind) for name, kind in table.columns.items())
            primary = ", ".join(table.key)
            yield Statement(f"create table {table.name} ({columns}, primary key ({primary})){table.options}")
            yield from (Statement(sql) for sql in table.after)
            yield Statement(f"alter table {table.name} alter column note set storage external")
            written: list[tuple[str | None, ...]] = []
            for _ in range(self._rows if table is self.tables[0] else min(self._rows, 200)):
                values = self._new_row(table)
                table.put({name: value.told for name, value in values.items()}, [])
                written.append(tuple(value.written for value in values.values()))
            yield _copy(table, written)
            self.initial[table.name] = dict(table.rows)

    # ------------------------------------------------------------------------------------------------- transactions

    def next(self) -> Transaction:
        """The next transaction; the model is as if it were committed already."""
        self._number += 1
        draft, chance = _Draft(), self._chance
        if chance.random() < 0.004:
            self._heap_up(draft)
        else:
            for _ in range(1 + int(chance.expovariate(0.4))):
                self._step(draft, depth=0)
        commit = chance.random() < 0.95
        if not commit:
            draft.back_to(0, 0)
        stock = chance.randrange(STOCKED) if commit and chance.random() < 0.15 else None
        return Transaction(self._number, tuple(draft.statements), tuple(draft.changes), commit, stock)

    def _step(self, draft: _Draft, depth: int) -> None:
        table = self.tables[min(int(self._chance.expovariate(0.8)), len(self.tables) - 1)]
        match self._chance.random():
            case luck if luck < 0.35 or not table.rows:
                self._insert(draft, table)
            case luck if luck < 0.70:
                self._update(draft, table)
            case luck if luck < 0.82:
                self._delete(draft, table)
            case luck if luck < 0.90:
                self._move(draft, table)
            case luck if luck < 0.975 and depth < 2:
                self._part(draft, depth)
            case luck if luck < 0.99 and (len(table.rows) < 2000 or luck < 0.9755):
                self._alter(draft, table)
            case luck if luck > 0.998:
                self._truncate(draft)
            case _:
                self._update(draft, table)

    def _insert(self, draft: _Draft, table: Table) -> None:
        values = self._new_row(table)
        marks = ", ".join("%s" for _ in values)
        draft.run(
            f"insert into {table.name} ({', '.join(values)}) values ({marks})", *(v.written for v in values.values())
        )
        row = {name: value.told for name, value in values.items()}
        draft.changes.append(Change(table.name, "insert", table.put(row, draft.undo), row))

    def _update(self, draft: _Draft, table: Table) -> None:
        key = table.pick(self._chance)
        if key is None:
            return
        free = [name for name in table.columns if name not in table.key]
        chosen = self._chance.sample(free, min(len(free), 1 + self._chance.randrange(3)))
        self._set(draft, table, key, {name: draw(table.columns[name], self._chance) for name in chosen})

    def _set(self, draft: _Draft, table: Table, key: Key, values: dict[str, Value]) -> None:
        """One UPDATE; if it changes the key, that is a delete and an insert (R18)."""
        before = table.rows[key]
        row = before | {name: value.told for name, value in values.items()}
        settings = ", ".join(f"{name} = %s" for name in values)
        where = " and ".join(f"{name} = %s" for name in table.key)
        draft.run(f"update {table.name} set {settings} where {where}", *(v.written for v in values.values()), *key)
        long = frozenset(n for n, kind in table.columns.items() if kind == "external" and len(row[n] or "") >= LONG)
        lacking = long - values.keys()
        if table.key_of(row) == key:
            table.put(row, draft.undo)
            draft.changes.append(Change(table.name, "update", key, row, lacking))
            return
        table.remove(key, draft.undo)
        draft.changes.append(Change(table.name, "delete", key, None))
        draft.changes.append(Change(table.name, "insert", table.put(row, draft.undo), row, lacking))

    def _delete(self, draft: _Draft, table: Table) -> None:
        key = table.pick(self._chance)
        if key is None:
            return
        table.remove(key, draft.undo)
        draft.run(f"delete from {table.name} where {' and '.join(f'{name} = %s' for name in table.key)}", *key)
        draft.changes.append(Change(table.name, "delete", key, None))

    def _move(self, draft: _Draft, table: Table) -> None:
        """Give a row another key: a new one, or one that was free again; of regions, perhaps another partition."""
        key = table.pick(self._chance)
        if key is None:
            return
        new = self._new_key(table)
        if table.key == ("region", "id") and self._chance.random() < 0.7:
            new["id"] = Value(key[1], int(key[1]))
        if self._chance.random() < 0.3:
            free = next((one for one in table.known[-50:] if one not in table.rows), None)
            if free is not None:
                new = dict(zip(table.key, (Value(t, int(t) if t.isdecimal() else t) for t in free), strict=True))
        texts = tuple(str(value.told) for value in new.values())
        if texts in table.rows:
            return
        more = {"note": draw("external", self._chance)} if self._chance.random() < 0.3 else {}
        self._set(draft, table, key, new | more)

    def _part(self, draft: _Draft, depth: int) -> None:
        """A savepoint, some steps, and half of the time back to it; or a refused statement, and back."""
        name = f"part_{depth}"
        changes, undo = len(draft.changes), len(draft.undo)
        draft.run(f"savepoint {name}")
        for _ in range(1 + self._chance.randrange(3)):
            self._step(draft, depth + 1)
        match self._chance.random():
            case luck if luck < 0.5:
                draft.run(f"release savepoint {name}")
            case luck if luck < 0.7 and (key := self.tables[0].pick(self._chance)) is not None:
                sql = f"insert into {self.tables[0].name} (id) values (%s)"
                draft.statements.append(Statement(sql, key, fails=True))
                draft.run(f"rollback to savepoint {name}")
                draft.back_to(changes, undo)
            case _:
                draft.run(f"rollback to savepoint {name}")
                draft.back_to(changes, undo)

    def _truncate(self, draft: _Draft) -> None:
        """One table or two."""
        tables = self._chance.sample(self.tables[1:], 1 + self._chance.randrange(2))
        draft.run(f"truncate {', '.join(table.name for table in tables)}")
        for table in tables:
            table.replace(table.columns, {}, draft.undo)
            draft.changes.append(Change(table.name, "truncate", None, None))

    def _alter(self, draft: _Draft, table: Table) -> None:
        """Add, drop, rename or retype a column that DDL added; or add a partition."""
        extra = [name for name in table.columns if name.startswith("x")]
        match self._chance.randrange(4):
            case 0 if extra:
                name = self._chance.choice(extra)
                draft.run(f"alter table {table.name} drop column {name}")
                self._reshape(draft, table, {n: k for n, k in table.columns.items() if n != name}, _dropped(name))
            case 1 if extra:
                name, new = self._chance.choice(extra), self._fresh(table)
                draft.run(f"alter table {table.name} rename column {name} to {new}")
                columns = {new if n == name else n: kind for n, kind in table.columns.items()}
                self._reshape(draft, table, columns, _renamed(name, new))
            case 2 if numbers := [name for name in extra if table.columns[name] == "integer"]:
                name = self._chance.choice(numbers)
                draft.run(f"alter table {table.name} alter column {name} type text")
                self._reshape(draft, table, table.columns | {name: "text"}, _as_text(name))
            case _ if len(extra) < 4:
                name, kind = self._fresh(table), self._chance.choice(KINDS)
                value = draw(kind, self._chance)
                text = None if value.written is None else value.written.replace("'", "''")
                default = "" if text is None else f" default '{text}'"
                draft.run(f"alter table {table.name} add column {name} {kind}{default}")
                self._reshape(draft, table, table.columns | {name: kind}, _added(name, value))
            case _:
                self._update(draft, table)

    def _reshape(self, draft: _Draft, table: Table, columns: dict[str, str], change: Callable[[Row], Row]) -> None:
        rows = {key: change(row) for key, row in table.rows.items()}
        table.replace(columns, rows, draft.undo)
        draft.changes += [Change(table.name, "alter", key, row) for key, row in rows.items()]

    def _heap_up(self, draft: _Draft) -> None:
        """Thousands of rows in one transaction, by COPY; the next time they are deleted by one statement."""
        table = self.tables[0]
        if self._heap is not None:
            low, high = self._heap
            self._heap = None
            draft.run(f"delete from {table.name} where id between {low} and {high}")
            for key in [(str(n),) for n in range(low, high + 1) if (str(n),) in table.rows]:
                table.remove(key, draft.undo)
                draft.changes.append(Change(table.name, "delete", key, None))
            return
        low, written = table.next_id, []
        for _ in range(self._chance.choice(self._large)):
            values = self._new_row(table)
            written.append(tuple(value.written for value in values.values()))
            row = {name: value.told for name, value in values.items()}
            draft.changes.append(Change(table.name, "insert", table.put(row, draft.undo), row))
        draft.statements.append(_copy(table, written))
        self._heap = (low, table.next_id - 1)

    # ------------------------------------------------------------------------------------------------------- values

    def _new_key(self, table: Table) -> dict[str, Value]:
        number, table.next_id = table.next_id, table.next_id + 1
        match table.key:
            case ("id",):
                told: dict[str, int | str] = {"id": number}
            case ("order_id", "line"):
                told = {"order_id": number // 4, "line": number % 4}
            case _:
                told = {"region": self._chance.choice(REGIONS), "id": number}
        return {name: Value(str(value), value) for name, value in told.items()}

    def _new_row(self, table: Table) -> dict[str, Value]:
        key = self._new_key(table)
        return {
            name: key[name] if name in key else draw(kind, self._chance) for name, kind in table.columns.items()
        }  # fmt: skip

    @staticmethod
    def _fresh(table: Table) -> str:
        table.added += 1
        return f"x{table.added}"


def _definition(name: str, kind: str) -> str:
    return f"{name} text" if kind == "external" else f"{name} {kind}"


def _copy(table: Table, rows: list[tuple[str | None, ...]]) -> Statement:
    return Statement(f"copy {table.name} ({', '.join(table.columns)}) from stdin", copied=tuple(rows))


def _dropped(name: str) -> Callable[[Row], Row]:
    return lambda row: {n: value for n, value in row.items() if n != name}


def _renamed(name: str, new: str) -> Callable[[Row], Row]:
    return lambda row: {new if n == name else n: value for n, value in row.items()}


def _as_text(name: str) -> Callable[[Row], Row]:
    return lambda row: row | {name: None if row[name] is None else str(row[name])}


def _added(name: str, value: Value) -> Callable[[Row], Row]:
    return lambda row: row | {name: value.told}
