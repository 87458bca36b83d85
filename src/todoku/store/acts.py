"""Acts: what an operator may do to deliveries. Each commits with its audit row, and takes a batch at a time.

Every act takes the next `limit` deliveries that match, with ids greater than `after`; `Acted.last` is the last of them.
Only `todoku.engine.operations`, and `todoku.engine.http.request_acts` for HTTP requests, call these methods. `letters`
has the acts on dead letters by their own ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from todoku.core.identity import destination_lock, effect_scope, once_scope
from todoku.core.message import Draft, Message
from todoku.store import gates
from todoku.store.audit import Signed
from todoku.store.claim_lists import write_out
from todoku.store.database import Database, Tx, run_steps
from todoku.store.deliveries import Filter, parameters
from todoku.store.ended_delivery import load_as_succeeded, load_ended
from todoku.store.endings import Endings
from todoku.store.lanes import REMOVED
from todoku.store.lanes import lock as lock_lanes
from todoku.store.publish import publish

MISSING: Final = "not found, or being changed by somebody else"
"""Why an act passes over deliveries that are named: they have no row, perhaps because they succeeded, or are locked."""

UNDONE: Final = "its steps are undone, or were"
"""Why a run of a workflow is not replayed: it would go on with results that hold no more (R5)."""


class Acted(msgspec.Struct, frozen=True):
    """The deliveries that an act changed, and why others were passed over."""

    matched: int
    changed: tuple[int, ...]
    skipped: dict[str, int]
    last: int | None = None
    """The last delivery it read, from which the next batch continues. None: nothing matched."""


class Cleared(msgspec.Struct, frozen=True):
    """How many finished deliveries were removed, and where the next batch goes on (None: that was the last)."""

    number: int
    next: tuple[int, int] | None


class ActStore:
    """The acts on the deliveries of one database."""

    def __init__(self, database: Database, endings: Endings, *, ledger_ttl: float) -> None:
        self._database = database
        self._endings = endings
        self._ledger_ttl = ledger_ttl

    def replay(
        self, which: Filter, signed: Signed, *, limit: int = 1000, after: int = 0, dry_run: bool = False
    ) -> Acted:
        """Makes dead letters pending again, with attempts from 0 and `replay_count + 1` (I9).

        A run of a workflow whose undo has begun is passed over (R5).
        """
        act = Act("replay", ("aborted",), replay, refused=undoing)
        return self._do(act, which, signed, limit=limit, after=after, dry_run=dry_run)

    def repeat(self, drafts: Sequence[tuple[int, Draft]], signed: Signed, *, change: str | None = None) -> list[UUID]:
        """Publishes each draft, which runs the delivery with that number again. Returns the new messages.

        The audit records it twice: of the delivery, which message runs it again; of the message, of which delivery.
        `change`: the digest of what an operator has edited, for the audit.
        """
        how, digest = ("again", "") if change is None else ("edited", f", {change}")

        def work(tx: Tx) -> list[UUID]:
            messages = run_steps(tx, publish(self._endings.publishing(), [draft for _, draft in drafts]))
            for (id, _), message in zip(drafts, messages, strict=True):
                first, second = f"run {how} as {message.id}{digest}", f"delivery {id} {how}{digest}"
                for action, target in ((first, f"delivery:{id}"), (second, f"message:{message.id}")):
                    tx.rows("audit", by=signed.by, why=signed.why, action=action, targets=[target])
            return [message.id for message in messages]

        return self._database.write("repeat", work) if drafts else []

    def publish(self, draft: Draft, signed: Signed) -> Message:
        """Publishes a message that an operator has written. The audit records it, unless it is a duplicate."""

        def work(tx: Tx) -> Message:
            (message,) = run_steps(tx, publish(self._endings.publishing(), [draft]))
            if not message.duplicate:
                targets = [f"message:{message.id}"]
                tx.rows("audit", by=signed.by, why=signed.why, action="publish", targets=targets)
            return message

        return self._database.write("publish_by_hand", work)

    def record(self, action: str, target: str, signed: Signed) -> None:
        """Records an act that changes no row, such as opening what is masked. Committed when this returns."""
        values = {"by": signed.by, "why": signed.why, "action": action}
        self._database.write("record", lambda tx: tx.rows("audit", **values, targets=[target]))

    def cancel(
        self, which: Filter, signed: Signed, *, limit: int = 1000, after: int = 0, dry_run: bool = False
    ) -> Acted:
        """Aborts waiting deliveries with CANCELLED. Running ones are asked to stop: their worker settles them."""

        def change(tx: Tx, rows: list[Picked]) -> list[int]:
            return cancel(tx, rows, signed.why, endings=self._endings)

        act = Act("cancel", ("pending", "failed", "sending"), change)
        return self._do(act, which, signed, limit=limit, after=after, dry_run=dry_run)

    def settle_by_hand(
        self,
        which: Filter,
        signed: Signed,
        *,
        succeeded: bool,
        result: str | None = None,
        limit: int = 1000,
        after: int = 0,
        dry_run: bool = False,
    ) -> Acted:
        """Settles deliveries that do not run: as succeeded (with this JSON text as result), or as dead letters.

        Ledger first (I5).
        """

        def succeed(tx: Tx, rows: list[Picked]) -> list[int]:
            return _settle_as_succeeded(tx, rows, result, ttl=self._ledger_ttl, endings=self._endings)

        def abort(tx: Tx, rows: list[Picked]) -> list[int]:
            return _settle_as_aborted(tx, rows, signed.why, ttl=self._ledger_ttl, endings=self._endings)

        if succeeded:
            act = Act("settle as succeeded", ("pending", "failed", "aborted"), succeed, "settle_by_hand")
        else:
            act = Act("settle as aborted", ("pending", "failed"), abort, "settle_by_hand")
        return self._do(act, which, signed, limit=limit, after=after, dry_run=dry_run)

    def purge(
        self, which: Filter, signed: Signed, *, limit: int = 1000, after: int = 0, dry_run: bool = False
    ) -> Acted:
        """Removes dead letters for good."""

        def change(tx: Tx, rows: list[Picked]) -> list[int]:
            return purge(tx, rows, signed, ttl=self._ledger_ttl, endings=self._endings)

        act = Act("purge", ("aborted",), change)
        return self._do(act, which, signed, limit=limit, after=after, dry_run=dry_run)

    def clear_history(
        self,
        signed: Signed,
        *,
        topic: str | None = None,
        until: datetime | None = None,
        after: tuple[int, int] = (0, 0),
        limit: int = 1000,
        dry_run: bool = False,
    ) -> Cleared:
        """Removes succeeded deliveries before their retention ends, with message and results; the ledger stays (I5).

        Looks at the next `limit` rows of the history after a position; the answer says where to go on.
        """

        def work(tx: Tx) -> Cleared:
            rows = tx.rows("history_chunk", topic=topic, until=until, after_seq=after[0], after_id=after[1], most=limit)
            position = (rows[-1][1], rows[-1][0]) if len(rows) == limit else None
            matching = [(id, seq) for id, seq, matches in rows if matches]
            if dry_run or not matching:
                return Cleared(len(matching), position)
            return Cleared(_clear(tx, matching, topic, signed), position)

        return self._database.write("clear_history", work)

    def _do(self, act: Act, which: Filter, signed: Signed, *, limit: int, after: int, dry_run: bool) -> Acted:
        def work(tx: Tx) -> Acted:
            return perform(tx, act, which, signed, limit=limit, after=after, dry_run=dry_run)

        return self._endings.write(act.operation or act.name, work)


def _clear(tx: Tx, matching: list[tuple[int, int]], topic: str | None, signed: Signed) -> int:
    ids, seqs = [id for id, _ in matching], sorted({seq for _, seq in matching})
    removed = [id for (id,) in tx.rows("clear_history", ids=ids, seqs=seqs)]
    tx.rows("clear_attempts", ids=ids)
    tx.rows("clear_results", ids=ids)
    tx.rows("clear_messages", seqs=seqs)
    targets = [f"topic:{topic or '**'}"]
    tx.rows("audit", by=signed.by, why=signed.why, action=f"clear {len(removed)} succeeded", targets=targets)
    return len(removed)


class Picked(msgspec.Struct, frozen=True):
    """A matching delivery, locked by this transaction."""

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
    replay_count: int


class Act(msgspec.Struct, frozen=True):
    """An act: its name in the audit, the states it applies to, how it changes rows, the name of its failpoints.

    `refused` returns why it passes over rows in those states, by their ids.
    """

    name: str
    allowed: tuple[str, ...]
    change: Callable[[Tx, list[Picked]], list[int]]
    operation: str | None = None
    refused: Callable[[Tx, list[Picked]], dict[int, str]] = lambda _tx, _rows: {}


def pick(tx: Tx, which: Filter, allowed: Sequence[str], limit: int, after: int) -> list[Picked]:
    """Locks the matching rows. Unless ids or a status are given, only rows the act applies to count for the limit."""
    among = list(allowed) if which.ids is None and which.status is None else None
    rows = [Picked(*row) for row in tx.rows("pick", **parameters(which), among=among, after=after, most=limit)]
    # Now that they are locked: what a worker has listed is running, whatever its row said.
    listed = write_out(tx, [row.id for row in rows if row.status == "pending"])
    return [msgspec.structs.replace(row, status="sending") if row.id in listed else row for row in rows]


def perform(tx: Tx, act: Act, which: Filter, signed: Signed, *, limit: int, after: int, dry_run: bool) -> Acted:
    """Changes the matching rows that the act applies to, audits it, and says why others were passed over."""
    matched = pick(tx, which, act.allowed, limit, after)
    last = matched[-1].id if matched else None
    able = [row for row in matched if row.status in act.allowed]
    skipped = Counter(f"is {row.status}" for row in matched if row.status not in act.allowed)
    missing = len({id for id in which.ids or () if id > after}) - len(matched)
    if missing > 0 and len(matched) < limit:
        skipped[MISSING] = missing
    refused = act.refused(tx, able) if able else {}
    able = [row for row in able if row.id not in refused]
    skipped.update(refused.values())
    if dry_run or not able:
        return Acted(len(matched), tuple(row.id for row in able), dict(skipped), last)
    changed = act.change(tx, able)
    if behind := len(able) - len(changed):
        skipped["its lane is being published to, try again"] = behind
    if changed:
        targets = [f"delivery:{id}" for id in changed]
        tx.rows("audit", by=signed.by, why=signed.why, action=act.name, targets=targets)
    return Acted(len(matched), tuple(changed), dict(skipped), last)


def undoing(tx: Tx, rows: list[Picked]) -> dict[int, str]:
    """Returns why some of these dead letters are not replayed: their steps are undone (R5)."""
    return {id: UNDONE for (id,) in tx.rows("undoing", ids=[row.id for row in rows])}


def replay(tx: Tx, rows: list[Picked]) -> list[int]:
    """Makes dead letters that are locked pending again. Returns those that changed.

    Dead letters of a lane go through the lane again, so they never run beside a follower.
    """
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
    _refresh_lanes(tx, free, unpark=True)
    if gated := [(row.gate, row.queue, row.destination, row.key or "") for row in free if row.gate is not None]:
        gates.open_gates(tx, gated)
    return changed


def cancel(tx: Tx, rows: list[Picked], why: str, *, endings: Endings) -> list[int]:
    """Aborts waiting rows, and asks the workers of running ones to stop."""
    changed = dict(tx.rows("cancel", ids=[row.id for row in rows], why=why))
    _refresh_lanes(tx, rows, unpark=False)
    gates.refresh(tx, (row.gate for row in rows))
    endings.after_abort(tx, [id for id, status in changed.items() if status == "aborted"])
    return list(changed)


def _settle_as_succeeded(tx: Tx, rows: list[Picked], result: str | None, *, ttl: float, endings: Endings) -> list[int]:
    """Writes the ledger (I5), then the rows, with the result that the operator gives."""
    ids = [row.id for row in rows]
    over = load_as_succeeded(tx, ids)
    if entries := _entries(rows):
        tx.rows("settle_by_hand_ledger", entries=entries, state="succeeded", response=result, ttl=ttl)
        _reopen(tx, rows)
    _let_expire(tx, rows, ttl)
    if result is not None:
        tx.rows("settle_by_hand_result", ids=ids, result=result)
    changed = [row[0] for row in tx.rows("settle_by_hand_done", ids=ids)]
    _refresh_lanes(tx, rows, unpark=True)
    gates.refresh(tx, (row.gate for row in rows))
    endings.after_end(tx, [each for each in over if each.delivery_id in set(changed)])
    return changed


def _settle_as_aborted(tx: Tx, rows: list[Picked], why: str, *, ttl: float, endings: Endings) -> list[int]:
    """Writes the ledger (I5), then the rows."""
    if entries := _entries(rows):
        tx.rows("settle_by_hand_ledger", entries=entries, state="failed", response=None, ttl=ttl)
    changed = [row[0] for row in tx.rows("settle_by_hand_aborted", ids=[row.id for row in rows], why=why)]
    _refresh_lanes(tx, rows, unpark=False)
    gates.refresh(tx, (row.gate for row in rows))
    endings.after_abort(tx, changed)
    return changed


def purge(tx: Tx, rows: list[Picked], signed: Signed, *, ttl: float, endings: Endings) -> list[int]:
    """Removes dead letters. A lane that one of them blocked goes on; keys are remembered as after a success.

    The audit names their messages, too: nothing else says why a message has no delivery any more (I1).
    """
    _let_expire(tx, rows, ttl)
    removed = load_ended(tx, [row.id for row in rows])
    changed = [row[0] for row in tx.rows("purge", ids=[row.id for row in rows])]
    targets = sorted({f"message:{row.message_id}" for row in rows})
    tx.rows("audit", by=signed.by, why=signed.why, action="purge", targets=targets)
    _refresh_lanes(tx, rows, unpark=True)
    endings.after_purge(tx, removed)
    return changed


def _refresh_lanes(tx: Tx, rows: Iterable[Picked], *, unpark: bool) -> None:
    """Looks at the head of each lane again. Only a change to the dead letter that blocks a lane frees it."""
    rows = list(rows)
    locked = set(lock_lanes(tx, (row.lane for row in rows)))
    freed = {row.lane for row in rows if unpark and row.status == "aborted" and row.reason not in REMOVED}
    for some, free in ((locked & freed, True), (locked - freed, False)):
        if some:
            tx.rows("refresh_lanes", lanes=sorted(some), unpark=free)


def _let_expire(tx: Tx, rows: Iterable[Picked], ttl: float) -> None:
    """Starts the retention of the ledger entries of these rows (H16)."""
    entries = [
        {"scope": scope, "key_hash": row.key_hash}
        for row in rows
        if row.key_hash is not None
        for scope in (row.scope, effect_scope(row.destination))
    ]
    if entries:
        tx.rows("settle_reservations", entries=entries, ttl=ttl)


def _reopen(tx: Tx, rows: Iterable[Picked]) -> None:
    """Reopens failed entries of `box.once` under the destination's name: their end is still to come."""
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
