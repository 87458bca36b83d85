"""The line in the store: claim, settle, release. Every change here is fenced by (id, epoch, worker)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final
from uuid import UUID

import msgspec

from todoku.core.decision import CONFLICT, SUCCEEDED, Settlement
from todoku.core.identity import destination_lock, effect_scope, publish_scope
from todoku.core.message import Claimed
from todoku.core.status import Status
from todoku.store import gates
from todoku.store.database import Tx
from todoku.store.ending import Endings
from todoku.store.values import Held, Waiting

Settled = tuple[Claimed, Settlement]
GONE: Final = frozenset({"CANCELLED", "EXPIRED", "BY_HAND", "UNKNOWN_DESTINATION"})
"""Reasons of dead letters that block no lane: a person or their time has removed them."""


def waiting(tx: Tx, destinations: Sequence[str] | None) -> Waiting:
    """Where work waits: walks over small sets of places, never over rows."""
    return Waiting(
        tuple(tx.rows("waiting", destinations=destinations)),
        tuple(tx.rows("waiting_suspects", destinations=destinations)),
        tuple(tx.rows("waiting_lanes", destinations=destinations)),
        gates.waiting(tx, destinations),
    )


def places_of(places: Sequence[tuple[str, str]]) -> list[dict[str, str]]:
    """Places as a document for a query."""
    return [{"queue": queue, "destination": destination} for queue, destination in places]


def claim_lanes(
    tx: Tx, worker: UUID, places: Sequence[tuple[str, str]], lanes: int, limit: int, *, alone: bool = False
) -> list[Any]:
    """Take lanes, then of each its first rows, or one `alone`. Lanes with nothing to run are given back at once."""
    taken = dict(tx.rows("take_lanes", worker=worker, places=places_of(places), lanes=min(lanes, limit)))
    if not taken:
        return []
    each = 1 if alone else max(1, limit // len(taken))
    mosts = {str(lane): 1 if failures else each for lane, failures in taken.items()}
    rows = tx.rows("claim_lane_rows", worker=worker, mosts=mosts, most=each)
    if idle := taken.keys() - {row[_LANE] for row in rows}:
        settle_lanes(tx, worker, sorted(idle), ())
    return sorted(rows, key=lambda row: (row[_LANE], row[0]))


_LANE = Claimed.__struct_fields__.index("lane")


def settle(tx: Tx, worker: UUID, settled: Sequence[Settled], *, ledger_ttl: float, endings: Endings) -> set[int]:
    """Ledger, then delivery, then history (I5). Returns the ids that were not ours; sorted locks (H11).

    What follows the ends among them is published last, in the same transaction.
    """
    settled = sorted(settled, key=_by_id)
    settled = _settle_ledger(tx, worker, settled, ledger_ttl)
    done = [pair for pair in settled if pair[1].status is Status.SUCCEEDED]
    lost: set[int] = set()
    cancelled: set[int] = set()
    if done:
        owned = tokens([claim for claim, _ in done])
        lost.update(id for (id,) in tx.rows("settle_done", worker=worker, tokens=owned, number=len(done)))
    if len(done) < len(settled):
        rows = [_rest_row(*pair) for pair in settled if pair[1].status is not Status.SUCCEEDED]
        for id, ours in tx.rows("settle_rest", worker=worker, rows=rows):
            (cancelled if ours else lost).add(id)
    results = [
        {"delivery_id": claim.id, "message_seq": claim.message_seq, "result": settlement.result}
        for claim, settlement in done
        if settlement.result is not None and claim.id not in lost
    ]
    if results:
        tx.rows("settle_results", rows=results)
    if lanes := sorted({claim.lane for claim, _ in settled if claim.lane is not None}):
        tx.rows("lock_lanes", lanes=lanes)
        settle_lanes(tx, worker, lanes, [pair for pair in settled if pair[0].id not in lost])
    gates.refresh(tx, [claim.gate for claim, _ in settled if claim.gate is not None])
    endings.settled(tx, [pair for pair in settled if pair[0].id not in lost] if lost else settled, cancelled)
    return lost


def _by_id(pair: Settled) -> int:
    return pair[0].id


def release(tx: Tx, worker: UUID, claims: Sequence[Claimed | Held], delay: float, *, endings: Endings) -> set[int]:
    """Give back what never started. Returns the ids that were ours."""
    ordered = sorted(claims, key=lambda claim: claim.id)
    ours = dict(tx.rows("release", worker=worker, tokens=tokens(ordered), delay=delay))
    if lanes := sorted({claim.lane for claim in ordered if claim.lane is not None}):
        tx.rows("lock_lanes", lanes=lanes)
        settle_lanes(tx, worker, lanes, ())
    gates.refresh(tx, (claim.gate for claim in ordered))
    endings.aborted(tx, [id for id, status in ours.items() if status == Status.ABORTED])  # cancelled meanwhile
    return set(ours)


def settle_lanes(tx: Tx, worker: UUID, lanes: Sequence[int], settled: Sequence[Settled]) -> None:
    """Give back the lanes with nothing in flight, and drop the empty ones (unless a publisher is at work)."""
    by_status: dict[Status, set[int]] = {status: set() for status in Status}
    for claim, settlement in settled:
        if claim.lane is not None and not (settlement.status is Status.ABORTED and settlement.reason in GONE):
            by_status[settlement.status].add(claim.lane)
    rows = tx.rows(
        "settle_lanes",
        worker=worker,
        lanes=lanes,
        failing=sorted(by_status[Status.FAILED]) or _NOTHING,
        succeeding=sorted(by_status[Status.SUCCEEDED]) or _NOTHING,
        aborting=sorted(by_status[Status.ABORTED]) or _NOTHING,
    )
    empty = {str(lane): str(destination_lock(destination)) for lane, destination, is_empty in rows if is_empty}
    if empty and (locked := [row[0] for row in tx.rows("try_lock_lanes", locks=empty)]):
        tx.rows("drop_empty_lanes", lanes=locked)


_NOTHING: list[int] = [0]
"""An empty array has no type to PostgreSQL; lane 0 is as good as none, being one hash in 2^64."""


def settled_before(tx: Tx, worker: UUID, claims: Sequence[Claimed]) -> set[tuple[int, int]]:
    """Which of these tokens this worker has settled already: the read-back after an ambiguous commit (H4)."""
    rows = tx.rows(
        "settled_before",
        worker=worker,
        ids=[claim.id for claim in claims],
        message_seqs=[claim.message_seq for claim in claims],
    )
    return {(id, epoch) for id, epoch in rows}


def effects(tx: Tx, claims: Sequence[Claimed]) -> dict[int, tuple[str, str]]:
    """The effect entries of claims that have a key."""
    entries = [
        {"id": claim.id, "scope": effect_scope(claim.destination), "key_hash": claim.key_hash}
        for claim in claims
        if claim.key_hash is not None
    ]
    if not entries:
        return {}
    return {id: (state, digest) for id, state, digest in tx.rows("effects", entries=entries)}


def tokens(claims: Iterable[Claimed | Held]) -> dict[int, int]:
    """Tokens as a document: id → epoch, in the order given."""
    return {claim.id: claim.epoch for claim in claims}


def _settle_ledger(tx: Tx, worker: UUID, settled: Sequence[Settled], ttl: float) -> Sequence[Settled]:
    """Record what took effect, then settle each delivery as the ledger says, whatever its own attempt came to (I5)."""
    keyed = [pair for pair in settled if pair[0].key_hash is not None]
    if not keyed:
        return settled
    entries = [
        _entry(claim, settlement)
        for claim, settlement in keyed
        if settlement.status in (Status.SUCCEEDED, Status.ABORTED) and settlement.reason != CONFLICT.reason
    ]
    if entries:
        tx.rows("settle_effects", worker=worker, entries=entries, ttl=ttl)
    recorded = effects(tx, [claim for claim, _ in keyed])
    settled = [(claim, _as_recorded(claim, settlement, recorded.get(claim.id))) for claim, settlement in settled]
    reserved = [
        {"scope": publish_scope(claim.topic), "key_hash": claim.key_hash}
        for claim, settlement in settled
        if claim.key_hash is not None and settlement.status is Status.SUCCEEDED
    ]
    if reserved:
        tx.rows("settle_reservations", entries=reserved, ttl=ttl)
    return settled


def _as_recorded(claim: Claimed, settlement: Settlement, entry: tuple[str, str] | None) -> Settlement:
    """A stray's success makes this delivery succeeded too; a success with another digest, a conflict."""
    if entry is None or entry[0] != "succeeded":
        return settlement
    if entry[1] != claim.digest:
        return CONFLICT if settlement.status is Status.SUCCEEDED else settlement
    return settlement if settlement.status is Status.SUCCEEDED else SUCCEEDED


def _entry(claim: Claimed, settlement: Settlement) -> dict[str, object]:
    return {
        "scope": effect_scope(claim.destination),
        "key_hash": claim.key_hash,
        "digest": claim.digest,
        "state": "succeeded" if settlement.status is Status.SUCCEEDED else "failed",
        "message_id": claim.message_id,
        "response": settlement.result,
        "id": claim.id,
        "epoch": claim.epoch,
    }


def _rest_row(claim: Claimed, settlement: Settlement) -> dict[str, object]:
    return {
        "id": claim.id,
        "epoch": claim.epoch,
        "status": settlement.status.value,
        "delay": settlement.delay,
        "reason": settlement.reason,
        "error": settlement.error,
        "snoozed": int(settlement.snoozed),
        "max_attempts": claim.max_attempts,
        **({} if settlement.response is None else {"response": msgspec.to_builtins(settlement.response)}),
    }
