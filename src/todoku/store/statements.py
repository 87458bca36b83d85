"""SQL statements as values, so that the same work runs on todoku's connection or on a caller's."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TypeVar

import msgspec

T = TypeVar("T")
Value = None | bool | int | float | str | bytes | list[int] | list[str]
Row = tuple[object, ...]


class Statement(msgspec.Struct, frozen=True):
    """One SQL statement with `:name` parameters, and one mapping of values or many."""

    sql: str
    values: Mapping[str, Value] | Sequence[Mapping[str, Value]]


Steps = Generator[Statement, list[Row], T]
"""Work on a connection: a generator that yields statements, receives the rows of each, and returns T.

The work itself does no I/O, so `store.run`, `join.run` and `join.run_async` can drive it on any driver.
"""
