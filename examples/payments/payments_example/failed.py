"""`failed_webhook_events`, as the API lists it and runs from it again."""

from __future__ import annotations

from typing import Any

from sqlalchemy import inspect, text

from payments_example.application import Payments
from todoku.client import FailedEvents, Queue

TABLE = "failed_webhook_events"
_NEWEST = text(
    f"select event_id, error, created_at, rerun_at, rerun_by from {TABLE} order by created_at desc limit 100"
)


class Failed:
    """The events that failed for good."""

    def __init__(self, payments: Payments, queue: Queue) -> None:
        self._payments = payments
        self._queue = queue
        self._events = FailedEvents(payments.box, TABLE)

    def rows(self) -> list[dict[str, Any]]:
        """The newest 100. The table is made when the first one fails."""
        with self._payments.engine.connect() as tx:
            if not inspect(tx).has_table(TABLE):
                return []
            return [dict(row) for row in tx.execute(_NEWEST).mappings()]

    def rerun(self, event_id: str, *, by: str, why: str) -> str:
        """Have one sent again; the id of its message. NoSuchMessage, InvalidAct: it cannot be."""
        return self._events.rerun(self._queue, event_id, by=by, why=why)

    def sync(self) -> int:
        """MODE=queue: fetch the dead letters of the queue; how many were new. `todoku dlq-sync` does the same."""
        return sum(new for _, new in self._events.sync(self._queue))
