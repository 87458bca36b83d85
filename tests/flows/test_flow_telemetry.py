"""Runs are watched: one trace a run with a span a step, counts of what steps come to, a line for each that fails."""

from __future__ import annotations

import io
import json
import logging
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, Tracer
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, TraceIdRatioBased

import todoku
from tests.engine.test_telemetry import counted
from tests.engine.test_tracing import Traced, id_of, parent_of
from tests.flows.conftest import Clock
from todoku.engine.observability.metrics import FLOW_STEP_SECONDS, merge
from todoku.engine.observability.run_trace import trace_ids
from todoku.store import parked_runs
from todoku.testing import crash, lose_lease

CANARY = "canary-4111-1111"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def traced(box: todoku.App) -> Traced:
    traced = Traced()
    box.telemetry = box.outbox.telemetry = traced.telemetry
    return traced


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What the engine logs."""
    logger, stream = logging.getLogger("todoku"), io.StringIO()
    handler = logging.StreamHandler(stream)
    logger.addHandler(handler)
    yield stream
    logger.removeHandler(handler)


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def named(traced: Traced, name: str) -> list[ReadableSpan]:
    return [span for span in traced.exporter.get_finished_spans() if span.name == name]


def traces(traced: Traced) -> set[int]:
    return {span.context.trace_id for span in traced.exporter.get_finished_spans() if span.context}


def flow_counts(box: todoku.App) -> dict[str, float]:
    return {name: number for name, number in counted(box.telemetry).items() if name.startswith("flow_")}


async def charge(order: int, card: str) -> str:
    return f"paid {order}"


def ship(order: int) -> str:
    return f"parcel {order}"


# ------------------------------------------------------------------------------------------------------ traces


def test_all_attempts_of_a_run_are_in_one_trace_and_a_stored_step_has_one_span(
    box: todoku.App, clock: Clock, traced: Traced
) -> None:
    @box.workflow
    async def fulfil(ctx: todoku.Flow, order: int) -> str:
        await ctx.step(charge, order, CANARY)
        await ctx.sleep(hours=1)
        return await ctx.step(ship, order)

    run = fulfil.start(7)
    box.drain()
    clock.forward(3601)
    box.drain()
    assert run.result(timeout=0) == "parcel 7"
    first, second = named(traced, "outbox.process")
    (charged,), (shipped,), (slept,) = (
        named(traced, name) for name in ("flow.step charge", "flow.step ship", "flow.sleep")
    )
    ids = trace_ids(str(run.id))
    assert traces(traced) == {ids[0]}
    assert parent_of(first) == parent_of(second) == parent_of(slept) == ids[1]
    assert (parent_of(charged), parent_of(shipped)) == (id_of(first), id_of(second))
    assert CANARY not in "".join(span.to_json() for span in traced.exporter.get_finished_spans())


def test_a_step_says_which_it_is_and_what_it_came_to(box: todoku.App, traced: Traced) -> None:
    @box.workflow
    async def twice(ctx: todoku.Flow) -> None:
        await ctx.step(ship, 1)
        await ctx.step(ship, 1)
        await ctx.step(ship, 1, key=CANARY)

    twice.start()
    box.drain()
    first, again, keyed = (attributes(span) for span in named(traced, "flow.step ship"))
    assert first.pop("step.key").startswith("ship:")
    assert first == {
        "step": "ship", "step.kind": "step", "step.number": 1, "step.occurrence": 0, "step.attempt": 1,
        "outcome": "done",
    }  # fmt: skip
    assert (again["step.occurrence"], again["step.number"]) == (1, 2)
    assert CANARY not in str(keyed)


def test_the_attempt_says_when_it_parked_for_what_and_the_next_when_it_was_woken(
    box: todoku.App, clock: Clock, traced: Traced
) -> None:
    @box.workflow
    async def patient(ctx: todoku.Flow) -> int:
        await ctx.sleep(60)
        return await ctx.wait("approval", int)

    run = patient.start()
    box.drain()
    clock.forward(61)
    box.drain()
    box.signal(run, "approval", 5, tx=None)
    box.drain()
    attempts = named(traced, "outbox.process")
    events = [[(event.name, dict(event.attributes or {})) for event in span.events] for span in attempts]
    assert [[name for name, _ in each] for each in events] == [["parked"], ["woken", "parked"], ["woken"]]
    slept, waited = events[0][0][1], events[1][1][1]
    assert slept.pop("until")
    assert slept == {"waits_for": "sleep", "step": "sleep", "step.number": 1}
    assert waited == {"waits_for": "signal", "step": "wait", "step.number": 2, "signal": "approval"}
    assert len(named(traced, "flow.sleep")) == len(named(traced, "flow.wait")) == 1
    assert attributes(named(traced, "flow.wait")[0])["outcome"] == "done"


@pytest.mark.parametrize("kind", ["async", "thread", "transaction"])
def test_the_span_of_a_step_is_current_while_its_function_runs(box: todoku.App, traced: Traced, kind: str) -> None:
    async def waits() -> None:
        with traced.tracer.start_as_current_span("inside"):
            pass

    def plain() -> None:
        with traced.tracer.start_as_current_span("inside"):
            pass

    def books(tx: Any) -> None:
        plain()

    @box.workflow
    async def flow(ctx: todoku.Flow) -> None:
        if kind == "transaction":
            await ctx.step(books, transactional=True)
        else:
            await ctx.step(waits if kind == "async" else plain)
        with traced.tracer.start_as_current_span("after"):
            pass

    flow.start()
    box.drain()
    (step,) = [span for span in traced.exporter.get_finished_spans() if span.name.startswith("flow.step ")]
    assert parent_of(named(traced, "inside")[0]) == id_of(step)
    assert parent_of(named(traced, "after")[0]) == parent_of(step) == id_of(named(traced, "outbox.process")[0])


def test_children_messages_and_the_undo_are_in_the_trace_of_whoever_started_the_run(
    box: todoku.App, traced: Traced
) -> None:
    @box.job
    async def pick(sku: str) -> str:
        return sku

    @box.on("order.picked", name="tell")
    async def tell(ctx: todoku.Context) -> None:
        pass

    @box.workflow
    async def fulfil(ctx: todoku.Flow) -> None:
        await ctx.step(ship, 1, undo=unship)
        await ctx.gather(pick.call("tea"), pick.call("rice"))
        await ctx.publish("order.picked", {})
        raise todoku.Abort("REFUSED")

    with traced.tracer.start_as_current_span("checkout") as checkout:
        fulfil.start()
    box.drain()
    assert traces(traced) == {checkout.get_span_context().trace_id}
    assert {attributes(span)["destination"] for span in named(traced, "outbox.process")} == {
        "fulfil", "pick", "tell", "fulfil.undo"
    }  # fmt: skip
    assert attributes(named(traced, "flow.step undo ship")[0])["step.kind"] == "undo"


def unship(parcel: str | None) -> None:
    pass


def test_the_undo_of_a_run_without_a_publishers_trace_is_in_the_runs(box: todoku.App, traced: Traced) -> None:
    @box.workflow
    async def fulfil(ctx: todoku.Flow) -> None:
        await ctx.step(ship, 1, undo=unship)
        raise todoku.Abort("REFUSED")

    run = fulfil.start()
    box.drain()
    assert traces(traced) == {trace_ids(str(run.id))[0]}
    assert len(named(traced, "outbox.process")) == 2


def test_a_restart_begins_a_trace_of_its_own(box: todoku.App, traced: Traced) -> None:
    @box.workflow
    async def forever(ctx: todoku.Flow, left: int) -> None:
        if left:
            await ctx.restart(left - 1)

    with traced.tracer.start_as_current_span("checkout"):
        forever.start(2)
    box.drain()
    assert len(traces(traced)) == 3


def test_a_run_is_sampled_as_a_whole(box: todoku.App, clock: Clock) -> None:
    """The sampler is asked about the trace of the run, which all attempts have; ids of traces are evenly spread."""
    traced = Traced(TraceIdRatioBased(0.5))
    box.telemetry = traced.telemetry

    @box.workflow
    async def naps(ctx: todoku.Flow) -> None:
        await ctx.sleep(60)

    runs = [naps.start() for _ in range(40)]
    box.drain()
    clock.forward(61)
    box.drain()
    attempts = Counter(attributes(span)["message_id"] for span in named(traced, "outbox.process"))
    assert 0 < len(attempts) < len(runs)
    assert set(attempts.values()) == {2}


def test_where_nothing_is_sampled_runs_have_no_spans(box: todoku.App) -> None:
    traced = Traced(ALWAYS_OFF)
    box.telemetry = traced.telemetry

    @box.workflow
    async def flow(ctx: todoku.Flow) -> str:
        return await ctx.step(ship, 1)

    run = flow.start()
    box.drain()
    assert run.result(timeout=0) == "parcel 1"
    assert traced.exporter.get_finished_spans() == ()


def test_a_tracer_that_fails_costs_no_step(box: todoku.App, traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:

    real = Tracer.start_span

    def fail_for_steps(self: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("flow."):
            raise ValueError("an exporter's mistake")
        return real(self, name, *args, **kwargs)

    monkeypatch.setattr(Tracer, "start_span", fail_for_steps)

    @box.workflow
    async def flow(ctx: todoku.Flow) -> str:
        return await ctx.step(ship, 1)

    run = flow.start()
    box.drain()
    assert run.result(timeout=0) == "parcel 1"


KILLED = """
import os, signal, sys
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
import todoku
from tests.flows.test_flow_telemetry import dying
from todoku.engine.observability.telemetry import Telemetry
from todoku.engine.observability.tracing import Tracing

provider = TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=lambda span: span.to_json(None) + "\\n")))
box = todoku.App(sys.argv[1])
box.telemetry = Telemetry(tracing=Tracing(provider))
dying(box, lambda: os.kill(os.getpid(), signal.SIGKILL))
box.drain()
"""


def dying(box: todoku.App, die: Any) -> todoku.Workflow[[], str]:
    """A workflow whose second step may be its worker's last."""

    def deadly() -> str:
        die()
        return "survived"

    @box.workflow(name := "dying")
    async def flow(ctx: todoku.Flow) -> str:
        await ctx.step(ship, 1)
        return await ctx.step(deadly)

    assert flow.name == name
    return flow


def test_a_worker_that_is_killed_leaves_the_run_in_its_trace(box: todoku.App, url: str, traced: Traced) -> None:
    run = dying(box, lambda: None).start()
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, url], capture_output=True, text=True, check=False, cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])},
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    lose_lease(box)
    box.drain()
    assert run.result(timeout=0) == "survived"
    left = [json.loads(line) for line in killed.stdout.splitlines()]
    assert [span["name"] for span in left] == ["flow.step ship"]  # what was under way died with the worker
    assert traces(traced) == {int(left[0]["context"]["trace_id"], 16)}
    assert not named(traced, "flow.step ship")
    (deadly,) = [span for span in traced.exporter.get_finished_spans() if span.name.endswith(".deadly")]
    assert parent_of(deadly) == id_of(named(traced, "outbox.process")[0])


# ------------------------------------------------------------------------------------------- numbers and lines


def test_steps_signals_parks_and_undos_are_counted(box: todoku.App, clock: Clock) -> None:
    @box.job
    async def pick(sku: str) -> str:
        return sku

    @box.workflow
    async def fulfil(ctx: todoku.Flow) -> None:
        await ctx.step(ship, await ctx.step(number), undo=unship)
        await ctx.now()
        await ctx.sleep(60)
        await ctx.wait("approval")
        await ctx.gather(pick.call("tea"))
        try:
            await ctx.wait("late", timeout=5)
        except TimeoutError:
            raise todoku.Abort("REFUSED") from None

    run = fulfil.start()
    box.drain()
    clock.forward(61)
    box.drain()
    box.signal(run, "approval", tx=None)
    box.drain()
    clock.forward(6)
    box.drain()
    assert flow_counts(box) == {
        "flow_steps_total{step,done}": 2,
        "flow_steps_total{undo,done}": 1,
        "flow_steps_total{value,done}": 1,
        "flow_steps_total{sleep,done}": 1,
        "flow_steps_total{wait,done}": 1,
        "flow_steps_total{wait,given_up}": 1,
        "flow_steps_total{children,done}": 1,
        "flow_signals_total{sent}": 1,
        "flow_signals_total{taken}": 1,
        "flow_parked_total{sleep}": 1,
        "flow_parked_total{signal}": 2,
        "flow_parked_total{children}": 1,
        "flow_woken_total": 4,
        "flow_undos_total{begun}": 1,
        "flow_undos_total{done}": 1,
    }
    seconds = merge([box.telemetry.dump()]).histograms[FLOW_STEP_SECONDS.name][""]
    assert seconds.number == 3


def number() -> int:
    return 1


def test_what_fails_is_counted_and_told_without_its_text(box: todoku.App, clock: Clock, lines: io.StringIO) -> None:
    async def refuses(card: str) -> None:
        raise ConnectionError(CANARY)

    @box.workflow(max_attempts=1)
    async def flow(ctx: todoku.Flow) -> None:
        try:
            await ctx.step(refuses, CANARY, max_attempts=2, backoff=todoku.table(30))
        except todoku.StepFailed:
            await ctx.step(refuses, "again")

    run = flow.start()
    box.drain()
    clock.forward(100)
    box.drain()
    assert flow_counts(box) == {
        "flow_steps_total{step,retried}": 1,
        "flow_steps_total{step,given_up}": 1,
        "flow_steps_total{step,failed}": 1,
        "flow_parked_total{retry}": 1,
        "flow_woken_total": 1,
    }
    told = [line for line in lines.getvalue().splitlines() if line.startswith("STEP_")]
    assert [line.split()[0] for line in told] == ["STEP_RETRIED", "STEP_GIVEN_UP", "STEP_FAILED"]
    for line in told:
        assert f"message_id={run.id}" in line
        assert "refuses" in line
        assert "error_type=ConnectionError" in line
    assert CANARY not in "".join(told)


def test_a_step_whose_worker_lost_the_run_is_counted_as_lost(box: todoku.App) -> None:
    seen: list[int] = []

    def slow() -> None:
        seen.append(1)
        if len(seen) == 1:
            lose_lease(box)

    @box.workflow
    async def flow(ctx: todoku.Flow) -> None:
        await ctx.step(slow)

    flow.start()
    box.drain()
    box.drain()
    assert flow_counts(box) == {"flow_steps_total{step,lost}": 1, "flow_steps_total{step,done}": 1}


def test_a_crash_before_the_commit_counts_the_step_when_it_is_stored(box: todoku.App) -> None:
    @box.workflow
    async def flow(ctx: todoku.Flow) -> str:
        return await ctx.step(ship, 1)

    run = flow.start()
    crash(box, at="step.before_commit")
    lose_lease(box)
    box.drain()
    assert run.result(timeout=0) == "parcel 1"
    assert flow_counts(box)["flow_steps_total{step,done}"] == 1


def test_parked_runs_are_counted_by_what_they_wait_for_and_ended_ones_are_not(box: todoku.App, clock: Clock) -> None:
    async def refuses() -> None:
        raise ConnectionError

    @box.job
    async def slow() -> None:
        raise todoku.Snooze(3600)

    @box.workflow
    async def flow(ctx: todoku.Flow, what: str) -> None:
        match what:
            case "sleep":
                await ctx.sleep(60)
                await ctx.sleep(600)
            case "signal":
                await ctx.wait("approval")
            case "children":
                await ctx.gather(slow.call())
            case _:
                await ctx.step(refuses, max_attempts=2, backoff=todoku.table(3600))

    assert box.store.parked_runs.count() == {"sleep": 0, "signal": 0, "children": 0, "retry": 0}
    runs = [flow.start(what) for what in ("sleep", "signal", "children", "retry", "sleep", "signal", "signal")]
    slow.using(delay=3600).enqueue()
    box.drain()
    clock.forward(61)
    box.drain()
    runs[-1].cancel(by="ops", why="a test")
    assert box.store.parked_runs.count() == {"sleep": 2, "signal": 2, "children": 1, "retry": 1}
    clock.forward(601)
    box.drain()
    assert box.store.parked_runs.count()["sleep"] == 0


def test_beyond_a_hundred_of_a_place_what_parked_runs_wait_for_is_estimated_up_to_a_bound(
    box: todoku.App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cost of a scrape does not grow with the runs that wait."""
    monkeypatch.setattr(parked_runs, "COUNTED", 140)

    @box.workflow
    async def waits(ctx: todoku.Flow) -> None:
        await ctx.wait("go")

    box.enqueue_many([waits.call() for _ in range(120)], tx=None)
    box.drain()
    assert box.store.parked_runs.count()["signal"] == 120
    box.enqueue_many([waits.call() for _ in range(30)], tx=None)
    box.drain()
    assert box.store.parked_runs.count()["signal"] == 140
