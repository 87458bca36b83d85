"""Why a delivery waits: everything that decides when it runs, as of one moment."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec

from todoku.core.flow import StepKind
from todoku.store.columns import uuid_or_none
from todoku.store.database import Tx
from todoku.store.deliveries import Delivery, Filter, find
from todoku.store.deliveries import delivery as delivery_of
from todoku.store.destinations import Known, read_known
from todoku.store.lanes import REMOVED
from todoku.store.leases import WorkerRow, read_workers
from todoku.store.limits import Limits, read_limits


class LaneRow(msgspec.Struct, frozen=True):
    """A lane: its owner, the next delivery in it, and the dead letter that parks it."""

    worker: UUID | None
    ready_at: float
    failures: int
    parked: bool
    head: Delivery | None
    blocker: Delivery | None


class GateRow(msgspec.Struct, frozen=True):
    """The limit of one key: at once and per second; `running` deliveries, and no start before `paced_until`."""

    key: str
    concurrency: int | None
    rate: float | None
    running: int
    paced_until: float | None


class RunWait(msgspec.Struct, frozen=True):
    """What a parked run waits for: an open step, until when, and of children how many of how many have not ended."""

    name: str
    kind: StepKind
    awaits: str | None
    until: float | None
    open: int | None
    total: int | None


class Situation(msgspec.Struct, frozen=True):
    """Everything that decides when a delivery runs, as of one moment. Times are unix seconds of the database."""

    now: float
    delivery: Delivery
    expires_at: float | None
    claimed_at: float | None
    limits: Limits
    known: Known
    workers: tuple[WorkerRow, ...]
    lane: LaneRow | None
    queue_in_flight: int
    destination_in_flight: int
    gate: GateRow | None = None
    waits: tuple[RunWait, ...] = ()
    """Of a run of a workflow that does not run: what it waits for."""


def read_situation(tx: Tx, delivery_id: int) -> Situation | None:
    """The situation of a delivery; None: it does not exist, or it succeeded."""
    delivery = _one(tx, delivery_id)
    facts = tx.rows("situation", id=delivery_id)
    if delivery is None or not facts:
        return None
    ((expires_at, claimed_at, in_queue, in_destination, gate),) = facts
    return Situation(
        now=float(tx.rows("clock")[0][0]),
        delivery=delivery,
        expires_at=expires_at,
        claimed_at=claimed_at,
        limits=read_limits(tx),
        known=read_known(tx),
        workers=read_workers(tx),
        lane=None if delivery.lane is None else _lane(tx, delivery.lane),
        queue_in_flight=in_queue,
        destination_in_flight=in_destination,
        gate=None if gate is None else next((GateRow(*row) for row in tx.rows("gate", gate=gate)), None),
        waits=tuple(_waits(tx, [delivery_id])[delivery_id]),
    )


def read_situations(tx: Tx, deliveries: Sequence[Delivery]) -> dict[int, Situation]:
    """The situations of many deliveries by their numbers, with a fixed number of queries; ended ones are left out.

    What all of them share is read once; lanes and gates are read for all of them together. Lanes come first: a delivery
    that ends with its lane meanwhile is left out, because it is not there any more.
    """
    lanes = _lanes(tx, sorted({each.lane for each in deliveries if each.lane is not None}))
    facts = {id: rest for id, *rest in tx.rows("situations", ids=[each.id for each in deliveries])}
    gates = _gates(tx, sorted({gate for _, _, gate in facts.values() if gate is not None}))
    waits = _waits(tx, list(facts))
    now, limits, known, workers = float(tx.rows("clock")[0][0]), read_limits(tx), read_known(tx), read_workers(tx)
    queues, destinations = Counter[str](), Counter[str]()
    for queue, destination, number in tx.rows("in_flight"):
        queues[queue] += number
        destinations[destination] += number
    return {
        each.id: Situation(
            now=now,
            delivery=each,
            expires_at=facts[each.id][0],
            claimed_at=facts[each.id][1],
            limits=limits,
            known=known,
            workers=workers,
            lane=None if each.lane is None else lanes.get(each.lane),
            queue_in_flight=queues[each.queue],
            destination_in_flight=destinations[each.destination],
            gate=gates.get(facts[each.id][2]),
            waits=tuple(waits[each.id]),
        )
        for each in deliveries
        if each.id in facts
    }


def _waits(tx: Tx, ids: list[int]) -> defaultdict[int, list[RunWait]]:
    found = defaultdict[int, list[RunWait]](list)
    for id, *row in tx.rows("run_waits", ids=ids):
        found[id].append(RunWait(*row))
    return found


def _gates(tx: Tx, gates: list[int]) -> dict[int | None, GateRow]:
    return {id: GateRow(*row) for id, *row in tx.rows("gates", gates=gates)} if gates else {}


def _lanes(tx: Tx, lanes: list[int]) -> dict[int, LaneRow]:
    rows = tx.rows("lanes", lanes=lanes, gone=sorted(REMOVED)) if lanes else []
    ids = sorted({id for *_, head, blocker in rows for id in (head, blocker) if id is not None})
    found = {each.id: each for each in map(delivery_of, tx.rows("deliveries_of", ids=ids))} if ids else {}
    return {
        id: LaneRow(uuid_or_none(worker), ready_at, failures, bool(parked), found.get(head), found.get(blocker))
        for id, ready_at, worker, failures, parked, head, blocker in rows
    }


def _lane(tx: Tx, lane: int) -> LaneRow | None:
    for ready_at, worker, failures, parked in tx.rows("lane", lane=lane):
        head = _first(tx, tx.rows("lane_head", lane=lane))
        blocker = _first(tx, tx.rows("lane_blocker", lane=lane, gone=sorted(REMOVED))) if parked else None
        return LaneRow(uuid_or_none(worker), ready_at, failures, bool(parked), head, blocker)
    return None


def _first(tx: Tx, rows: list[Any]) -> Delivery | None:
    return _one(tx, rows[0][0]) if rows else None


def _one(tx: Tx, delivery_id: int) -> Delivery | None:
    items = find(tx, Filter(ids=(delivery_id,)), None, 1).items
    return items[0] if items else None
