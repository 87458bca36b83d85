"""The start of a session: checks, the comparison with what is stored, and what is made at the first one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
import psycopg

from todoku.capture.checks import check_publication, check_server, check_table
from todoku.capture.evidence import Evidence
from todoku.capture.replication import Stream
from todoku.capture.source import Publication, Server, SourceSession
from todoku.capture.storing import FenceLost
from todoku.capture.tables import CapturedTable, SourceTable
from todoku.core.capture import Stop, TableRule, parse_lsn
from todoku.core.capture_start import ServerFacts, SlotFacts, StoredStart, judge_start, parse_timelines
from todoku.core.errors import CaptureError
from todoku.store.captures import CaptureRow, CaptureStore

_CREATING: Final = "The source creates the slot, and waits for the transactions that write at the moment to end."


class Stopped(Exception):
    """The capture must not start, or not go on; `stop` says why."""

    def __init__(self, stop: Stop) -> None:
        super().__init__(stop.why)
        self.stop = stop


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """The source as a start has found it. Nothing was changed there."""

    server: Server
    slot: SlotFacts | None
    publication: Publication | None
    tables: dict[str, SourceTable]


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """What a session begins with: the stored position, and the tables as the source has them."""

    lsn: int
    evidence: Evidence
    generation: int
    server: Server
    publication: Publication
    tables: dict[str, CapturedTable]


def examine(row: CaptureRow, rules: Sequence[TableRule], source: SourceSession) -> Examined:
    """Reads and checks everything that a start needs (R15). CaptureError."""
    server, slot = source.server(), source.slot(row.slot)
    check_server(source, server, is_new=slot is None and not row.lsn)
    states = {state.table: state for state in row.tables}
    publication = source.publication(row.publication)
    tables = {
        rule.table: check_table(source, rule, snapshot=states[rule.table].phase != "done")
        for rule in (*rules, *_rules_of_others(row, rules, publication))
    }
    return Examined(server=server, slot=slot, publication=publication, tables=tables)


def prepare(row: CaptureRow, store: CaptureStore, found: Examined, source: SourceSession, stream: Stream) -> Started:
    """Compares, then makes what is missing: the publication, then the slot. Stopped, CaptureError, FenceLost."""
    facts = _compare(row, found, stream)
    missing = check_publication(source, row.publication, found.publication, found.tables)
    names = [_name(found.tables[table]) for table in missing]
    if found.publication is None:
        source.create_publication(row.publication, names)
    else:
        for name in names:
            source.add_to_publication(row.publication, name)
    if not (position := row.lsn):
        store.set_state(row.name, "starting", why=_CREATING, fence=row.fence)
        position = _new_slot(source, row.slot)
    published = source.publication(row.publication)
    before = found.publication
    if published is None or (before is not None and not _continues(before, published)):
        raise CaptureError(
            f"the publication {row.publication} was changed meanwhile", hint="it is compared again",
            reason="SOURCE_AWAY",
        )  # fmt: skip
    if not store.begin(
        row.fence, system_id=facts.system_id, timeline=facts.timeline, publication_oid=published.oid,
        relation_oids=member_oids(published, found.tables), lsn=position, generation=row.generation,
    ):  # fmt: skip
        raise FenceLost
    states = {state.table: state for state in row.tables}
    tables = {name: CapturedTable(states[name], table) for name, table in found.tables.items()}
    confirmed = position if found.slot is None or not row.lsn else found.slot.confirmed
    committed_at = None if row.committed_at is None else row.committed_at.timestamp()
    evidence = Evidence(row.name, position, row.newest_xid, confirmed=confirmed, committed_at=committed_at)
    return Started(
        lsn=position, evidence=evidence, generation=row.generation, server=found.server, publication=published,
        tables=tables,
    )  # fmt: skip


def _continues(before: Publication, after: Publication) -> bool:
    """Whether a publication still has what the comparison has seen: what is recorded now must not hide a change."""
    return after.oid == before.oid and before.tables.items() <= after.tables.items()


def _rules_of_others(
    row: CaptureRow, rules: Sequence[TableRule], publication: Publication | None
) -> Iterator[TableRule]:
    """The rules of published tables that another version of the App declares: their changes must not be passed over.

    A table that is declared no more, and is not published either, is not captured any more.
    """
    declared = {rule.table for rule in rules}
    published = {} if publication is None else member_oids(publication, [table.table for table in row.tables])
    for table in row.tables:
        if table.table not in declared and published.get(table.table) == table.relation_oid is not None:
            yield TableRule(table.table, table.topic, table.key)


def _compare(row: CaptureRow, found: Examined, stream: Stream) -> ServerFacts:
    """Compares the source with what is stored, before anything is started. Stopped: changes would be lost, or were."""
    system_id, timeline, position = stream.identify()
    publication = found.publication
    oids = {} if publication is None else member_oids(publication, found.tables)
    facts = ServerFacts(
        system_id=system_id, timeline=timeline, lsn=parse_lsn(position), relation_oids=oids,
        publication_oid=None if publication is None else publication.oid,
    )  # fmt: skip
    known = {
        table.table: table.relation_oid
        for table in row.tables
        if table.relation_oid is not None and table.table in found.tables
    }
    stored = StoredStart(
        name=row.name, slot=row.slot, publication=row.publication, lsn=row.lsn, system_id=row.system_id,
        timeline=row.timeline, publication_oid=row.publication_oid, relation_oids=known,
    )  # fmt: skip
    timelines = parse_timelines(stream.history(timeline))
    if (stop := judge_start(stored, facts, found.slot, timelines)) is not None:
        raise Stopped(stop)
    return facts


def member_oids(publication: Publication, tables: Iterable[str]) -> dict[str, int]:
    """The oids by which it is seen that a table has left the publication, also if it came back."""
    names = set(tables)
    if publication.has_all_tables:
        return dict.fromkeys(names, publication.oid)
    return {table: oid for table, oid in publication.tables.items() if table in names}


def _new_slot(source: SourceSession, slot: str) -> int:
    """Makes the slot. One of this name is left over from a start that was interrupted, or is lost: the name is ours."""
    source.drop_slot(slot)
    try:
        return source.create_slot(slot)
    except psycopg.errors.ConfigurationLimitExceeded as error:
        raise CaptureError(
            "the source has no replication slot left",
            hint="raise max_replication_slots and restart the server, or drop a slot that is not used",
            reason="NO_SLOTS_LEFT",
        ) from error


def _name(table: SourceTable) -> tuple[str, str]:
    return table.rule.schema, table.rule.name
