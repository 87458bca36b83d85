"""Captures: which tables are read, which worker reads them, how far it is, and what it has stored."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID, uuid4

import msgspec

from todoku.core.capture import Reason, State, TableRule
from todoku.core.errors import InvalidAct, NotThere
from todoku.core.message import Draft
from todoku.store import capture_portions
from todoku.store.audit import Signed
from todoku.store.capture_portions import Fence, Phase, Portion, StagedPart, Stored, TableKey, holds, new_key_set
from todoku.store.columns import moment, moment_or_none, uuid_or_none
from todoku.store.database import Database, Tx

_AWAY: Final = 60.0
_PRUNED: Final = 5_000
_READER: Final = Signed("todoku", "")
_NOT_IN_SLOTS: Final = re.compile(r"[^a-z0-9_]")


class TableState(msgspec.Struct, frozen=True, kw_only=True):
    """A table of a capture, and how far its snapshot is. `snapshot`: whether its rows are wanted from the start.

    `relation_oid` is that of its row in pg_publication_rel. `generation`: keys that are seen now get it (R20).
    """

    table: str
    topic: str
    key: tuple[str, ...]
    relation_oid: int | None
    phase: Phase
    position: str | None
    copied: int
    expected: int
    generation: int
    snapshot: bool


class CaptureRow(msgspec.Struct, frozen=True, kw_only=True):
    """A capture with its tables. `owned`: its owner's lease is live. `lsn`: 0 if it has never started.

    `changes`: the messages it has published in all. `committed_at`: when the last of them was committed at the source.
    """

    name: str
    slot: str
    publication: str
    state: State
    reason: str | None
    why: str | None
    state_at: datetime
    owner: UUID | None
    owner_name: str | None
    owned: bool
    epoch: int
    lsn: int
    newest_xid: int | None
    system_id: str | None
    timeline: int | None
    publication_oid: int | None
    generation: int
    behind_bytes: int | None
    retained_bytes: int | None
    measured_at: datetime | None
    warnings: tuple[str, ...]
    changes: int
    committed_at: datetime | None
    created_at: datetime
    updated_at: datetime
    now: datetime
    tables: tuple[TableState, ...] = ()

    @property
    def fence(self) -> Fence:
        """The fence of the worker that has just taken it."""
        if self.owner is None:
            raise InvalidAct(f"no worker has taken the capture {self.name!r}", hint="take it first")
        return Fence(self.name, self.owner, self.epoch)

    @property
    def reader(self) -> str | None:
        """The name of the worker that reads it now; None: no worker does."""
        return self.owner_name if self.owned else None

    @property
    def is_down(self) -> bool:
        """Whether an operator should look at it: it is stopped, or its source has been away for a minute."""
        away = (self.now - self.state_at).total_seconds()
        return self.state == "stopped" or (self.state == "away" and away >= _AWAY)

    def table(self, name: str) -> TableState | None:
        """Returns the table of that name, if it is captured."""
        return next((table for table in self.tables if table.table == name), None)


class CaptureStore:
    """The captures of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def declare(self, name: str, rules: Sequence[TableRule], *, snapshot: bool | Mapping[str, bool]) -> CaptureRow:
        """Records a capture and its tables; declaring twice is declaring once. `snapshot` may differ by table.

        New tables wait for their snapshot, if they want one. Another topic holds from the next message on. Another key
        begins the table's snapshot anew, and the worker that reads has to take the capture again. Tables that are not
        among the rules stay.
        """

        def work(tx: Tx) -> CaptureRow:
            prefix = _NOT_IN_SLOTS.sub("_", name.lower())[:40]
            slot = f"todoku_{prefix}_{uuid4().hex[:8]}"  # slots are of the whole server, also for another todoku
            tx.rows("declare_capture", name=name, slot=slot, publication=slot)
            found = _locked(tx, name)
            for rule in rules:
                wanted = snapshot if isinstance(snapshot, bool) else snapshot.get(rule.table, True)
                _declare_table(tx, found, rule, snapshot=wanted)
            return _locked(tx, name)

        return self._database.write("declare_capture", work)

    def get(self, name: str) -> CaptureRow | None:
        """Returns a capture; None: there is none."""
        return self._database.read(lambda tx: _get(tx, name))

    def list(self) -> tuple[CaptureRow, ...]:
        """Returns every capture, by name."""
        return self._database.read(lambda tx: tuple(_filled(tx, row) for row in tx.rows("capture_rows")))

    # -------------------------------------------------------------------------------------- the reader

    def take(self, name: str, worker: UUID) -> CaptureRow | None:
        """Makes a worker the owner, with a new epoch, and discards what an earlier one has staged (R19).

        None: the owner's lease is live, or this worker's is not, or there is no such capture.
        """

        def work(tx: Tx) -> CaptureRow | None:
            if not tx.rows("lock_capture", name=name) or not tx.rows("take_capture", name=name, worker=worker):
                return None
            tx.rows("discard_capture_stage", name=name)
            return _locked(tx, name)

        return self._database.write("take_capture", work)

    def release(self, fence: Fence) -> None:
        """Gives a capture back, so that another worker may take it at once."""
        self._database.write("release_capture", lambda tx: tx.rows("release_capture", **_bound(fence)))

    def begin(
        self,
        fence: Fence,
        *,
        system_id: str,
        timeline: int,
        publication_oid: int,
        relation_oids: Mapping[str, int],
        lsn: int,
        generation: int,
    ) -> bool:
        """Records what the reader found or created at the source. False: the fence is lost.

        The position rises to `lsn`, and never falls.
        """

        def work(tx: Tx) -> bool:
            found = tx.rows(
                "begin_capture", **_bound(fence), system_id=system_id, timeline=timeline,
                publication_oid=publication_oid, lsn=lsn, generation=generation,
            )  # fmt: skip
            if found:
                tx.rows("set_capture_oids", name=fence.name, oids=dict(relation_oids))
            return bool(found)

        return self._database.write("begin_capture", work)

    def set_state(
        self, name: str, state: State, *, reason: Reason | None = None, why: str | None = None, fence: Fence | None
    ) -> bool:
        """Sets the state, and returns whether it, its reason or its why changed. A stop is audited.

        False also if the fence is lost, or if there is no such capture.
        """

        def work(tx: Tx) -> bool:
            found = _get(tx, name, "lock_capture")
            if found is None or (fence is not None and (found.owner, found.epoch) != (fence.owner, fence.epoch)):
                return False
            if (found.state, found.reason, found.why) == (state, reason, why):
                return False
            tx.rows("set_capture_state", name=name, state=state, reason=reason, why=why)
            if state == "stopped" and found.state != "stopped":
                _audit(tx, msgspec.structs.replace(_READER, why=why or reason or ""), "stop", name)
            return True

        return self._database.write("set_capture", work)

    def store(self, fence: Fence, portion: Portion, *, notify: bool) -> Stored:
        """Publishes a portion and moves the position behind it, in one commit (R16)."""
        return self._database.write(
            "store_capture",
            lambda tx: capture_portions.store_portion(self._database, tx, fence, portion, notify=notify),
        )

    def stage(
        self,
        fence: Fence,
        number: int,
        drafts: Sequence[Draft],
        added: Sequence[TableKey] = (),
        removed: Sequence[TableKey] = (),
        *,
        truncated: Sequence[str] = (),
    ) -> bool:
        """Keeps a part of a large source transaction for `store_staged` (R19). False: the fence is lost."""
        part = StagedPart(tuple(drafts), tuple(added), tuple(removed), tuple(truncated))
        return self._database.write("stage_capture", lambda tx: capture_portions.stage(tx, fence, number, part))

    def store_staged(self, fence: Fence, portion: Portion, *, notify: bool) -> Stored:
        """Publishes what was staged, by number, and then the portion, and moves the position, in one commit (R19)."""
        return self._database.write(
            "store_capture",
            lambda tx: capture_portions.store_staged(self._database, tx, fence, portion, notify=notify),
        )

    def discard_stage(self, fence: Fence) -> None:
        """Discards what was staged: the source sends it again."""

        def work(tx: Tx) -> None:
            if holds(tx, fence):
                tx.rows("discard_capture_stage", name=fence.name)

        self._database.write("stage_capture", work)

    def stale_keys(self, name: str, table: str, generation: int, limit: int) -> tuple[str, ...]:
        """Returns keys that were last seen in an older generation: their rows are gone (R20)."""
        rows = self._database.read(
            lambda tx: tx.rows("stale_capture_keys", name=name, table=table, generation=generation, most=limit)
        )
        return tuple(key for (key,) in rows)

    def measure(self, fence: Fence, *, behind: int, retained: int) -> bool:
        """Records how far the reader is behind the source's log, and how much of it the slot retains, in bytes.

        It also removes a limited number of keys that a TRUNCATE or a drop has left. False: the fence is lost.
        """

        def work(tx: Tx) -> bool:
            if not tx.rows("measure_capture", **_bound(fence), behind=behind, retained=retained):
                return False
            _prune_keys(tx)
            return True

        return self._database.write("measure_capture", work)

    def warn(self, fence: Fence, warnings: Sequence[str]) -> bool:
        """Replaces the warnings about the source that `doctor` shows. False: the fence is lost."""
        text = msgspec.json.encode(list(warnings)).decode()
        return self._database.write(
            "measure_capture", lambda tx: bool(tx.rows("warn_capture", **_bound(fence), warnings=text))
        )

    # ------------------------------------------------------------------------------- acts of operators

    def restart(self, name: str, tables: Sequence[str] | None, signed: Signed) -> CaptureRow:
        """Begins the snapshots of tables anew, with a new generation; None: of those that were declared with one.

        A stopped capture also forgets its slot and its position, so that the reader makes a new slot. The worker that
        reads has to take the capture again. InvalidAct: there is nothing to begin, or part of a stopped capture.
        """

        def work(tx: Tx) -> CaptureRow:
            found = _locked(tx, name)
            wanted = tables_to_restart(found, tables)
            tx.rows("fence_out_capture", name=name)
            tx.rows("discard_capture_stage", name=name)
            tx.rows("raise_capture_generation", name=name, generation=found.generation + 1)
            tx.rows("restart_capture_tables", name=name, generation=found.generation + 1, tables=list(wanted))
            if found.state == "stopped":
                tx.rows("reset_capture", name=name)
            _audit(tx, signed, "snapshot" if tables is None else f"snapshot of {', '.join(wanted)}", name)
            return _locked(tx, name)

        return self._database.write("restart_capture", work)

    def drop(self, name: str, signed: Signed) -> CaptureRow | None:
        """Forgets a capture and returns what it was; None: there is none. The caller has dropped its slot."""

        def work(tx: Tx) -> CaptureRow | None:
            if (found := _get(tx, name, "lock_capture")) is not None:
                tx.rows("remove_capture", name=name)
                _audit(tx, signed, "drop", name)
            return found

        dropped = self._database.write("drop_capture", work)
        while dropped is not None and self._database.write("drop_capture", _prune_keys):
            pass  # in portions: there may be millions of keys
        return dropped


def tables_to_restart(row: CaptureRow, tables: Sequence[str] | None) -> tuple[str, ...]:
    """The tables whose snapshots `restart` begins anew; one without a schema is in `public`. InvalidAct: it cannot."""
    if tables is None:
        wanted = tuple(table.table for table in row.tables if table.snapshot)
        if not wanted and row.state != "stopped":
            raise InvalidAct(
                f"no table of the capture {row.name!r} was declared with a snapshot", hint="name the tables to read"
            )
        return wanted
    named = tuple(table if "." in table else f"public.{table}" for table in tables)
    if missing := [table for table in named if row.table(table) is None]:
        known = ", ".join(table.table for table in row.tables) or "none"
        raise InvalidAct(f"the capture {row.name!r} has no table {missing[0]!r}", hint=f"it has: {known}")
    if row.state == "stopped":
        raise InvalidAct(
            f"the capture {row.name!r} is stopped, so changes of all its tables may be missing",
            hint="begin the snapshots of all tables: name none",
        )
    return named


def _declare_table(tx: Tx, found: CaptureRow, rule: TableRule, *, snapshot: bool) -> None:
    known, place = found.table(rule.table), {"capture": found.name, "table": rule.table}
    fresh: dict[str, Any] = {
        "key": msgspec.json.encode(list(rule.key)).decode(), "phase": "waiting" if snapshot else "done",
        "generation": found.generation, "key_set": new_key_set(),
    }  # fmt: skip
    if known is None:
        tx.rows("add_capture_table", **place, topic=rule.topic, snapshot=snapshot, **fresh)
        return
    if (known.topic, known.snapshot) != (rule.topic, snapshot):
        tx.rows("change_capture_table", **place, topic=rule.topic, snapshot=snapshot)
    if known.key != tuple(rule.key):
        tx.rows("rekey_capture_table", **place, **fresh)
        tx.rows("fence_out_capture", name=found.name)


def _prune_keys(tx: Tx) -> bool:
    """Removes some keys that belong to no table; returns whether there were any."""
    for (key_set,) in tx.rows("stray_key_sets"):
        return bool(tx.rows("prune_capture_keys", key_set=key_set, most=_PRUNED))
    return False


def _bound(fence: Fence) -> dict[str, Any]:
    return {"name": fence.name, "owner": fence.owner, "epoch": fence.epoch}


def _get(tx: Tx, name: str, query: str = "capture_row") -> CaptureRow | None:
    return next((_filled(tx, row) for row in tx.rows(query, name=name)), None)


def _locked(tx: Tx, name: str) -> CaptureRow:
    if (found := _get(tx, name, "lock_capture")) is None:
        raise NotThere(f"there is no capture {name!r}", hint="`todoku capture list` names them")
    return found


def _filled(tx: Tx, row: Any) -> CaptureRow:
    name, slot, publication, state, reason, why, state_at, owner, owner_name, owned, epoch, lsn, xid, *rest = row
    system_id, timeline, oid, generation, behind, retained, measured, warnings, changes, committed, *times = rest
    created, updated, now = map(moment, times)
    return CaptureRow(
        name=name, slot=slot, publication=publication, state=state, reason=reason, why=why, state_at=moment(state_at),
        owner=uuid_or_none(owner), owner_name=owner_name, owned=bool(owned), epoch=epoch, lsn=lsn, newest_xid=xid,
        system_id=system_id, timeline=timeline, publication_oid=oid, generation=generation, behind_bytes=behind,
        retained_bytes=retained, measured_at=moment_or_none(measured), changes=changes,
        warnings=tuple(msgspec.json.decode(warnings, type=list[str])), committed_at=moment_or_none(committed),
        created_at=created, updated_at=updated, now=now,
        tables=tuple(_table(one) for one in tx.rows("capture_tables", capture=name)),
    )  # fmt: skip


def _table(row: Any) -> TableState:
    table, topic, key, relation_oid, phase, position, copied, expected, generation, snapshot = row
    return TableState(
        table=table, topic=topic, key=tuple(msgspec.json.decode(key, type=list[str])), relation_oid=relation_oid,
        phase=phase, position=position, copied=copied, expected=expected, generation=generation,
        snapshot=bool(snapshot),
    )  # fmt: skip


def _audit(tx: Tx, signed: Signed, action: str, name: str) -> None:
    tx.rows("audit", by=signed.by, why=signed.why, action=action, targets=[f"capture:{name}"])
