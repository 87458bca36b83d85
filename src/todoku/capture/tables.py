"""The captured tables of one session: how their rows are named, and which rows changed while a snapshot is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import msgspec

from todoku.core.capture import Encoder, PageSnapshot, TableRule, key_text
from todoku.core.pgoutput import UNCHANGED, Relation, Row
from todoku.store.captures import TableState


class SourceTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table as the catalog of the source has it now. `paging`: the columns of a unique index, by which rows are read.

    `types`: the names of the types of its columns. `expected`: about how many rows it has.
    """

    rule: TableRule
    relation: Relation
    types: tuple[str, ...]
    paging: tuple[str, ...]
    expected: int
    is_partitioned: bool = False


class CapturedTable:
    """What a session knows of a table, whatever its columns are at the moment."""

    def __init__(self, state: TableState, source: SourceTable) -> None:
        self.state = state
        self.source = source
        self.rule = source.rule
        self.keeps_keys = state.snapshot or state.phase != "done"
        """Whether the keys of its rows are kept, so that a later snapshot can find those that are gone (R20)."""
        self.is_recording = state.phase != "done"
        """Whether a snapshot of it is under way."""
        self.phase = state.phase
        self.position = state.position
        self.copied = state.copied
        self._changed: dict[str, int] = {}
        self._truncated_by: int | None = None

    def record(self, key: str, xid: int) -> None:
        """Records that a transaction changed a row. Of several, the last: who sees it sees those before it."""
        self._changed[key] = xid

    def record_truncate(self, xid: int) -> None:
        """Records that a transaction emptied the table."""
        self._truncated_by = xid

    def is_newer(self, key: str, page: PageSnapshot) -> bool:
        """Whether a row was changed, and published, by a transaction that the page could not see (R17)."""
        xid = self._changed.get(key)
        return xid is not None and not page.sees(xid)

    def is_emptied(self, page: PageSnapshot) -> bool:
        """Whether the table was emptied by a transaction that the page could not see."""
        return self._truncated_by is not None and not page.sees(self._truncated_by)

    def forget(self, page: PageSnapshot) -> None:
        """Forgets what this page saw: later pages see it, too."""
        self._changed = {key: xid for key, xid in self._changed.items() if not page.sees(xid)}

    def finish(self) -> None:
        """Ends the recording: the snapshot is complete."""
        self.is_recording = False
        self._changed = {}


class RowNames:
    """Names the rows of a table by its key and, where that is not unique, by the columns that make it so."""

    def __init__(self, relation: Relation, table: CapturedTable) -> None:
        self.columns = name_columns(relation, table.source)
        places = {column.name: place for place, column in enumerate(relation.columns)}
        self._places = tuple(places[name] for name in self.columns)
        self._one = self._places[0] if len(self._places) == 1 else None

    def of(self, row: Row, old: Row | None = None) -> str:
        """Returns the name of a row. `old`: has what is not in `row` because it did not change."""
        if self._one is not None and isinstance(value := row[self._one], bytes) and 0 < len(value) < 128:
            return value.decode(errors="backslashreplace")
        return key_text([_text(row[place], None if old is None else old[place]) for place in self._places])


def name_columns(relation: Relation, source: SourceTable) -> tuple[str, ...]:
    """The columns that name a row: those of its key, then the others of the replica identity, or of a unique index."""
    key = source.rule.key
    known = {column.name for column in relation.columns}
    if relation.identity == "f":  # every column is part of it
        more: Sequence[str] = [name for name in source.paging if name in known]
    else:
        more = [column.name for column in relation.columns if column.key]
    return (*key, *(name for name in more if name not in key))


def _text(value: object, before: object) -> str | None:
    if value is UNCHANGED:
        value = before
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else None


class StreamedTable:
    """A table as the stream describes it at the moment; a change of its columns makes a new one."""

    def __init__(self, relation: Relation, table: CapturedTable) -> None:
        self.table = table
        self.name = table.rule.table
        self.encoder = Encoder(relation, table.rule)
        self.names = RowNames(relation, table)
        self.relation = relation

    @cached_property
    def name_encoder(self) -> Encoder:
        """Encodes rows of which nothing is known but their names."""
        named = tuple(
            msgspec.structs.replace(column, key=column.name in self.names.columns) for column in self.relation.columns
        )
        return Encoder(msgspec.structs.replace(self.relation, columns=named), self.table.rule)

    def row(self, values: Mapping[str, str | None]) -> Row:
        """Returns a row with these values only, as the log has the old row of a delete."""
        found = (values.get(column.name) for column in self.relation.columns)
        return tuple(None if value is None else value.encode() for value in found)
