"""Spans: the publisher's → `outbox.process` → `broker.send` → the handler's own, in one trace (DESIGN §8)."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from contextlib import nullcontext
from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler
from opentelemetry.trace import StatusCode

import todoku
from tests.core.making import claimed
from tests.support.world import World, aborted, failed
from todoku.core.decision import SUCCEEDED, Settlement
from todoku.core.message import Claimed
from todoku.engine.observability.telemetry import EndedAttempt, Telemetry
from todoku.engine.observability.tracing import Tracing, find_tracing, inject

REMOTE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-{}"


class Traced:
    """A tracer provider of the test's own, and what it exported."""

    def __init__(self, sampler: Sampler = ALWAYS_ON) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=ParentBased(sampler), shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")
        self.telemetry = Telemetry(tracing=Tracing(self.provider))

    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.exporter.get_finished_spans()}


@pytest.fixture
def traced() -> Traced:
    return Traced()


def ended(claim: Claimed, settlement: Settlement = SUCCEEDED, error_type: str | None = None) -> EndedAttempt:
    now = time.monotonic()
    return EndedAttempt(claim, settlement, now - 0.5, now - 0.2, error_type)


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def test_one_trace_goes_from_the_publisher_to_the_handlers_own_span(traced: Traced) -> None:
    with traced.tracer.start_as_current_span("checkout"):
        headers = inject(None)
    claim = claimed(headers=json.dumps(headers), attempt=2)
    token = traced.telemetry.begin(claim, send=True)
    with traced.tracer.start_as_current_span("their own"):
        pass
    traced.telemetry.end(token, ended(claim))
    spans = traced.spans()
    chain = ["checkout", "outbox.process", "broker.send", "their own"]
    assert [parent_of(spans[name]) for name in chain] == [None, *(id_of(spans[name]) for name in chain[:-1])]
    assert len({span.context.trace_id for span in spans.values() if span.context}) == 1
    assert spans["outbox.process"].parent is not None
    assert spans["outbox.process"].parent.is_remote


def test_the_spans_say_where_to_which_attempt_what_it_came_to_and_how_long_it_took(traced: Traced) -> None:
    claim = claimed(id=7, attempt=2, payload='"canary"', key="canary")
    token = traced.telemetry.begin(claim, send=True)
    settlement = Settlement(status=aborted().status, reason="REFUSED", error="canary")
    traced.telemetry.end(token, ended(claim, settlement, "ValueError"))
    spans = traced.spans()
    process, send = (dict(spans[name].attributes or {}) for name in ("outbox.process", "broker.send"))
    assert process == {
        "destination": "warehouse",
        "attempt": 2,
        "topic": "order.created",
        "message_id": "m",
        "outbox_id": 7,
        "messaging.system": "todoku",
        "outcome": "abort",
        "reason": "REFUSED",
        "error.type": "ValueError",
        "round_trip_ms": 300,
    }
    assert send.pop("adapter") == "warehouse"
    assert send == {name: process[name] for name in send}
    assert send.keys() >= {"destination", "attempt", "outcome", "round_trip_ms"}
    assert spans["broker.send"].status.status_code is StatusCode.ERROR
    assert "canary" not in "".join(span.to_json() for span in spans.values())


def test_the_send_ends_when_it_ended_and_the_process_when_it_is_settled(traced: Traced) -> None:
    claim = claimed()
    token = traced.telemetry.begin(claim, send=True)
    traced.telemetry.end(token, ended(claim))
    spans = traced.spans()
    apart = (spans["outbox.process"].end_time or 0) - (spans["broker.send"].end_time or 0)
    assert apart >= 0.2e9


@pytest.mark.parametrize(
    ("settlement", "outcome", "code"),
    [(SUCCEEDED, "done", StatusCode.UNSET), (failed(), "retry", StatusCode.ERROR)],
)
def test_a_handler_has_the_process_span_alone(
    traced: Traced, settlement: Settlement, outcome: str, code: StatusCode
) -> None:
    token = traced.telemetry.begin(claimed(), send=False)
    traced.telemetry.end(token, ended(claimed(), settlement))
    (span,) = traced.exporter.get_finished_spans()
    assert (span.name, (span.attributes or {})["outcome"], span.status.status_code) == ("outbox.process", outcome, code)


def test_a_lost_attempt_says_so(traced: Traced) -> None:
    traced.telemetry.end(traced.telemetry.begin(claimed(), send=False), ended(claimed()), lost=True)
    assert (traced.spans()["outbox.process"].attributes or {})["outcome"] == "lost"


# --------------------------------------------------------------------------------------------- sampling


@pytest.mark.parametrize(
    ("sampler", "flag", "told"),
    [(ALWAYS_OFF, "01", 3), (ALWAYS_ON, "00", 0), (ALWAYS_ON, None, 3), (ALWAYS_OFF, None, 0)],
)
def test_the_publishers_flag_decides_and_where_there_is_none_the_sampler(
    sampler: Sampler, flag: str | None, told: int
) -> None:
    traced = Traced(sampler)
    claim = claimed(headers=None if flag is None else json.dumps({"traceparent": REMOTE.format(flag)}))
    token = traced.telemetry.begin(claim, send=True)
    with traced.tracer.start_as_current_span("their own"):
        pass
    traced.telemetry.end(token, ended(claim))
    assert len(traced.spans()) == told


def test_what_is_current_in_the_worker_is_not_the_parent(traced: Traced) -> None:
    with traced.tracer.start_as_current_span("the worker's"):
        traced.telemetry.end(traced.telemetry.begin(claimed(), send=False), ended(claimed()))
    assert traced.spans()["outbox.process"].parent is None


def test_headers_that_cannot_be_read_begin_a_trace_of_their_own(traced: Traced) -> None:
    for headers in ("[]", '{"traceparent": 7}', '{"traceparent": "nonsense"}', "not json"):
        traced.telemetry.end(traced.telemetry.begin(claimed(headers=headers), send=False), ended(claimed()))
    assert [span.parent for span in traced.exporter.get_finished_spans()] == [None] * 4


def test_where_nobody_traces_nothing_begins() -> None:
    telemetry = Telemetry()  # this process has OpenTelemetry imported, and no provider set
    assert find_tracing() is None
    assert telemetry.begin(claimed(headers=json.dumps({"traceparent": REMOTE.format("01")})), send=True) is None
    telemetry.leave(None)
    telemetry.end(None, ended(claimed()))
    assert telemetry.with_trace(None, {"a": "b"}) == {"a": "b"}


def test_a_sampler_that_fails_costs_no_message(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParentBased, "should_sample", None)  # somebody's mistake: calling it raises TypeError
    assert traced.telemetry.begin(claimed(), send=True) is None


# ----------------------------------------------------------------------------------------------- headers


def test_publishing_in_a_span_puts_the_trace_into_the_headers(traced: Traced) -> None:
    assert inject(None) is None
    assert inject({"a": "b"}) == {"a": "b"}
    token = context.attach(baggage.set_baggage("shop", "7"))
    try:
        with traced.tracer.start_as_current_span("checkout") as span:
            found = dict(inject({"sentry-trace": "s"}) or {})
    finally:
        context.detach(token)
    trace_id = f"{span.get_span_context().trace_id:032x}"
    assert found.pop("traceparent").split("-")[1] == trace_id
    assert found == {"sentry-trace": "s", "baggage": "shop=7"}


def test_each_call_of_a_job_has_the_trace_of_its_own_moment(traced: Traced, world: World) -> None:
    """What calls have in common is prepared once (decision 43), but a trace is not."""
    box = todoku.App(world.url)
    job = box.job("work")(lambda: None)
    for name in ("checkout", None, None, "refund", "refund", None):
        with traced.tracer.start_as_current_span(name) if name else nullcontext():
            job.enqueue()
    box.close()
    spans = [f"{id_of(span):016x}" for span in traced.exporter.get_finished_spans()]
    texts = [text for (text,) in world.sql("select cast(headers as text) from todoku_message order by seq")]
    found = [text and json.loads(text)["traceparent"].split("-")[2] for text in texts]
    assert found == [spans[0], None, None, spans[1], spans[2], None]


def test_a_caller_who_names_a_trace_keeps_it(traced: Traced) -> None:
    given = {"TraceParent": REMOTE.format("01")}
    with traced.tracer.start_as_current_span("checkout"):
        assert inject(given) == given


def test_baggage_reaches_the_handler(traced: Traced) -> None:
    token = traced.telemetry.begin(claimed(headers='{"baggage": "shop=7"}'), send=False)
    assert baggage.get_baggage("shop") == "7"
    traced.telemetry.leave(token)
    assert baggage.get_baggage("shop") is None


def test_the_receiver_is_told_of_this_very_send(traced: Traced) -> None:
    given = {"Traceparent": REMOTE.format("01"), "sentry-trace": "s", "other": "o"}
    claim = claimed(headers=json.dumps(given))
    token = traced.telemetry.begin(claim, send=True)
    sent = traced.telemetry.with_trace(token, given)
    traced.telemetry.end(token, ended(claim))
    assert sent.keys() == {"traceparent", "sentry-trace", "other"}
    assert sent["traceparent"].split("-")[1:3] == [
        REMOTE.split("-")[1],
        f"{id_of(traced.spans()['broker.send']):016x}",
    ]


# ----------------------------------------------------------------------------------- around await


async def test_attempts_that_run_at_the_same_time_keep_their_own_traces(traced: Traced) -> None:
    """Slots are tasks; spans end elsewhere, when they are settled."""
    settled: list[tuple[Any, Claimed]] = []
    both = asyncio.Barrier(2)

    async def slot(numbers: range) -> None:
        for number in numbers:
            claim = claimed(id=number, topic=f"t{number}")
            token = traced.telemetry.begin(claim, send=False)
            await both.wait()
            with traced.tracer.start_as_current_span(f"own {number}"):
                await both.wait()
            traced.telemetry.leave(token)
            assert trace.get_current_span() is trace.INVALID_SPAN
            settled.append((token, claim))

    await asyncio.gather(slot(range(3)), slot(range(3, 6)))
    elsewhere = threading.Thread(target=lambda: [traced.telemetry.end(token, ended(claim)) for token, claim in settled])
    elsewhere.start()
    elsewhere.join()
    spans = traced.exporter.get_finished_spans()
    process = {(span.attributes or {})["outbox_id"]: span for span in spans if span.name == "outbox.process"}
    own = {int(span.name.split()[1]): span for span in spans if span.name.startswith("own")}
    assert process.keys() == own.keys() == set(range(6))
    assert all(parent_of(own[number]) == id_of(process[number]) for number in own)
    assert all(span.parent is None for span in process.values())


def test_a_task_that_was_not_told_to_leave_is_not_led_astray(traced: Traced) -> None:
    """Attempts of a batch begin together and end in any order."""
    claims = [claimed(id=number) for number in range(3)]
    tokens = [traced.telemetry.begin(claim, send=True) for claim in claims]
    for token, claim in zip(tokens, claims, strict=True):
        traced.telemetry.end(token, ended(claim))
    assert context.get_current() == {}
    spans = traced.exporter.get_finished_spans()
    assert [span.parent for span in spans if span.name == "outbox.process"] == [None] * 3
