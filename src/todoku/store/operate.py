"""What a person does to deliveries: replay, cancel, settle by hand, purge. Each act is audited in its transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from todoku.core.identity import destination_lock, effect_scope
from todoku.store.database import Tx
from todoku.store.line import GONE
from todoku.store.values import Acted, Filter, Signed


class Picked(msgspec.Struct, frozen=True):
    """A delivery that matched, locked by this transaction."""

    id: int
    lane: int | None
    destination: str
    queue: str
    status: str
    reason: str | None
    key_hash: str | None
    digest: str | None
    message_id: Any
    scope: str | None


def pick(tx: Tx, which: Filter, allowed: Sequence[str], limit: int) -> list[Picked]:
    """Lock what matches. Unless rows or a status were named, only what may be changed counts against the limit."""
    among = list(allowed) if which.ids is None and which.status is None else None
    return [Picked(*row) for row in tx.rows("pick", **msgspec.structs.asdict(which), among=among, most=limit)]


def act(
    tx: Tx,
    which: Filter,
    signed: Signed,
    *,
    action: str,
    allowed: Sequence[str],
    change: Callable[[list[Picked]], list[int]],
    limit: int,
    dry_run: bool,
) -> Acted:
    """Pick what matches, change what may be changed, audit it, and say why the rest was passed over."""
    matched = pick(tx, which, allowed, limit)
    able = [row for row in matched if row.status in allowed]
    skipped = Counter(f"is {row.status}" for row in matched if row.status not in allowed)
    if which.ids is not None and (missing := len(set(which.ids)) - len(matched)) > 0:
        skipped["not found, or being changed by somebody else"] = missing
    if dry_run or not able:
        return Acted(len(matched), tuple(row.id for row in able), dict(skipped))
    changed = change(able)
    if behind := len(able) - len(changed):
        skipped["its lane is being published to, try again"] = behind
    if changed:
        targets = [f"delivery:{id}" for id in changed]
        tx.rows("audit", by=signed.by, why=signed.why, action=action, targets=targets)
    return Acted(len(matched), tuple(changed), dict(skipped))


def replay(tx: Tx, rows: list[Picked]) -> list[int]:
    """Dead letters → pending. Those in a lane go through it, so never beside a running follower."""
    locks = {str(row.lane): str(destination_lock(row.destination)) for row in rows if row.lane is not None}
    locked = {row[0] for row in tx.rows("try_lock_lanes", locks=locks)} if locks else set()
    free = [row for row in rows if row.lane is None or row.lane in locked]
    if not free:
        return []
    if entries := _entries(free):
        tx.rows("replay_ledger", entries=entries)
    if lanes := [
        {"lane": row.lane, "queue": row.queue, "destination": row.destination} for row in free if row.lane is not None
    ]:
        tx.rows("replay_lanes", lanes=lanes)
    changed = [row[0] for row in tx.rows("replay", ids=[row.id for row in free])]
    refresh_lanes(tx, free, unpark=True)
    return changed


def cancel(tx: Tx, rows: list[Picked], why: str) -> list[int]:
    """What waits → aborted; what runs is asked."""
    changed = [id for id, _ in tx.rows("cancel", ids=[row.id for row in rows], why=why)]
    refresh_lanes(tx, rows, unpark=False)
    return changed


def settle_by_hand(tx: Tx, rows: list[Picked], why: str, *, succeeded: bool, ttl: float) -> list[int]:
    """Ledger first (I5), then the rows."""
    if entries := _entries(rows):
        tx.rows("settle_by_hand_ledger", entries=entries, state="succeeded" if succeeded else "failed", ttl=ttl)
    ids = [row.id for row in rows]
    if succeeded:
        _let_expire(tx, rows, ttl)
        changed = [row[0] for row in tx.rows("settle_by_hand_done", ids=ids)]
    else:
        changed = [row[0] for row in tx.rows("settle_by_hand_aborted", ids=ids, why=why)]
    refresh_lanes(tx, rows, unpark=succeeded)
    return changed


def purge(tx: Tx, rows: list[Picked], *, ttl: float) -> list[int]:
    """Dead letters are removed; a lane one of them blocked goes on, and the key is remembered as after a success."""
    _let_expire(tx, rows, ttl)
    changed = [row[0] for row in tx.rows("purge", ids=[row.id for row in rows])]
    refresh_lanes(tx, rows, unpark=True)
    return changed


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
