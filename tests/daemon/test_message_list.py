"""The last deliveries as JSON, for programs."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import uuid4

from todoku.api.health import delivery_fields
from todoku.store.deliveries import Delivery


def test_the_row_for_programs_has_no_payload_and_no_worker() -> None:
    now = datetime.now(UTC)
    row = Delivery(
        id=7, message_id=uuid4(), topic="order.created", key=None, destination="warehouse", queue="warehouse",
        lane=None, priority=0, status="failed", attempts=2, max_attempts=6, lost=0, snoozes=0, replay_count=0, epoch=3,
        worker=None, cancel_requested=False, next_run_at=now, created_at=now, updated_at=now, reason="HTTP_5XX",
        error="no answer",
    )  # fmt: skip
    assert list(delivery_fields(row)) == [
        "id", "message_id", "topic", "destination", "status", "attempts", "max_attempts", "reason", "error",
        "created_at", "updated_at", "next_run_at", "correlation_id",
    ]  # fmt: skip
