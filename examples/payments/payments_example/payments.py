"""Applying what Stripe tells, in a transaction of the caller's: once, and by the event's own time."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from sqlalchemy import text
from sqlalchemy.orm import Session

import todoku
from payments_example.events import RANK, Change, Status

_SEEN: Final = text(
    "insert into payment_events (stripe_event_id, type, intent, applied) values (:event_id, :type, :intent, :applied)"
    " on conflict (stripe_event_id) do nothing"
)
_APPLY: Final = text(
    "insert into payments (intent, participant_id, status, amount, currency, event_at, rank)"
    " values (:intent, :participant_id, :status, :amount, :currency, :at, :rank)"
    " on conflict (intent) do update set status = excluded.status, amount = excluded.amount,"
    " participant_id = excluded.participant_id, event_at = excluded.event_at, rank = excluded.rank"
    " where (excluded.event_at, excluded.rank) > (payments.event_at, payments.rank)"
)
_LATE: Final = text("update payment_events set applied = :applied where stripe_event_id = :event_id")
_WHOSE: Final = text("select id, email from participants where id = :participant_id or intent = :intent order by 1")
_KNOW: Final = text(
    "insert into participants (id, email) values (:participant_id, :email)"
    " on conflict (id) do update set email = excluded.email where participants.email is null"
)
_PAYMENT: Final = text(
    "select intent, participant_id, status, amount, currency, event_at from payments where intent = :intent"
)
_UNPAID: Final = text(
    "select payments.intent, participants.email from payments join participants on participants.id = participant_id"
    " where status = 'failed' and participants.email is not null order by payments.intent"
)


class Applied(msgspec.Struct, frozen=True):
    """What became of a change. `result`: `seen` before, too `late` to count, or `applied`; then somebody is told."""

    result: str
    participant_id: str
    to: str | None = None
    status: Status | None = None


def apply(tx: Session, change: Change) -> Applied:
    """Apply a change. Abort: nobody knows whose payment it is, and trying again would not tell."""
    whose = tx.execute(_WHOSE, {"participant_id": change.participant_id, "intent": change.intent}).first()
    participant = change.participant_id or (whose.id if whose is not None else None)
    if participant is None:
        raise todoku.Abort("MISSING_PARTICIPANT", "neither its metadata nor our participants know this intent")
    values = {**msgspec.structs.asdict(change), "participant_id": participant, "rank": RANK[change.status]}
    if _changed(tx, _SEEN, {**values, "applied": True}) == 0:
        return Applied("seen", participant)
    if _changed(tx, _APPLY, values) == 0:
        tx.execute(_LATE, {"applied": False, "event_id": change.event_id})
        return Applied("late", participant)
    if change.email is not None:  # so that a reminder can reach them later
        tx.execute(_KNOW, values)
    to = whose.email if whose is not None and whose.email else change.email
    return Applied("applied", participant, to, change.status)


def payment(tx: Session, intent: str) -> dict[str, Any] | None:
    """A payment as it is stored."""
    found = tx.execute(_PAYMENT, {"intent": intent}).mappings().first()
    return None if found is None else dict(found)


def unpaid(tx: Session) -> list[tuple[str, str]]:
    """(intent, address) of whoever has tried to pay and failed."""
    return [(row.intent, row.email) for row in tx.execute(_UNPAID)]


def _changed(tx: Session, statement: Any, values: dict[str, Any]) -> int:
    return int(tx.execute(statement, values).rowcount)  # type: ignore[attr-defined]
