"""What a person does to deliveries: replay, cancel, settle by hand, purge, clear. Each act commits with its audit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from todoku.core.identity import destination_lock, effect_scope, once_scope
from todoku.store import gates
from todoku.store.database import Tx
from todoku.store.deliveries import GONE
from todoku.store.ended_delivery import loaded, succeeding
from todoku.store.ending import Endings
from todoku.store.values import Acted, Cleared, Filter, Signed


def clear_history(
    tx: Tx,
    signed: Signed,
    topic: str | None,
    until: datetime | None,
    *,
    after: tuple[int, int],
    limit: int,
    dry_run: bool,
) -> Cleared:
    """One batch: history, attempts, results, and the messages nothing is left of. The ledger is left alone (I5)."""
    rows = tx.rows("history_chunk", topic=topic, until=until, after_seq=after[0], after_id=after[1], most=limit)
    position = (rows[-1][1], rows[-1][0]) if len(rows) == limit else None
    meant = [(id, seq) for id, seq, mine in rows if mine]
    if dry_run or not meant:
        return Cleared(len(meant), position)
    ids, seqs = [id for id, _ in meant], sorted({seq for _, seq in meant})
    gone = [id for (id,) in tx.rows("clear_history", ids=ids, seqs=seqs)]
    tx.rows("clear_attempts", ids=ids)
    tx.rows("clear_results", ids=ids)
    tx.rows("clear_messages", seqs=seqs)
    targets = [f"topic:{topic or '**'}"]
    tx.rows("audit", by=signed.by, why=signed.why, action=f"clear {len(gone)} succeeded", targets=targets)
    return Cleared(len(gone), position)


class Picked(msgspec.Struct, frozen=True):
    """A delivery that matched, locked by this transaction."""

    id: int
    lane: int | None
    gate: int | None
    destination: str
    queue: str
    status: str
    reason: str | None
    key: str | None
    key_hash: str | None
    digest: str | None
    message_id: Any
    scope: str | None


class AuditedAct(msgspec.Struct, frozen=True):
    """Something a person does: its name in the audit, the states it may be done to, and how."""

    name: str
    allowed: tuple[str, ...]
    change: Callable[[Tx, list[Picked]], list[int]]


def pick(tx: Tx, which: Filter, allowed: Sequence[str], limit: int, after: int) -> list[Picked]:
    """Lock what matches. Unless rows or a status were named, only what may be changed counts against the limit."""
    among = list(allowed) if which.ids is None and which.status is None else None
    fields = msgspec.structs.asdict(which)
    return [Picked(*row) for row in tx.rows("pick", **fields, among=among, after=after, most=limit)]


def act(tx: Tx, which: Filter, signed: Signed, act: AuditedAct, *, limit: int, after: int, dry_run: bool) -> Acted:
    """Pick what matches, change what may be changed, audit it, and say why the rest was passed over."""
    matched = pick(tx, which, act.allowed, limit, after)
    last = matched[-1].id if matched else None
    able = [row for row in matched if row.status in act.allowed]
    skipped = Counter(f"is {row.status}" for row in matched if row.status not in act.allowed)
    missing = len({id for id in which.ids or () if id > after}) - len(matched)
    if missing > 0 and len(matched) < limit:
        skipped["not found, or being changed by somebody else"] = missing
    if dry_run or not able:
        return Acted(len(matched), tuple(row.id for row in able), dict(skipped), last)
    changed = act.change(tx, able)
    if behind := len(able) - len(changed):
        skipped["its lane is being published to, try again"] = behind
    if changed:
        targets = [f"delivery:{id}" for id in changed]
        tx.rows("audit", by=signed.by, why=signed.why, action=act.name, targets=targets)
    return Acted(len(matched), tuple(changed), dict(skipped), last)


def replay(tx: Tx, rows: list[Picked]) -> list[int]:
    """Dead letters → pending. Those in a lane go through it, so never beside a running follower."""
    locks = {str(row.lane): str(destination_lock(row.destination)) for row in rows if row.lane is not None}
    locked = {row[0] for row in tx.rows("try_lock_lanes", locks=locks)} if locks else set()
    free = [row for row in rows if row.lane is None or row.lane in locked]
    if not free:
        return []
    if entries := _entries(free):
        tx.rows("replay_ledger", entries=entries)
        _reopen(tx, free)
    if lanes := [
        {"lane": row.lane, "queue": row.queue, "destination": row.destination} for row in free if row.lane is not None
    ]:
        tx.rows("replay_lanes", lanes=lanes)
    changed = [row[0] for row in tx.rows("replay", ids=[row.id for row in free])]
    refresh_lanes(tx, free, unpark=True)
    if gated := [(row.gate, row.queue, row.destination, row.key or "") for row in free if row.gate is not None]:
        gates.opened(tx, gated)
    return changed


def cancel(tx: Tx, rows: list[Picked], why: str, *, endings: Endings) -> list[int]:
    """What waits → aborted; what runs is asked."""
    changed = dict(tx.rows("cancel", ids=[row.id for row in rows], why=why))
    refresh_lanes(tx, rows, unpark=False)
    gates.refresh(tx, (row.gate for row in rows))
    endings.aborted(tx, [id for id, status in changed.items() if status == "aborted"])
    return list(changed)


def settle_as_succeeded(tx: Tx, rows: list[Picked], result: str | None, *, ttl: float, endings: Endings) -> list[int]:
    """Ledger first (I5), then the rows, with the result a person gives them."""
    ids = [row.id for row in rows]
    over = succeeding(tx, ids)
    if entries := _entries(rows):
        tx.rows("settle_by_hand_ledger", entries=entries, state="succeeded", response=result, ttl=ttl)
        _reopen(tx, rows)
    _let_expire(tx, rows, ttl)
    if result is not None:
        tx.rows("settle_by_hand_result", ids=ids, result=result)
    changed = [row[0] for row in tx.rows("settle_by_hand_done", ids=ids)]
    refresh_lanes(tx, rows, unpark=True)
    gates.refresh(tx, (row.gate for row in rows))
    endings.follow(tx, [each for each in over if each.delivery_id in set(changed)])
    return changed


def settle_as_aborted(tx: Tx, rows: list[Picked], why: str, *, ttl: float, endings: Endings) -> list[int]:
    """Ledger first (I5), then the rows."""
    if entries := _entries(rows):
        tx.rows("settle_by_hand_ledger", entries=entries, state="failed", response=None, ttl=ttl)
    changed = [row[0] for row in tx.rows("settle_by_hand_aborted", ids=[row.id for row in rows], why=why)]
    refresh_lanes(tx, rows, unpark=False)
    gates.refresh(tx, (row.gate for row in rows))
    endings.aborted(tx, changed)
    return changed


def purge(tx: Tx, rows: list[Picked], signed: Signed, *, ttl: float, endings: Endings) -> list[int]:
    """Dead letters are removed; a lane one of them blocked goes on, and the key is remembered as after a success.

    The audit names their messages too: nothing else says why a message has no delivery any more (I1).
    """
    _let_expire(tx, rows, ttl)
    removed = loaded(tx, [row.id for row in rows])
    changed = [row[0] for row in tx.rows("purge", ids=[row.id for row in rows])]
    targets = sorted({f"message:{row.message_id}" for row in rows})
    tx.rows("audit", by=signed.by, why=signed.why, action="purge", targets=targets)
    refresh_lanes(tx, rows, unpark=True)
    endings.purged(tx, removed)
    return changed


def limit(
    tx: Tx,
    name: str,
    signed: Signed,
    *,
    of: Literal["queue", "destination"],
    concurrency: int | None,
    rate: float | None,
    lasts: float | None,
) -> None:
    """Say how much of a queue or destination all workers together may run."""
    if of == "queue":
        tx.rows("limit_queue", name=name, concurrency=concurrency, rate=rate, lasts=lasts)
    else:
        tx.rows("limit_destination", name=name, concurrency=concurrency, rate=rate, lasts=lasts)
    both = {f"{concurrency} at once": concurrency, f"{rate or 0:g}/s": rate}
    words = [text for text, value in both.items() if value is not None]
    span = f" for {lasts:g} s" if lasts is not None else ""
    action = f"limit to {' and '.join(words)}{span}" if words else "limit off"
    tx.rows("audit", by=signed.by, why=signed.why, action=action, targets=[f"{of}:{name}"])


def refresh_lanes(tx: Tx, rows: Iterable[Picked], *, unpark: bool) -> None:
    """Lanes whose rows changed from outside look at their head anew. Only the dead letter that blocks one frees it."""
    rows = list(rows)
    lanes = {row.lane for row in rows if row.lane is not None}
    freed = {row.lane for row in rows if unpark and row.status == "aborted" and row.reason not in GONE}
    for some, free in ((lanes & freed, True), (lanes - freed, False)):
        if some:
            tx.rows("refresh_lanes", lanes=sorted(some), unpark=free)


def _let_expire(tx: Tx, rows: Iterable[Picked], ttl: float) -> None:
    """From now on nothing but time keeps the ledger entries of these rows (H16)."""
    entries = [
        {"scope": scope, "key_hash": row.key_hash}
        for row in rows
        if row.key_hash is not None
        for scope in (row.scope, effect_scope(row.destination))
    ]
    if entries:
        tx.rows("settle_reservations", entries=entries, ttl=ttl)


def _reopen(tx: Tx, rows: Iterable[Picked]) -> None:
    """What was accepted with `box.once` under the destination's name, and failed, is open again: its end is to come."""
    entries = [
        {"scope": once_scope(row.destination), "key_hash": row.key_hash} for row in rows if row.key_hash is not None
    ]
    tx.rows("once_reopen", entries=entries)


def _entries(rows: Iterable[Picked]) -> list[dict[str, str | None]]:
    return [
        {
            "scope": effect_scope(row.destination),
            "key_hash": row.key_hash,
            "digest": row.digest,
            "id": str(row.message_id),
        }
        for row in rows
        if row.key_hash is not None
    ]
