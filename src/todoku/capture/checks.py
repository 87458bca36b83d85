"""What is refused before anything is created at the source (R15), and what `doctor` warns of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from todoku.capture.source import Publication, Server, SlotLag, SourceSession
from todoku.capture.tables import SourceTable
from todoku.core.capture import TableRule
from todoku.core.errors import CaptureError
from todoku.core.pgoutput import Relation, RelationColumn

_FAR_BEHIND: Final = 1 << 30
_PLAIN: Final = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}


def check_server(source: SourceSession, server: Server, *, is_new: bool) -> None:
    """CaptureError: changes cannot be read from this server, or not by this role."""
    if server.wal_level != "logical":
        raise CaptureError(
            f"the source has wal_level = {server.wal_level}, and its log does not have the changes of rows",
            hint="alter system set wal_level = logical; then restart the server", reason="WAL_LEVEL",
        )  # fmt: skip
    if server.is_standby:
        raise CaptureError(
            "the source is a standby, and cannot be written to", hint="name the primary, or promote it",
            reason="SOURCE_AWAY",
        )  # fmt: skip
    role = source.role()
    if not role.replicates:
        raise CaptureError(
            f"the role {role.name} may not read the log of the source",
            hint=f'alter role "{role.name}" replication; Amazon RDS: grant rds_replication to "{role.name}"',
            reason="NO_RIGHTS",
        )
    if is_new and server.slots_left <= 0:
        raise CaptureError(
            "the source has no replication slot left",
            hint="raise max_replication_slots and restart the server, or drop a slot that is not used",
            reason="NO_SLOTS_LEFT",
        )


def check_table(source: SourceSession, rule: TableRule, *, snapshot: bool) -> SourceTable:
    """Reads a table from the catalog. CaptureError: publishing it would break its application or lose changes (R15)."""
    found = source.rows("table", schema=rule.schema, table=rule.name)
    if not found:
        raise CaptureError(
            f"the source has no table {rule.table}", hint="create it, or correct its name; names are as in the catalog",
            reason="NO_TABLE",
        )  # fmt: skip
    ((oid, kind, persistence, identity, selectable, _owned, _owner),) = found
    if kind in _PLAIN or persistence != "p":
        what = _PLAIN.get(kind, "a temporary or unlogged table")
        raise CaptureError(
            f"{rule.table} is {what}, whose changes are not in the log",
            hint="capture the tables that it reads" if kind in _PLAIN else f"alter table {rule.table} set logged",
            reason="NO_TABLE",
        )
    if snapshot and not selectable:
        raise CaptureError(
            f"the role may not read {rule.table}", hint=f"grant select on {rule.table} (and usage on its schema) to it",
            reason="NO_RIGHTS",
        )  # fmt: skip
    columns = source.rows("columns", oid=oid)
    names = [name for name, _, _ in columns]
    if missing := [name for name in rule.key if name not in names]:
        raise CaptureError(
            f"{rule.table} has no column {missing[0]}, which is to be its key",
            hint=f"key=… is one of {', '.join(names)}", reason="NO_IDENTITY",
        )  # fmt: skip
    paging = _check_identity(source, rule, oid, snapshot=snapshot)
    ((expected,),) = source.rows("expected_rows", oid=oid)
    return SourceTable(
        rule=rule, relation=relation_of(oid, rule, identity, columns, paging), paging=paging, expected=expected,
        types=tuple(type_name for _, _, type_name in columns), is_partitioned=kind == "p",
    )  # fmt: skip


def relation_of(
    oid: int, rule: TableRule, identity: str, columns: Iterable[tuple[str, int, str]], paging: tuple[str, ...]
) -> Relation:
    """Describes a table as the stream does."""
    described = tuple(RelationColumn(name, type, identity == "f" or name in paging) for name, type, _ in columns)
    return Relation(oid, rule.schema, rule.name, identity, described)


def _check_identity(source: SourceSession, rule: TableRule, oid: int, *, snapshot: bool) -> tuple[str, ...]:
    """Checks the table and each partition of it; returns the columns by which pages of it are read."""
    identities = source.rows("identities", oid=oid)
    for _, name, identity, columns in identities:
        if identity == "n" or (identity != "f" and not columns):
            raise CaptureError(
                f"{name} has no replica identity: once it is published, its UPDATEs and DELETEs would fail",
                hint=f"give it a primary key, or: alter table {name} replica identity full", reason="NO_IDENTITY",
            )  # fmt: skip
        if identity != "f" and (outside := [column for column in rule.key if column not in columns]):
            raise CaptureError(
                f"the column {outside[0]} of {name} is not part of its replica identity ({', '.join(columns)}), so the"
                f" log of a DELETE does not have it",
                hint=f"key={columns[0]!r}, or: alter table {name} replica identity full", reason="NO_IDENTITY",
            )  # fmt: skip
    paging: list[str] | None = identities[0][3]
    if not paging and snapshot:
        raise CaptureError(
            f"{rule.table} has no unique index over columns that are never null, by which its rows could be read",
            hint="give it a primary key, or capture it with snapshot=False", reason="NO_IDENTITY",
        )  # fmt: skip
    return tuple(paging or ())


def check_publication(
    source: SourceSession, name: str, publication: Publication | None, tables: Mapping[str, SourceTable]
) -> list[str]:
    """Returns the tables that are to be added. CaptureError: they cannot be, or the publication leaves changes out."""
    if publication is not None and not publication.is_complete:
        raise CaptureError(
            f"the publication {name} leaves some operations or partitions out",
            hint=f"alter publication {name} set (publish = 'insert, update, delete, truncate',"
            " publish_via_partition_root = true)",
            reason="PUBLICATION_CHANGED",
        )
    if publication is not None and (partial := [table for table in publication.partial if table in tables]):
        raise CaptureError(
            f"the publication {name} has only some rows or columns of {partial[0]}",
            hint="add the table without WHERE and without a list of columns", reason="PUBLICATION_CHANGED",
        )  # fmt: skip
    if publication is not None and publication.has_all_tables:
        return []
    there = {} if publication is None else publication.tables
    missing = [table for table in tables if table not in there]
    if missing:
        _check_rights(source, name, publication, [tables[table] for table in missing])
    return missing


def _check_rights(source: SourceSession, name: str, publication: Publication | None, tables: list[SourceTable]) -> None:
    role = source.role()
    statement = f"create publication {name} for table … with (publish_via_partition_root = true)"
    if publication is None and not role.creates:
        raise CaptureError(
            f"the role {role.name} may not create a publication",
            hint=f'grant create on this database to "{role.name}", or let an owner of the tables run: {statement}',
            reason="NO_RIGHTS",
        )
    for table in tables:
        ((*_, owned, owner),) = source.rows("table", schema=table.rule.schema, table=table.rule.name)
        if not owned or (publication is not None and not publication.is_own):
            raise CaptureError(
                f"the role {role.name} may not publish {table.rule.table}, which belongs to {owner}",
                hint=f'grant "{owner}" to "{role.name}", or let the owner add it: alter publication {name} add table'
                f" {table.rule.table}" if publication is not None
                else f'grant "{owner}" to "{role.name}", or let the owner run: {statement}',
                reason="NO_RIGHTS",
            )  # fmt: skip


def find_warnings(server: Server, lag: SlotLag | None, slot: str, *, drop_slot_above: int | None) -> tuple[str, ...]:
    """What an operator should know about the source although the capture runs."""
    found = []
    if server.keep_size < 0 and drop_slot_above is None:
        found.append(
            "max_slot_wal_keep_size is -1 at the source: while no worker reads, the slot keeps its log without a bound,"
            " until the disk is full; set a bound there, or drop_slot_above of box.capture"
        )
    if lag is not None and lag.retained >= _FAR_BEHIND:
        found.append(
            f"the slot {slot} makes the source keep {lag.retained >> 20} MB of its log: the reader is slow or away, or"
            " a transaction at the source has been open for long"
        )
    return tuple(found)
