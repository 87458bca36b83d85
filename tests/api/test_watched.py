"""What is watched of publishing: each call is counted by what became of it, and carries the trace it was made in."""

from __future__ import annotations

from contextlib import suppress

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

import todoku
from tests.api.conftest import Attempt
from tests.support.world import World


def counted(box: todoku.App, metric: str) -> dict[str, float]:
    """The samples of a metric, by their label."""
    found = {}
    for line in box.telemetry.render().decode().splitlines():
        if line.startswith((f"{metric}{{", f"{metric} ")):
            name, value = line.rsplit(" ", 1)
            found[name.removeprefix(metric)] = float(value)
    return found


def test_publishes_are_counted_by_what_became_of_them(box: todoku.App, world: World) -> None:
    """DESIGN §8: ok, duplicate, conflict or error; and what best effort could not queue."""
    box.route("order.*", to="warehouse")
    box.route("order.*", to="billing")

    @box.job
    def work(n: int) -> None: ...

    box.publish_many([("order.created", n) for n in range(3)], tx=None)
    for n in (1, 1, 2):
        with suppress(todoku.IdempotencyConflict):
            work.using(idempotency_key="k").enqueue(n)
    world.sql("alter table todoku_delivery rename to todoku_delivery_away")
    work.using(best_effort=True).enqueue(7)
    world.sql("alter table todoku_delivery_away rename to todoku_delivery")
    assert counted(box, "outbox_publish_total") == {
        '{result="ok"}': 4.0,
        '{result="duplicate"}': 1.0,
        '{result="conflict"}': 1.0,
        '{result="error"}': 1.0,
    }
    assert counted(box, "outbox_enqueued_total") == {"": 7.0}
    assert counted(box, "idempotency_conflicts_total") == {"": 1.0}
    assert counted(box, "queue_fallback_total")['{mode="best_effort"}'] == 1.0


@pytest.mark.parametrize("given", [None, {"a": "b"}])
def test_a_message_carries_the_trace_it_was_published_in(
    box: todoku.App, attempt: Attempt, given: dict[str, str] | None
) -> None:
    @box.job
    def work(ctx: todoku.Context) -> dict[str, str]:
        return ctx.headers

    span = SpanContext(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, False, TraceFlags(1))
    with trace.use_span(NonRecordingSpan(span)):
        work.using(headers=given).enqueue()
    traced = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    assert attempt() == [(given or {}) | traced]
