"""The engine is watched: one trace from publisher to handler, one line per settled attempt, numbers that add up."""

from __future__ import annotations

import io
import logging
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan

import todoku
from tests.engine.test_telemetry import counted
from tests.engine.test_tracing import Traced, id_of, parent_of
from todoku.core.mask import MASKED
from todoku.engine.registry import Outgoing
from todoku.engine.telling.log import LOGGER, SettledLine, configure_logging, mask_fields

CANARY = "canary-4111-1111"


@pytest.fixture
def box(url: str) -> Iterator[todoku.App]:
    box = todoku.App(url)
    box.migrate()
    yield box
    box.close()


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """Everything that is logged, at the most talkative level."""
    root = logging.getLogger()
    before = root.handlers[:], root.level, LOGGER.handlers[:], LOGGER.level, LOGGER.propagate
    stream = io.StringIO()
    configure_logging("json", "debug", stream=stream)
    yield stream
    logging.captureWarnings(False)
    root.handlers[:], root.level, LOGGER.handlers[:], LOGGER.level, LOGGER.propagate = before
    mask_fields(MASKED)


class Broker:
    """A destination that opens a span of its own."""

    name = "broker"

    def __init__(self, traced: Traced) -> None:
        self.traced = traced
        self.received: list[Outgoing] = []

    async def send(self, batch: Sequence[Outgoing]) -> None:
        with self.traced.tracer.start_as_current_span("in the broker"):
            self.received.extend(batch)


def test_one_trace_leads_from_the_publisher_to_every_destination(box: todoku.App) -> None:
    """§8: the trace context travels in message headers from publish to consumer."""
    traced = Traced()
    box.telemetry = traced.telemetry

    @box.on("order.*", name="loop")
    async def loop(ctx: todoku.Context) -> None:
        with traced.tracer.start_as_current_span("in the loop"):
            pass

    @box.on("order.*", name="thread")
    def thread(ctx: todoku.Context) -> None:
        with traced.tracer.start_as_current_span("in a thread"):
            pass

    box.route("order.*", to=Broker(traced))
    with traced.tracer.start_as_current_span("checkout"):
        box.publish("order.created", {"n": 1}, tx=None)
    assert box.drain() == 3
    spans = traced.exporter.get_finished_spans()
    assert len({span.context.trace_id for span in spans if span.context}) == 1
    by_id = {id_of(span): span for span in spans}

    def path(span: ReadableSpan) -> list[str]:
        above = parent_of(span)
        return [*(path(by_id[above]) if above is not None else []), span.name]

    paths = sorted(path(span) for span in spans if span.name.startswith("in "))
    assert paths == [
        ["checkout", "outbox.process", "broker.send", "in the broker"],
        ["checkout", "outbox.process", "in a thread"],
        ["checkout", "outbox.process", "in the loop"],
    ]
    process = [dict(span.attributes or {}) for span in spans if span.name == "outbox.process"]
    assert {one["destination"]: one["outcome"] for one in process} == dict.fromkeys(
        ["broker", "thread", "loop"], "done"
    )
    assert trace.get_current_span() is trace.INVALID_SPAN


def test_what_a_handler_publishes_stays_in_its_trace(box: todoku.App) -> None:
    traced = Traced()
    box.telemetry = traced.telemetry

    @box.on("order.created")
    async def paid(ctx: todoku.Context) -> None:
        await box.apublish("order.paid", {}, tx=None)

    seen: list[str] = []

    @box.on("order.paid")
    async def ship(ctx: todoku.Context) -> None:
        seen.append(ctx.headers["traceparent"])

    with traced.tracer.start_as_current_span("checkout") as checkout:
        box.publish("order.created", {}, tx=None)
    assert box.drain() == 2
    assert seen[0].split("-")[1] == f"{checkout.get_span_context().trace_id:032x}"


def test_each_settled_attempt_is_one_line_and_no_line_has_a_payload(box: todoku.App, lines: io.StringIO) -> None:
    """S0-94: no sensitive data in logs, whatever handlers do with it."""

    @box.job(max_attempts=2, backoff=todoku.table(0))
    async def failing(ctx: todoku.Context, card: str) -> None:
        ctx.log.bind(participant_id="p-9", card_number=card).info("charging")
        raise ValueError(f"cannot charge {card}")

    @box.job
    def fine(card: str) -> str:
        return card

    failing.using(headers={"x-correlation-id": "c-7"}, idempotency_key=CANARY, key=CANARY).enqueue(CANARY)
    fine.enqueue(CANARY)
    assert box.drain() == 3
    told = lines.getvalue().split("\n")[:-1]
    read = [msgspec.json.decode(line) for line in told]
    settled = [
        msgspec.json.decode(line, type=SettledLine)
        for line, one in zip(told, read, strict=True)
        if one["event"] == "settled"
    ]
    assert Counter((line.status, line.attempts, line.level) for line in settled) == {
        ("succeeded", 1, "info"): 1,
        ("failed", 1, "warning"): 1,
        ("aborted", 2, "error"): 1,
    }
    assert {line.correlation_id for line in settled} == {"c-7", None}
    assert {line.error_type for line in settled} == {"ValueError", None}
    charging = [one for one in read if one["event"] == "charging"]
    assert [(one["participant_id"], one["card_number"]) for one in charging] == [("p-9", "***")] * 2
    assert CANARY not in lines.getvalue()


def test_the_numbers_add_up(box: todoku.App) -> None:
    @box.job(max_attempts=2, backoff=todoku.table(0))
    async def failing() -> None:
        raise todoku.Retry(reason="NOT_YET")

    @box.job
    async def fine(n: int) -> None: ...

    failing.enqueue()
    keyed = fine.using(idempotency_key="k")
    assert [keyed.enqueue(1).duplicate, keyed.enqueue(1).duplicate] == [False, True]
    with pytest.raises(todoku.IdempotencyConflict):
        keyed.enqueue(2)
    assert box.drain() == 3
    numbers = counted(box.telemetry)
    assert numbers.pop("outbox_claimed_total") >= 3  # what is claimed and given back is claimed again
    assert numbers == {
        "outbox_publish_total{ok}": 2,
        "outbox_publish_total{duplicate}": 1,
        "outbox_publish_total{conflict}": 1,
        "outbox_enqueued_total": 2,
        "outbox_processed_total{done}": 1,
        "outbox_processed_total{retry}": 1,
        "outbox_processed_total{abort}": 1,
        "outbox_retry_total{2}": 1,
        "outbox_retry_scheduled_total": 1,
        "outbox_terminal_failed_total{NOT_YET}": 1,
        "idempo_ledger_writes_total{accepted}": 1,
        "idempo_ledger_writes_total{succeeded}": 1,
        "idempotency_conflicts_total": 1,
    }
