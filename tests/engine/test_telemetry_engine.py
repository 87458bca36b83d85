"""The engine is watched: one trace from publisher to handler, one line per settled attempt, numbers that add up."""

from __future__ import annotations

import asyncio
import io
from collections import Counter
from collections.abc import Sequence

import msgspec
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

import todoku
from tests.engine.test_telemetry import counted
from tests.engine.test_tracing import Traced, id_of, parent_of
from todoku.engine.observability.log_line import SettledLine
from todoku.engine.registry import Outgoing

CANARY = "canary-4111-1111"


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


def test_MEND_7_a_send_that_a_handler_makes_itself_is_a_broker_send_span(box: todoku.App) -> None:
    """S0-84: under `outbox.process`, with the adapter's name and its round trip, in the event loop and in threads."""
    traced = Traced()
    box.telemetry = traced.telemetry

    @box.on("order.*", name="loop", max_attempts=1)
    async def loop(ctx: todoku.Context) -> None:
        with ctx.trace_send("exchange"), traced.tracer.start_as_current_span("in the exchange"):
            await asyncio.sleep(0)
        with traced.tracer.start_as_current_span("after the send"):
            pass

    @box.on("order.*", name="thread", max_attempts=1)
    def thread(ctx: todoku.Context) -> None:
        with ctx.trace_send("smtp"):
            raise ConnectionError(CANARY)

    box.publish("order.created", {"n": 1}, tx=None)
    assert box.drain() == 2
    spans = traced.exporter.get_finished_spans()
    sends = {str((span.attributes or {})["adapter"]): span for span in spans if span.name == "broker.send"}
    process = {(span.attributes or {})["destination"]: span for span in spans if span.name == "outbox.process"}
    own = {span.name: span for span in spans}
    assert parent_of(sends["exchange"]) == parent_of(own["after the send"]) == id_of(process["loop"])
    assert parent_of(own["in the exchange"]) == id_of(sends["exchange"])
    assert parent_of(sends["smtp"]) == id_of(process["thread"])
    told = {adapter: dict(span.attributes or {}) for adapter, span in sends.items()}
    took = {adapter: attributes.pop("round_trip_ms") for adapter, attributes in told.items()}
    assert told == {
        "exchange": {"destination": "loop", "adapter": "exchange", "attempt": 1, "outcome": "done"},
        "smtp": {
            "destination": "thread", "adapter": "smtp", "attempt": 1, "outcome": "error",
            "error.type": "ConnectionError",
        },
    }  # fmt: skip
    for adapter, span in sends.items():
        assert span.start_time is not None
        assert span.end_time is not None
        assert 0 <= took[adapter] * 1e6 <= span.end_time - span.start_time + 1e3, "the round trip lies in the span"
    assert (sends["exchange"].status.status_code, sends["smtp"].status.status_code) == (
        trace.StatusCode.UNSET, trace.StatusCode.ERROR,
    )  # fmt: skip
    assert CANARY not in "".join(span.to_json() for span in spans)


@pytest.mark.parametrize("sampled", [False, None])
def test_MEND_7_a_send_is_made_all_the_same_where_nobody_traces(box: todoku.App, sampled: bool | None) -> None:
    """An attempt that is not sampled, and an App without tracing: the block runs, and there is no span."""
    traced = Traced(ALWAYS_OFF)
    if sampled is not None:
        box.telemetry = traced.telemetry
    sent: list[int] = []

    @box.on("order.*", name="loop")
    async def loop(ctx: todoku.Context) -> None:
        with ctx.trace_send("exchange"):
            sent.append(ctx.attempt)

    box.publish("order.created", {"n": 1}, tx=None)
    assert box.drain() == 1
    assert sent == [1]
    assert traced.exporter.get_finished_spans() == ()


def test_MEND_7_a_tracer_that_fails_costs_no_send(box: todoku.App, monkeypatch: pytest.MonkeyPatch) -> None:
    traced = Traced()
    box.telemetry = traced.telemetry
    sent: list[int] = []

    @box.on("order.*", name="loop")
    async def loop(ctx: todoku.Context) -> None:
        monkeypatch.setattr(ParentBased, "should_sample", None)  # somebody's mistake: calling it raises TypeError
        with ctx.trace_send("exchange"):
            sent.append(ctx.attempt)
        monkeypatch.undo()

    box.publish("order.created", {"n": 1}, tx=None)
    assert box.drain() == 1
    assert sent == [1]
    assert [span.name for span in traced.exporter.get_finished_spans()] == ["outbox.process"]


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
    own = SettledLine.__struct_fields__
    settled = [
        msgspec.convert({name: one[name] for name in own}, SettledLine) for one in read if one["event"] == "settled"
    ]
    bound = [{name: one[name] for name in one.keys() - {*own}} for one in read if one["event"] == "settled"]
    assert sorted(bound, key=len) == [{}] + [{"participant_id": "p-9", "card_number": "***"}] * 2
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
