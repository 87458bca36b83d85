"""Questions about what is stored: what is inside a message, what died and why, why a delivery waits, how far behind the
workers are, and which invariants are broken. Nothing here changes a delivery.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final
from uuid import UUID

from todoku.store import reading
from todoku.store.database import Tx
from todoku.store.deliveries import GONE
from todoku.store.reading import uuid, uuid_or_none, windows
from todoku.store.values import Delivery, Filter, Lag, moment
from todoku.store.views import DeadGroup, Event, FullGate, GateRow, Known, LaneRow, Preview, Situation


def broken(tx: Tx, *, history_ttl: float, ledger_ttl: float, most: int) -> dict[str, tuple[str, ...]]:
    """The invariants that do not hold in this snapshot, each with examples."""
    found: dict[str, tuple[str, ...]] = {}
    values: dict[str, Any] = {"history_ttl": history_ttl, "ledger_ttl": ledger_ttl, "most": most, "gone": sorted(GONE)}
    for name in (
        "acknowledged",
        "message",
        "one_state",
        "finished_once",
        "reserved",
        "owner",
        "orphan",
        "lane_owner",
        "epoch",
        "attempts",
        "token",
        "ledger",
        "replays",
        "lane",
        "parked",
        "lane_time",
        "gate",
        "gate_running",
        "gate_time",
        "batch",
        "batch_due",
        "tried",
        "endpoint",
        "clock",
    ):
        if rows := tx.rows(f"verify_{name}", **values):
            found[name] = tuple(example for (example,) in rows)
    return found


COUNTED: Final = 10_000
"""So many are counted in each place; where there are more, the whole is estimated from a hundredth of the rows."""


def lag(tx: Tx, *, stuck_after: float, draw: Callable[[], float]) -> Lag:
    """How it stands. `draw` gives chance in [0, 1)."""
    places = [
        {"queue": queue, "destination": destination, "priority": priority}
        for queue, destination, priority in tx.rows("waiting", destinations=None)
    ]
    found: list[tuple[int, float, int]] = tx.rows("lag_due", places=places, most=COUNTED) if places else []
    found = [*found, *tx.rows("lag_apart", most=COUNTED)]
    ((sending, stuck, dead),) = tx.rows("lag_held", stuck_after=stuck_after, most=COUNTED)
    due = sum(number for number, _, _ in found)
    exact = all(looked_at < COUNTED for _, _, looked_at in found)
    if not exact or dead >= COUNTED:
        estimated_due, estimated_dead = _estimated(tx, draw)
        due = due if exact else max(due, estimated_due)
        dead = max(dead, estimated_dead) if dead >= COUNTED else dead
    return Lag(
        due=due,
        oldest=max([0.0, *(float(age) for _, age, _ in found)]),
        sending=sending,
        stuck=stuck,
        dead=dead,
        exact=exact and dead < COUNTED,
    )


def _estimated(tx: Tx, draw: Callable[[], float]) -> tuple[int, int]:
    ((_, first, last),) = tx.rows("size", most=1)
    ((due, dead),) = tx.rows("lag_sample", windows=windows(tx, first, last, draw))
    return round(due or 0), round(dead or 0)


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
