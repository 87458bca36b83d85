"""The session at the source beside the stream: facts, checks, the publication, the slot, marks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import Any, Final

import msgspec
import psycopg
from psycopg import sql

from todoku.capture.pages import PREFIX
from todoku.capture.replication import connect
from todoku.core.capture import parse_lsn
from todoku.core.capture_start import SlotFacts
from todoku.core.errors import CaptureError
from todoku.store.sql import parse, restyle

_FAILOVER: Final = 170_000
"""The first version whose slots can be carried to a standby, and that flushes a message without a commit."""

_LOCK_TIMEOUT: Final = "3s"
"""How long a statement that blocks writers of a table may wait for them."""


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of the source that matter. `keep_size`: megabytes of log that a slot may retain, -1: any number."""

    wal_level: str
    version: int
    is_standby: bool
    slots_left: int
    keep_size: int
    sender_timeout: float
    database: str
    position: str | None


class Role(msgspec.Struct, frozen=True, kw_only=True):
    """What the role of the capture may do."""

    name: str
    replicates: bool
    creates: bool


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """The publication as the catalog has it. `tables`: the oids of memberships; `partial`: those of some rows only."""

    oid: int
    is_complete: bool
    has_all_tables: bool
    is_own: bool
    tables: dict[str, int]
    partial: tuple[str, ...]


class SlotLag(msgspec.Struct, frozen=True):
    """Bytes of log that the slot has not confirmed, and that the server keeps for it."""

    behind: int
    retained: int


@cache
def _queries() -> dict[str, str]:
    text = files("todoku.capture").joinpath("source.sql").read_text("utf-8")
    return {name: restyle(query, "pyformat") for name, query in parse(text).items()}


class SourceSession:
    """A session in autocommit. Used by one thread at a time; `cancel` by any."""

    def __init__(self, url: str) -> None:
        self.connection = connect(url)
        self._version = self.connection.info.server_version

    def close(self) -> None:
        """Ends the session."""
        self.connection.close()

    def cancel(self) -> None:
        """Cancels what the session is waiting for."""
        if not self.connection.closed:
            self.connection.cancel_safe(timeout=5.0)

    def rows(self, query: str, **values: object) -> list[Any]:
        """Runs a named query of source.sql."""
        cursor = self.connection.execute(_queries()[query], values)
        return cursor.fetchall() if cursor.description else []

    # -------------------------------------------------------------------------------------------- facts

    def server(self) -> Server:
        """Reads the settings of the server."""
        ((wal_level, version, standby, left, keep, timeout, database, position),) = self.rows("server")
        return Server(
            wal_level=wal_level, version=version, is_standby=standby, slots_left=left, keep_size=keep,
            sender_timeout=float(timeout), database=database, position=position,
        )  # fmt: skip

    def role(self) -> Role:
        """Reads the rights of the role."""
        ((name, replicates, creates),) = self.rows("role")
        return Role(name=name, replicates=replicates, creates=creates)

    def slot(self, slot: str) -> SlotFacts | None:
        """Reads a slot; None: there is none."""
        for _active, pid, status, confirmed, _restart, invalidated, _plugin, _database in self.rows("slot", slot=slot):
            # A lost slot has no position any more on some versions.
            position = 0 if confirmed is None else parse_lsn(confirmed)
            return SlotFacts(confirmed=position, wal_status=status, invalidation_reason=invalidated, active_pid=pid)
        return None

    def publication(self, name: str) -> Publication | None:
        """Reads a publication; None: there is none."""
        for oid, operations, via_root, all_tables, own in self.rows("publication", publication=name):
            members = self.rows("published_tables", oid=oid)
            return Publication(
                oid=oid, is_complete=operations and via_root, has_all_tables=all_tables, is_own=own,
                tables={table: member for table, member, _ in members},
                partial=tuple(table for table, _, partial in members if partial),
            )  # fmt: skip
        return None

    def lag(self, slot: str) -> SlotLag | None:
        """Measures a slot; None: there is none, or it has no position any more."""
        for behind, retained in self.rows("lag", slot=slot):
            if behind is not None and retained is not None:
                return SlotLag(behind, retained)
        return None

    def position(self) -> int:
        """The end of the log: what was committed before this call ends at or before it."""
        ((text,),) = self.rows("position")
        return parse_lsn(text)

    # --------------------------------------------------------------------------------------------- acts

    def create_publication(self, name: str, tables: list[tuple[str, str]]) -> None:
        """Creates the publication. Partitions are published as their table is; tables that inherit from one are not."""
        self.connection.execute(
            sql.SQL(
                "create publication {} for table only {} with"
                " (publish = 'insert, update, delete, truncate', publish_via_partition_root = true)"
            ).format(sql.Identifier(name), sql.SQL(", only ").join(sql.Identifier(*table) for table in tables))
        )

    def add_to_publication(self, name: str, table: tuple[str, str]) -> None:
        """Adds a table, while no transaction writes it.

        A transaction that has written the table before and commits after this would make some servers skip the changes
        of the table also in later transactions.
        """
        with self.connection.transaction():
            self.connection.execute(sql.SQL("set local lock_timeout = {}").format(_LOCK_TIMEOUT))
            self.connection.execute(sql.SQL("lock table {} in share row exclusive mode").format(sql.Identifier(*table)))
            self.connection.execute(
                sql.SQL("alter publication {} add table only {}").format(sql.Identifier(name), sql.Identifier(*table))
            )

    def drop_publication(self, name: str) -> None:
        """Drops the publication, if it is there."""
        self.connection.execute(sql.SQL("drop publication if exists {}").format(sql.Identifier(name)))

    def create_slot(self, slot: str) -> int:
        """Creates the slot and returns its position. Waits for the transactions that write at the moment."""
        query = "create_failover_slot" if self._version >= _FAILOVER else "create_slot"
        ((position,),) = self.rows(query, slot=slot)
        return parse_lsn(position)

    def drop_slot(self, slot: str, *, attempts: int = 50) -> None:
        """Drops the slot, if it is there, and ends the session that reads it."""
        for left in reversed(range(attempts)):
            try:
                self.rows("end_reader", slot=slot)
                self.rows("drop_slot", slot=slot)
            except psycopg.errors.ObjectInUse:  # its reader has not ended yet, or has come back
                if not left:
                    raise
                self.connection.execute("select pg_sleep(0.1)")
            else:
                return

    def mark(self, content: str) -> None:
        """Writes a mark into the log."""
        query = "write_mark" if self._version >= _FAILOVER else "commit_mark"
        self.rows(query, prefix=PREFIX, content=content)

    @contextmanager
    def page_transaction(self, table: tuple[str, str]) -> Iterator[str]:
        """Opens the transaction of a page, and yields the text of its snapshot.

        The table is locked before the snapshot is taken: one that was rewritten in between would look empty.
        """
        with self.connection.transaction():
            self.connection.execute("set transaction isolation level repeatable read, read only")
            self.connection.execute(sql.SQL("set local lock_timeout = {}").format(_LOCK_TIMEOUT))
            self.connection.execute(sql.SQL("lock table {} in access share mode").format(sql.Identifier(*table)))
            ((snapshot,),) = self.rows("page_snapshot")
            yield snapshot


def drop_at_source(url: str, slot: str, publication: str) -> None:
    """Drops the slot and the publication of a capture. CaptureError: the source does not answer, or refuses."""
    try:
        source = SourceSession(url)
        try:
            source.drop_slot(slot)
            source.drop_publication(publication)
        finally:
            source.close()
    except psycopg.Error as error:
        raise CaptureError(
            f"the slot {slot} could not be dropped at the source: {' '.join(str(error).split())}",
            hint="a slot that stays makes the source keep its log; repeat it; forget_source=True if the source is gone",
            reason="SOURCE_AWAY",
        ) from error
