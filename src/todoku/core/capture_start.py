"""The comparison before every start of a capture: whether the source still has everything behind the stored position.

`START_REPLICATION` does not say so: below the slot's confirmed position it silently skips, and a server that was
restored or promoted has other changes at the same positions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from todoku.core.capture import Stop, format_lsn, parse_lsn
from todoku.core.errors import CaptureError


class StoredStart(msgspec.Struct, frozen=True, kw_only=True):
    """What todoku has stored of a capture; `lsn` 0: it was never started, or an operator began it anew."""

    name: str
    slot: str
    publication: str
    lsn: int = 0
    system_id: str | None = None
    timeline: int | None = None
    publication_oid: int | None = None
    relation_oids: Mapping[str, int] = {}
    """The oids in pg_publication_rel, by table; a table that was not in the publication yet is left out."""


class ServerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the source says of itself (`IDENTIFY_SYSTEM`) and of the publication: None if there is none."""

    system_id: str
    timeline: int
    lsn: int
    publication_oid: int | None = None
    relation_oids: Mapping[str, int] = {}


class SlotFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The slot as pg_replication_slots has it. `invalidation_reason`: None before PostgreSQL 17."""

    confirmed: int
    wal_status: str | None = "reserved"
    invalidation_reason: str | None = None
    active_pid: int | None = None


class TimelineEnd(msgspec.Struct, frozen=True):
    """Where a timeline of the server's history ended: at a promotion, or at the end of a recovery."""

    timeline: int
    lsn: int


def parse_timelines(text: str) -> tuple[TimelineEnd, ...]:
    """Reads the file that `TIMELINE_HISTORY` returns; CaptureError: it is none."""
    ends = []
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = _TIMELINE.match(line)
        if found is None:
            raise CaptureError(f"{line[:60]!r} is no line of a timeline's history", hint="restart the source server")
        ends.append(TimelineEnd(int(found[1]), parse_lsn(found[2])))
    return tuple(ends)


_TIMELINE: Final = re.compile(r"\s*([0-9]{1,10})\s+([0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8})(?:\s|$)")


def judge_start(
    stored: StoredStart, server: ServerFacts, slot: SlotFacts | None, timelines: Sequence[TimelineEnd] = ()
) -> Stop | None:
    """Returns why streaming must not start, None if it can: nothing was lost, and nothing will be skipped.

    `timelines`: the history of the server's timeline, empty on the first one. A fresh start (`stored.lsn` is 0) only
    waits for another reader of the slot. Then the capture makes the publication and a new slot, in place of one that an
    interrupted start left, or that was lost.
    """
    if stored.lsn:
        lost = (
            _judge_server(stored, server)
            or _judge_timeline(stored, server, timelines)
            or _judge_slot(stored, slot)
            or _judge_publication(stored, server)
        )
        if lost is not None:
            return lost
    if slot is not None and slot.active_pid is not None:
        pid = slot.active_pid
        return Stop(
            "SLOT_BUSY",
            f"Another reader has the slot {stored.slot} (process {pid} of the source): the capture waits for its end; "
            f"`select pg_terminate_backend({pid})` there ends it.",
        )
    return None


def _judge_server(stored: StoredStart, server: ServerFacts) -> Stop | None:
    if stored.system_id is not None and server.system_id != stored.system_id:
        return Stop(
            "OTHER_SERVER",
            f"The source is another server than before (its system identifier is {server.system_id}, it was "
            f"{stored.system_id}): connect the capture to the old one, or read the tables of this one anew by "
            f"{_snapshot(stored)}.",
        )
    return None


def _judge_timeline(stored: StoredStart, server: ServerFacts, timelines: Sequence[TimelineEnd]) -> Stop | None:
    """Judges whether the server still has the changes that were captured last."""
    behind = f"at {format_lsn(server.lsn)}" if server.lsn < stored.lsn else None
    if stored.timeline is not None and server.timeline != stored.timeline:
        end = next((end for end in timelines if end.timeline == stored.timeline), None)
        if server.timeline < stored.timeline or end is None:
            behind = f"on timeline {server.timeline}, which does not come from timeline {stored.timeline}"
        elif end.lsn < stored.lsn:
            behind = f"on timeline {server.timeline}, which left timeline {end.timeline} at {format_lsn(end.lsn)}"
    if behind is None:
        return None
    return Stop(
        "DIVERGED",
        f"The source was restored from a backup, or replaced by a standby that was behind (it is {behind}; captured is "
        f"everything up to {format_lsn(stored.lsn)}), so captured changes may be undone: read the tables anew by "
        f"{_snapshot(stored)}.",
    )


def _judge_slot(stored: StoredStart, slot: SlotFacts | None) -> Stop | None:
    since = format_lsn(stored.lsn)
    if slot is None:
        return Stop(
            "SLOT_MISSING",
            f"The slot {stored.slot} was dropped on the source, and the changes since {since} may be gone: make a new "
            f"one and read the tables anew by {_snapshot(stored)}.",
        )
    if slot.wal_status == "lost" or slot.invalidation_reason is not None:
        reason = slot.invalidation_reason or "its part of the log was removed"
        return Stop(
            "SLOT_LOST",
            f"The source has invalidated the slot {stored.slot} ({reason}), and the changes since {since} are gone: "
            f"remove the cause (max_slot_wal_keep_size is often too small) and read the tables anew by "
            f"{_snapshot(stored)}.",
        )
    if slot.confirmed > stored.lsn:
        return Stop(
            "SLOT_AHEAD",
            f"The slot {stored.slot} was moved to {format_lsn(slot.confirmed)}, beyond {since}, which is stored here: "
            f"another program reads it, or todoku's database was restored; end the other reader, and read the tables "
            f"anew by {_snapshot(stored)}.",
        )
    return None


def _judge_publication(stored: StoredStart, server: ServerFacts) -> Stop | None:
    if stored.publication_oid is not None and server.publication_oid != stored.publication_oid:
        done = "dropped" if server.publication_oid is None else "dropped and made anew"
        what = f"The publication {stored.publication} was {done} on the source"
    else:
        gone = [table for table, oid in stored.relation_oids.items() if server.relation_oids.get(table) != oid]
        if not gone:
            return None
        what = f"{', '.join(sorted(gone))} left the publication {stored.publication}, at least for a time"
    return Stop(
        "PUBLICATION_CHANGED", f"{what}, so that changes may be missing: read the tables anew by {_snapshot(stored)}."
    )


def _snapshot(stored: StoredStart) -> str:
    return f"`todoku capture snapshot {stored.name} --by … --why …`"
