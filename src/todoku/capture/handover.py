"""What the reading thread hands to the storing thread: a queue with a bound, in the order of the source's commits."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from todoku.core.message import Draft
from todoku.store.capture_portions import TableKey, TableProgress

MOST_ROWS: Final = 20_000
MOST_BYTES: Final = 64 << 20
"""The reading thread does not read on while this much waits to be stored."""

PORTION_ROWS: Final = 2_000
PORTION_BYTES: Final = 8 << 20
"""What one commit stores, about: whole source transactions."""


class Keys:
    """What changes mean for the known keys of tables: which are there, which are gone, which tables were emptied."""

    __slots__ = ("_there", "truncated")

    def __init__(self) -> None:
        self._there: dict[TableKey, bool] = {}
        self.truncated: dict[str, None] = {}

    def add(self, table: str, key: str) -> None:
        """A row with this key is there."""
        self._there[table, key] = True

    def remove(self, table: str, key: str) -> None:
        """The row with this key is gone."""
        self._there[table, key] = False

    def truncate(self, table: str) -> None:
        """No row is there any more."""
        self._there = {key: there for key, there in self._there.items() if key[0] != table}
        self.truncated[table] = None

    def extend(self, later: Keys) -> None:
        """Adds what happened later."""
        for table in later.truncated:
            self.truncate(table)
        self._there.update(later._there)

    @property
    def added(self) -> list[TableKey]:
        """The keys that are there."""
        return [key for key, there in self._there.items() if there]

    @property
    def removed(self) -> list[TableKey]:
        """The keys that are gone."""
        return [key for key, there in self._there.items() if not there]


class Changes(msgspec.Struct, frozen=True, kw_only=True):
    """Whole source transactions, or a page of a snapshot, or only a position that is reached.

    `xid`: of what ends at `lsn`, as in `Evidence`.
    """

    lsn: int
    xid: int
    committed_at: float | None = None
    drafts: Sequence[Draft] = ()
    keys: Keys
    page: TableProgress | None = None
    size: int = 0


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a large source transaction whose end has not arrived yet (R19)."""

    number: int
    drafts: Sequence[Draft]
    keys: Keys
    size: int


class StagedEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a large source transaction, with what was not staged of it."""

    rest: Changes
    parts: int


class Sweep(msgspec.Struct, frozen=True, kw_only=True):
    """Up to this position every row of a table was seen: keys that were not seen are gone (R20)."""

    lsn: int
    xid: int
    table: str


Unit = Changes | Stage | StagedEnd | Sweep


class Handover:
    """A queue for one reading and one storing thread. The reading thread never waits here."""

    def __init__(self) -> None:
        self._units: deque[Unit] = deque()
        self._changed = threading.Condition()
        self._rows = 0
        self._bytes = 0
        self._closed = False

    def put(self, unit: Unit) -> None:
        """Adds a unit, also beyond the bound: `has_room` is for the caller to look at before it reads on."""
        with self._changed:
            self._units.append(unit)
            self._rows += _rows(unit)
            self._bytes += _size(unit)
            self._changed.notify()

    @property
    def has_room(self) -> bool:
        """Whether the reading thread may read on."""
        return self._rows < MOST_ROWS and self._bytes < MOST_BYTES

    def take(self, seconds: float) -> Unit | None:
        """Waits for the next unit: as many whole transactions as one commit should have. None: there is none yet."""
        with self._changed:
            if not self._units and not self._closed:
                self._changed.wait(seconds)
            if not self._units:
                return None
            first = self._pop()
            if not isinstance(first, Changes) or first.page is not None:
                return first
            return self._merged(first)

    def close(self) -> None:
        """Wakes the storing thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _pop(self) -> Unit:
        unit = self._units.popleft()
        self._rows -= _rows(unit)
        self._bytes -= _size(unit)
        return unit

    def _merged(self, first: Changes) -> Changes:
        """Joins the transactions that wait behind the first one to it, in their order."""
        drafts, size, last, at = list(first.drafts), first.size, first, first.committed_at
        keys = first.keys
        while self._units and len(drafts) < PORTION_ROWS and size < PORTION_BYTES:
            after = self._units[0]
            if not isinstance(after, Changes) or after.page is not None:
                break
            self._pop()
            drafts.extend(after.drafts)
            keys.extend(after.keys)
            size += after.size
            last, at = after, (at if after.committed_at is None else after.committed_at)
        return Changes(lsn=last.lsn, xid=last.xid, committed_at=at, drafts=drafts, keys=keys, size=size)


def _rows(unit: Unit) -> int:
    match unit:
        case Changes() | Stage():
            return len(unit.drafts)
        case StagedEnd():
            return len(unit.rest.drafts)
        case Sweep():
            return 0


def _size(unit: Unit) -> int:
    match unit:
        case Changes() | Stage():
            return unit.size
        case StagedEnd():
            return unit.rest.size
        case Sweep():
            return 0
