"""Settling: writes the results of attempts to ledger, then delivery, then history (I5), in one transaction.

Every statement is fenced by (id, epoch, worker): a worker changes only deliveries it still owns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID

import msgspec

from todoku.core.decision import CONFLICT, SUCCEEDED, Settlement
from todoku.core.identity import effect_scope, publish_scope
from todoku.core.message import Claimed
from todoku.core.outcome import Traceback
from todoku.core.status import Status
from todoku.store import gates, lanes
from todoku.store.claim_lists import OpenLists, write_out
from todoku.store.database import Tx
from todoku.store.endings import Endings
from todoku.store.leases import Held

Settled = tuple[Claimed, Settlement]
RunTimes = Mapping[int, int]
"""How long attempts ran, in milliseconds, by delivery id. One that is not there is unknown."""

UNTIMED: Final[RunTimes] = {}
_RUN_BITS: Final = 31
_UNKNOWN: Final = (1 << _RUN_BITS) - 1


def settle(
    tx: Tx, worker: UUID, settled: Sequence[Settled], *, run_ms: RunTimes, ledger_ttl: float, endings: Endings,
    lists: OpenLists,
) -> set[int]:  # fmt: skip
    """Settles attempts of one worker. Returns the ids that it no longer owns. Locks are sorted (H11).

    The consequences of deliveries that ended are published last, in the same transaction.
    """
    settled = sorted(settled, key=_by_id)
    # A listed claim that may come to anything but a success is written out first: the rest fences by the row.
    written = write_out(tx, [claim.id for claim, end in settled if claim.claim_list and _needs_row(claim, end)])
    settled = _settle_ledger(tx, worker, settled, ledger_ttl)
    done = [pair for pair in settled if pair[1].status is Status.SUCCEEDED]
    lost: set[int] = set()
    cancelled: set[int] = set()
    by_row = _settle_listed(tx, worker, [claim for claim, _ in done], written, run_ms, lists)
    if by_row:
        owned = _timed_tokens(by_row, run_ms)
        lost.update(id for (id,) in tx.rows("settle_done", worker=worker, tokens=owned, number=len(by_row)))
    if len(done) < len(settled):
        rows = [_unfinished_row(*pair, run_ms) for pair in settled if pair[1].status is not Status.SUCCEEDED]
        for id, ours in tx.rows("settle_rest", worker=worker, rows=rows):
            (cancelled if ours else lost).add(id)
    results = [
        {"delivery_id": claim.id, "message_seq": claim.message_seq, "result": settlement.result}
        for claim, settlement in done
        if settlement.result is not None and claim.id not in lost
    ]
    if results:
        tx.rows("settle_results", rows=results)
    if locked := lanes.lock(tx, (claim.lane for claim, _ in settled)):
        lanes.settle(tx, worker, locked, [pair for pair in settled if pair[0].id not in lost])
    gates.refresh(tx, [claim.gate for claim, _ in settled if claim.gate is not None])
    endings.after_settle(tx, [pair for pair in settled if pair[0].id not in lost] if lost else settled, cancelled)
    return lost


def _needs_row(claim: Claimed, end: Settlement) -> bool:
    return end.status is not Status.SUCCEEDED or claim.key_hash is not None  # with a key, the ledger decides


def _settle_listed(
    tx: Tx, worker: UUID, claims: list[Claimed], written: set[int], run_ms: RunTimes, lists: OpenLists
) -> list[Claimed]:
    """Settles successes whose claims are lists. Returns the others, and those that were written out meanwhile."""
    listed = [claim for claim in claims if claim.claim_list is not None and claim.id not in written]
    if not listed:
        return claims
    over, run = lists.over, run_ms.get
    times = [min(run(claim.id, _UNKNOWN), _UNKNOWN) for claim in listed]
    missing = tx.rows(
        "settle_listed", worker=worker, ids=[claim.id for claim in listed],
        lists=[claim.claim_list or 0 for claim in listed], times=times, over=over, number=len(listed),
    )  # fmt: skip
    lists.removed(over)
    by_row = {id for (id,) in missing}
    return [claim for claim in claims if claim.claim_list is None or claim.id in written or claim.id in by_row]


def _by_id(pair: Settled) -> int:
    return pair[0].id


def release(tx: Tx, worker: UUID, claims: Sequence[Claimed | Held], delay: float, *, endings: Endings) -> set[int]:
    """Gives back deliveries whose attempt never started. Returns the ids that the worker still owned."""
    ordered = sorted(claims, key=lambda claim: claim.id)
    write_out(tx, [claim.id for claim in ordered if isinstance(claim, Claimed) and claim.claim_list is not None])
    ours = dict(tx.rows("release", worker=worker, tokens=tokens(ordered), delay=delay))
    if locked := lanes.lock(tx, (claim.lane for claim in ordered)):
        lanes.settle(tx, worker, locked, ())
    gates.refresh(tx, (claim.gate for claim in ordered))
    cancelled = [id for id, status in ours.items() if status == Status.ABORTED]
    endings.after_abort(tx, cancelled)
    return set(ours)


def settled_before(tx: Tx, worker: UUID, claims: Sequence[Claimed]) -> set[tuple[int, int]]:
    """The tokens (id, epoch) that this worker has settled already: read back after an ambiguous commit (H4)."""
    rows = tx.rows(
        "settled_before",
        worker=worker,
        ids=[claim.id for claim in claims],
        message_seqs=[claim.message_seq for claim in claims],
    )
    return {(id, epoch) for id, epoch in rows}


def read_effects(tx: Tx, claims: Sequence[Claimed]) -> dict[int, tuple[str, str]]:
    """The ledger entries of those claims that have one, as (state, digest) by delivery id."""
    entries = [
        {"id": claim.id, "scope": effect_scope(claim.destination), "key_hash": claim.key_hash}
        for claim in claims
        if claim.key_hash is not None
    ]
    if not entries:
        return {}
    return {id: (state, digest) for id, state, digest in tx.rows("effects", entries=entries)}


def tokens(claims: Iterable[Claimed | Held]) -> dict[int, int]:
    """Maps the id of each claim to its epoch, in the order given."""
    return {claim.id: claim.epoch for claim in claims}


def _timed_tokens(claims: Iterable[Claimed], run_ms: RunTimes) -> dict[int, int]:
    """As `tokens`, with the run time in the lower bits of the epoch: one number costs settle no more than before."""
    run = run_ms.get
    return {claim.id: claim.epoch << _RUN_BITS | min(run(claim.id, _UNKNOWN), _UNKNOWN) for claim in claims}


def _settle_ledger(tx: Tx, worker: UUID, settled: Sequence[Settled], ttl: float) -> Sequence[Settled]:
    """Records effects. Returns each settlement as the ledger decides it, whatever its own attempt's result (I5)."""
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
    recorded = read_effects(tx, [claim for claim, _ in keyed])
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
    """A success that another attempt recorded makes this one succeed, too; with another digest it is a conflict."""
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
        "fenced": settlement.is_run or settlement.status is not Status.SUCCEEDED,
    }


def _unfinished_row(claim: Claimed, settlement: Settlement, run_ms: RunTimes) -> dict[str, object]:
    return {
        "id": claim.id,
        "epoch": claim.epoch,
        "status": settlement.status.value,
        "delay": settlement.delay,
        "reason": settlement.reason,
        "error": settlement.error,
        "snoozed": int(settlement.snoozed),
        "given_back": int(settlement.snoozed or settlement.parked),
        "parked": int(settlement.parked),
        "max_attempts": claim.max_attempts,
        "run_ms": run_ms.get(claim.id),
        **({} if settlement.response is None else {"response": msgspec.to_builtins(settlement.response)}),
        **({} if (trace := settlement.traceback) is None else _trace_columns(trace)),
    }


def _trace_columns(trace: Traceback) -> dict[str, object]:
    return {"traceback": trace.text, "fingerprint": trace.fingerprint}
