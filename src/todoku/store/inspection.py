"""Looking closer: what is inside, what died and why, why something does not run, what happens right now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from uuid import UUID

from todoku.store import reading
from todoku.store.database import Tx
from todoku.store.deliveries import GONE
from todoku.store.reading import uuid, uuid_or_none
from todoku.store.values import Delivery, Filter, moment
from todoku.store.views import DeadGroup, Event, FullGate, GateRow, Known, LaneRow, Preview, Situation

_DEAD_COUNTED: Final = 100_000
_GATE_COUNTED: Final = 1000


def previews(tx: Tx, message_ids: Sequence[UUID], largest: int) -> dict[UUID, Preview]:
    """What is inside these messages."""
    rows = tx.rows("previews", ids=[str(id) for id in message_ids], largest=largest)
    return {uuid(id): Preview(payload, size, kind) for id, payload, size, kind in rows}


def dead(tx: Tx) -> tuple[DeadGroup, ...]:
    """Dead letters by reason and destination."""
    return tuple(
        DeadGroup(reason, destination, number, moment(since), moment(until), newest, error)
        for reason, destination, number, since, until, newest, error in tx.rows("dead_groups", most=_DEAD_COUNTED)
    )


def known(tx: Tx) -> Known:
    """Queues and destinations somebody has said something about."""
    rows = tx.rows("known")
    return Known(
        tuple(name for kind, name, _ in rows if kind == "queue"),
        {name: seen for kind, name, seen in rows if kind == "destination"},
    )


def situation(tx: Tx, delivery_id: int) -> Situation | None:
    """Everything that decides when a delivery runs."""
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
        limits=reading.limits(tx),
        known=known(tx),
        workers=reading.workers(tx),
        lane=None if delivery.lane is None else _lane(tx, delivery.lane),
        queue_in_flight=in_queue,
        destination_in_flight=in_destination,
        gate=None if gate is None else next((GateRow(*row) for row in tx.rows("gate", gate=gate)), None),
    )


def full_gates(tx: Tx, limit: int) -> tuple[FullGate, ...]:
    """Keys at their limit, those with the most behind them first."""
    return tuple(FullGate(*row) for row in tx.rows("full_gates", counted=_GATE_COUNTED, most=limit))


def _lane(tx: Tx, lane: int) -> LaneRow | None:
    for ready_at, worker, failures, parked in tx.rows("lane", lane=lane):
        head = _first(tx, tx.rows("lane_head", lane=lane))
        blocker = _first(tx, tx.rows("lane_blocker", lane=lane, gone=sorted(GONE))) if parked else None
        return LaneRow(uuid_or_none(worker), ready_at, failures, bool(parked), head, blocker)
    return None


def _first(tx: Tx, rows: list[Any]) -> Delivery | None:
    return _one(tx, rows[0][0]) if rows else None


def _one(tx: Tx, delivery_id: int) -> Delivery | None:
    items = reading.find(tx, Filter(ids=(delivery_id,)), None, 1).items
    return items[0] if items else None


def tail(tx: Tx, since: float, limit: int) -> tuple[Event, ...]:
    """What happened lately."""
    return tuple(
        Event(moment(at), what, id, uuid_or_none(message_id), *rest)
        for at, what, id, message_id, *rest in tx.rows("tail", since=since, most=limit)
    )
