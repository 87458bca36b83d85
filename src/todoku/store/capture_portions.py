"""What a capture stores at once: the messages of source transactions, their keys, and the position behind them.

One commit has them all (R16), so a change is stored once, however often the source sends it. A source transaction that
is too large for that is staged in parts, which the commit at its end publishes together (R19).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal
from uuid import UUID, uuid4

import msgspec

from todoku.core.identity import destination_lock
from todoku.core.message import Draft
from todoku.store.database import Database, Tx, run_steps
from todoku.store.publish import Publishing, lock_destinations, publish

Phase = Literal["waiting", "reading", "sweeping", "done"]
"""Of a table's snapshot: not begun, rows are read, keys that were not seen are deleted (R20), finished."""

Stored = Literal["stored", "repeated", "lost"]
"""`repeated`: it had been stored before, under the same fence. `lost`: the fence does not hold, nothing was stored."""

TableKey = tuple[str, str]
"""A table and the key of one of its rows."""


class Fence(msgspec.Struct, frozen=True):
    """The right to write for a capture, until another worker takes it (R16)."""

    name: str
    owner: UUID
    epoch: int


class TableProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far the snapshot of a table is once this portion is stored. `expected`: None leaves it as it is."""

    table: str
    position: str | None
    copied: int
    phase: Phase
    expected: int | None = None


class Portion(msgspec.Struct, frozen=True, kw_only=True):
    """Messages up to a position of the source's log, and what they mean for the known keys.

    The tables in `truncated` lose their keys first, then `removed` go, then `added` come. So a key that was added and
    removed again is not in `added`, and one that was removed and came back is in both.
    """

    lsn: int
    xid: int | None = None
    committed_at: float | None = None
    drafts: Sequence[Draft] = ()
    added: Sequence[TableKey] = ()
    removed: Sequence[TableKey] = ()
    truncated: Sequence[str] = ()
    page: TableProgress | None = None


class StagedPart(msgspec.Struct, frozen=True, array_like=True):
    """A part of a large source transaction, as it is stored until its end arrives."""

    drafts: tuple[Draft, ...]
    added: tuple[TableKey, ...]
    removed: tuple[TableKey, ...]
    truncated: tuple[str, ...]


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(StagedPart)


def new_key_set() -> int:
    """Returns the number of a new set of keys; no table ever had it."""
    return uuid4().int >> 66


def store_portion(database: Database, tx: Tx, fence: Fence, portion: Portion, *, notify: bool) -> Stored:
    """Moves the position and publishes the messages before it, unless the fence does not hold."""
    if (refused := _move(tx, fence, portion, len(portion.drafts))) is not None:
        return refused
    if portion.drafts:
        run_steps(tx, publish(_target(database, notify=notify), portion.drafts))
    _finish(tx, fence, portion)
    return "stored"


def store_staged(database: Database, tx: Tx, fence: Fence, portion: Portion, *, notify: bool) -> Stored:
    """As `store_portion`, with everything that was staged under this fence before the portion's own messages."""
    staged = tx.rows("staged_captures", name=fence.name, epoch=fence.epoch)
    drafts = len(portion.drafts) + sum(number for _, number, _ in staged)
    if (refused := _move(tx, fence, portion, drafts)) is not None:
        return refused
    to = _target(database, notify=notify)
    names = {name for _, _, text in staged for name in msgspec.json.decode(text, type=list[str])}
    run_steps(tx, lock_destinations(to, sorted(map(destination_lock, names | _ordered(portion.drafts)))))
    for number, _, _ in staged:
        ((data,),) = tx.rows("staged_data", name=fence.name, epoch=fence.epoch, number=number)
        part = _DECODER.decode(data)
        run_steps(tx, publish(to, part.drafts, locked=True))
        _change_keys(tx, fence.name, part)
    if portion.drafts:
        run_steps(tx, publish(to, portion.drafts, locked=True))
    _finish(tx, fence, portion)
    tx.rows("discard_capture_stage", name=fence.name)
    return "stored"


def stage(tx: Tx, fence: Fence, number: int, part: StagedPart) -> bool:
    """Keeps a part of a large source transaction; staging a number again replaces it. False: the fence is lost."""
    if not holds(tx, fence):
        return False
    tx.rows(
        "stage_capture", name=fence.name, epoch=fence.epoch, number=number, drafts=len(part.drafts),
        destinations=msgspec.json.encode(sorted(_ordered(part.drafts))).decode(), data=_ENCODER.encode(part),
    )  # fmt: skip
    return True


def holds(tx: Tx, fence: Fence) -> bool:
    """Locks the capture for this fence. False: another worker has taken it, or an operator changed it."""
    return bool(tx.rows("fence_capture", name=fence.name, owner=fence.owner, epoch=fence.epoch))


def _move(tx: Tx, fence: Fence, portion: Portion, drafts: int) -> Stored | None:
    """Moves the position; returns what the caller has to return if it did not move."""
    moved = tx.rows(
        "move_capture", name=fence.name, owner=fence.owner, epoch=fence.epoch, lsn=portion.lsn, xid=portion.xid,
        committed_at=portion.committed_at, changes=drafts,
    )  # fmt: skip
    if moved:
        return None
    held = tx.rows("capture_position", name=fence.name, owner=fence.owner, epoch=fence.epoch)
    return "repeated" if held else "lost"


def _finish(tx: Tx, fence: Fence, portion: Portion) -> None:
    _change_keys(tx, fence.name, portion)
    if (page := portion.page) is not None:
        tx.rows("advance_capture_table", name=fence.name, **msgspec.structs.asdict(page))


def _change_keys(tx: Tx, name: str, change: Portion | StagedPart) -> None:
    if change.truncated:
        key_sets = {table: new_key_set() for table in change.truncated}
        tx.rows("renew_key_sets", name=name, key_sets=key_sets)
    if change.removed:
        tx.rows("remove_capture_keys", name=name, keys=_by_table(change.removed))
    if change.added:
        tx.rows("add_capture_keys", name=name, keys=_by_table(change.added))


def _by_table(keys: Iterable[TableKey]) -> dict[str, list[str]]:
    """Groups keys, each once: PostgreSQL refuses to insert a key twice by one statement."""
    found: dict[str, dict[str, None]] = {}
    for table, key in keys:
        found.setdefault(table, {})[key] = None
    return {table: list(keys) for table, keys in found.items()}


def _ordered(drafts: Iterable[Draft]) -> set[str]:
    """The destinations to which drafts are delivered in order."""
    return {leg.destination for draft in drafts for leg in draft.legs if leg.lane is not None}


def _target(database: Database, *, notify: bool) -> Publishing:
    return Publishing(database.dialect, database.queries, database.now(), notify)
