"""The model of a source: its tables as they stand, values with the JSON they must become, and changes to undo."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

Key = tuple[str, ...]
Row = dict[str, Any]
"""By column, what must stand in the payload."""

LONG = 2500
"""So many characters are stored outside of their row (the columns that may have them are `storage external`)."""


class Value(NamedTuple):
    """What is written, as text for the server, and what the payload must have."""

    written: str | None
    told: Any


class Change(NamedTuple):
    """One change of a row in a committed transaction. `alter`: the row looks different, and no message is due."""

    table: str
    op: str
    key: Key | None
    row: Row | None
    may_lack: frozenset[str] = frozenset()
    """Columns whose long value did not change: the server may leave them out."""


@dataclass
class Table:
    """A table as the transactions so far left it."""

    name: str
    key: tuple[str, ...]
    columns: dict[str, str]
    """Name and kind, in order."""
    options: str = ""
    """Behind the columns of CREATE TABLE."""
    after: tuple[str, ...] = ()
    """Statements that follow it."""
    rows: dict[Key, Row] = field(default_factory=dict)
    known: list[Key] = field(default_factory=list)
    added: int = 0
    """Columns that DDL has added so far, dropped ones too."""
    next_id: int = 1

    def key_of(self, row: Row) -> Key:
        """The text of each key column."""
        return tuple(str(row[name]) for name in self.key)

    def put(self, row: Row, undo: list[Callable[[], None]]) -> Key:
        """Set a row, and note how to take that back."""
        key = self.key_of(row)
        undo.append(partial(self._restore, key, self.rows.get(key)))
        self.rows[key] = row
        self.known.append(key)
        if len(self.known) > 4 * len(self.rows) + 1000:
            self.known = list(self.rows)
        return key

    def remove(self, key: Key, undo: list[Callable[[], None]]) -> Row:
        """Remove a row, and note how to take that back."""
        row = self.rows.pop(key)
        undo.append(partial(self._restore, key, row))
        return row

    def replace(self, columns: dict[str, str], rows: dict[Key, Row], undo: list[Callable[[], None]]) -> None:
        """Everything at once: TRUNCATE, DDL."""
        undo.append(partial(self._replace, self.columns, self.rows))
        self._replace(columns, rows)

    def pick(self, chance: random.Random) -> Key | None:
        """A row that is there."""
        if not self.rows:
            return None
        for _ in range(20):
            if self.known and (key := self.known[chance.randrange(len(self.known))]) in self.rows:
                return key
        self.known = list(self.rows)
        return self.known[chance.randrange(len(self.known))]

    def _restore(self, key: Key, row: Row | None) -> None:
        if row is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = row

    def _replace(self, columns: dict[str, str], rows: dict[Key, Row]) -> None:
        self.columns, self.rows = columns, rows


def draw(kind: str, chance: random.Random) -> Value:
    """A value of a column of that kind; now and then NULL."""
    if chance.random() < 0.05:
        return Value(None, None)
    return _DRAWN[kind](chance)


def _text(chance: random.Random) -> Value:
    words = chance.choice(
        ("plain", "it's", 'a "quote"', "back\\slash", "new\nline", "größe", "日本語", "", "\u2028 {}")
    )
    return Value(text := f"{words} {chance.randrange(1000)}", text)


def _external(chance: random.Random) -> Value:
    """Half of them so long that the server stores them outside of the row."""
    number = LONG + chance.randrange(500) if chance.random() < 0.5 else 20
    start = chance.randrange(1_000_000)
    return Value(text := f"{start:08}" + string.ascii_letters[start % 52] * number, text)


def _json(chance: random.Random) -> Value:
    told: Any = chance.choice(({}, [], 1, None, "text", {"a": [1, 2.5, None]}, {"ä": "\n"}))
    told = {"n": chance.randrange(100), "v": told} if chance.random() < 0.8 else [told]
    return Value(json.dumps(told), told)


def _numbers(chance: random.Random) -> Value:
    told = [chance.choice((None, chance.randrange(-9, 9))) for _ in range(chance.randrange(4))]
    return Value("{" + ",".join("NULL" if one is None else str(one) for one in told) + "}", told)


def _numeric(chance: random.Random) -> Value:
    return Value(text := f"{chance.randrange(-(10**6), 10**6)}.{chance.randrange(100):02}", _canonical(text))


def _canonical(text: str) -> str:
    return text.replace("-0.00", "0.00") if text == "-0.00" else text


def _moment(chance: random.Random) -> Value:
    day = f"2026-0{chance.randrange(1, 9)}-1{chance.randrange(10)}"
    time = f"0{chance.randrange(10)}:{chance.randrange(10, 60)}:{chance.randrange(10, 60)}.{chance.randrange(10**5)}7"
    seconds, _, fraction = time.partition(".")
    time = f"{seconds}.{fraction:0>6}"
    return Value(f"{day} {time}+00", f"{day}T{time}+00:00")


def _integer(chance: random.Random) -> Value:
    return Value(str(number := chance.randrange(-(10**9), 10**9)), number)


def _boolean(chance: random.Random) -> Value:
    return Value("true", True) if chance.random() < 0.5 else Value("false", False)


def _float(chance: random.Random) -> Value:
    return Value(repr(number := chance.random()), number)


def _bytes(chance: random.Random) -> Value:
    return Value(text := "\\x" + chance.randbytes(chance.randrange(8)).hex(), text)


_DRAWN: dict[str, Callable[[random.Random], Value]] = {
    "text": _text, "external": _external, "jsonb": _json, "integer[]": _numbers, "numeric(12,2)": _numeric,
    "timestamptz": _moment, "integer": _integer, "bigint": _integer, "boolean": _boolean, "double precision": _float,
    "bytea": _bytes,
}  # fmt: skip
