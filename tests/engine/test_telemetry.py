"""What is counted (DESIGN §8): the names and labels, by the batch, over processes, and after one of them died."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.core.making import claimed
from tests.support.world import World, aborted, failed, snoozed
from todoku.core.decision import CONFLICT, SUCCEEDED, Settlement
from todoku.core.errors import DatabaseUnavailable, IdempotencyConflict
from todoku.core.message import Alike, Draft, Idempotency, Leg, Message
from todoku.engine.observability import metrics as counting
from todoku.engine.observability.exposition import (
    FLOW_PARKED_RUNS,
    GAUGES,
    CachedGauges,
    Collector,
    Gauges,
    read_gauges,
    render,
)
from todoku.engine.observability.log_line import SettledLine
from todoku.engine.observability.metrics import COUNTERS, HISTOGRAMS, INGESTED, MOST_LABELS, Children, Metrics, merge
from todoku.engine.observability.telemetry import EndedAttempt, Telemetry
from todoku.store.leases import Reclaimed

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(text: bytes) -> Samples:
    """Every number of an exposition, by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def counted(telemetry: Telemetry) -> dict[str, float]:
    """Counters that are not 0, as `name` or `name{value}`."""
    snapshot = merge([telemetry.dump()])
    return {
        f"{name}{{{label}}}" if label else name: number
        for name, values in snapshot.counters.items()
        for label, number in values.items()
        if number
    }


def ended(settlement: Settlement = SUCCEEDED, *, took: float = 0.002, **changes: object) -> EndedAttempt:
    return EndedAttempt(claimed(**{"next_run_at": time.time() - 2, **changes}), settlement, 1.0, 1.0 + took)


# -------------------------------------------------------------------------------------------- the numbers


def test_the_metrics_are_those_of_the_design() -> None:
    """DESIGN §8, without those of parts not built yet: orders, projections; and schedules, old secrets, workflows."""
    named = {metric.name: metric.label for metric in (*COUNTERS, *HISTOGRAMS)} | dict.fromkeys(GAUGES)
    assert named == {
        "outbox_enqueued_total": None,
        "outbox_claimed_total": None,
        "outbox_processed_total": "outcome",
        "outbox_retry_total": "attempt",
        "outbox_retry_scheduled_total": None,
        "outbox_terminal_failed_total": "reason",
        "outbox_lock_lease_expired_total": None,
        "outbox_latency_ms": "phase",
        "outbox_lag_events": None,
        "outbox_oldest_age_seconds": None,
        "outbox_inflight_events": None,
        "outbox_stuck_processing_events": None,
        "outbox_dead_letters": None,
        "outbox_end_to_end_seconds": None,
        "idempo_ledger_writes_total": "status",
        "idempotency_conflicts_total": None,
        "outbox_publish_total": "result",
        "destination_breaker_open": None,
        "queue_fallback_total": "mode",
        "schedule_fired_total": None,
        "schedule_missed_total": None,
        "ingest_requests_total": "source,status",
        "ingest_seconds": None,
        "ingest_old_secret_total": "source",
        "api_auth_failures_total": "status",
        "flow_steps_total": "kind,outcome",
        "flow_step_seconds": None,
        "flow_signals_total": "state",
        "flow_parked_total": "waits_for",
        "flow_woken_total": None,
        "flow_undos_total": "state",
    }


def test_the_page_has_every_metric_and_every_field_of_the_line() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "observability.md").read_text("utf-8")
    for metric in (*COUNTERS, *HISTOGRAMS):
        assert f"`{metric.name}{{{metric.label}}}`" in page if metric.label else f"`{metric.name}`" in page
        values = {value for known in metric.known for value in known.split(",")}
        assert all(f"`{value}`" in page for value in values if value.islower()), metric
    assert all(f"| `{name}` | gauge |" in page for name in GAUGES)
    assert f"| `{FLOW_PARKED_RUNS[0]}{{waits_for}}` | gauge |" in page
    assert [f"| `{field}` |" in page for field in SettledLine.__struct_fields__] == [True] * 16


def test_a_metric_may_have_two_labels() -> None:
    """Their values are kept as one; beyond so many all further ones are OTHER, in both."""
    telemetry = Telemetry()
    for n in range(MOST_LABELS + 2):
        telemetry.metrics.add(INGESTED, 1, f"s{n},204")
    shown = telemetry.render().decode()
    assert 'ingest_requests_total{source="s0",status="204"} 1.0' in shown
    assert 'ingest_requests_total{source="OTHER",status="OTHER"} 2.0' in shown


def test_a_batch_is_counted_by_what_its_attempts_came_to() -> None:
    telemetry = Telemetry()
    telemetry.claimed([claimed()] * 8, seconds=0.004)
    telemetry.claimed([], seconds=0.004)
    batch = [ended()] * 3 + [ended(attempt=2), ended(failed(), attempt=2), ended(failed()), ended(snoozed())]
    telemetry.settled([*batch, ended(aborted("REFUSED"), attempt=12)], seconds=0.008)
    assert counted(telemetry) == {
        "outbox_claimed_total": 8,
        "outbox_processed_total{done}": 4,
        "outbox_processed_total{retry}": 2,
        "outbox_processed_total{snooze}": 1,
        "outbox_processed_total{abort}": 1,
        "outbox_retry_total{2}": 2,
        "outbox_retry_total{10+}": 1,
        "outbox_retry_scheduled_total": 2,
        "outbox_terminal_failed_total{REFUSED}": 1,
    }


def test_latencies_are_of_each_claim_attempt_and_commit() -> None:
    telemetry = Telemetry()
    telemetry.claimed([claimed()], seconds=0.004)
    telemetry.settled([ended(took=0.001), ended(took=0.03), ended(failed(), took=90)], seconds=0.2)
    shown = samples(telemetry.render())

    def latency(what: str, phase: str, **labels: str) -> float:
        return shown[f"outbox_latency_ms_{what}", tuple(sorted({"phase": phase, **labels}.items()))]

    assert latency("sum", "claim") == pytest.approx(4)
    assert latency("sum", "commit") == pytest.approx(200)
    assert latency("sum", "send") == pytest.approx(90_031)
    at_most = {"0.5": 0, "2.5": 1, "25.0": 1, "50.0": 2, "60000.0": 2, "+Inf": 3}
    assert {le: latency("bucket", "send", le=le) for le in at_most} == at_most
    # Of the two that succeeded; both were due two seconds ago.
    assert shown["outbox_end_to_end_seconds_count", ()] == 2
    assert shown["outbox_end_to_end_seconds_bucket", (("le", "1.0"),)] == 0


def test_end_to_end_counts_from_when_it_was_due_and_of_a_retried_one_from_its_publication() -> None:
    """A job that was scheduled for now is not a day late; one that failed for an hour is an hour late."""
    now = time.time()
    telemetry = Telemetry()
    telemetry.settled([ended(created_at=now - 86_400, next_run_at=now)], seconds=0.001)
    assert merge([telemetry.dump()]).histograms["outbox_end_to_end_seconds"][""].total < 60
    telemetry.settled([ended(created_at=now - 3_600, next_run_at=now, attempt=3)], seconds=0.001)
    assert merge([telemetry.dump()]).histograms["outbox_end_to_end_seconds"][""].total > 3_599


def test_ledger_writes_and_conflicts_are_those_of_deliveries_with_a_key() -> None:
    telemetry = Telemetry()
    keyed = [ended(one, key_hash="h") for one in (SUCCEEDED, SUCCEEDED, aborted(), failed(), CONFLICT)]
    telemetry.settled([*keyed, ended(), ended(aborted())], seconds=0.001)
    ledger = {name: number for name, number in counted(telemetry).items() if name.startswith("idempo")}
    assert ledger == {
        "idempo_ledger_writes_total{succeeded}": 2,
        "idempo_ledger_writes_total{failed}": 1,
        "idempotency_conflicts_total": 1,
    }


def stored(draft: Draft, *, duplicate: bool = False) -> Message:
    return Message(id=draft.id, topic="t", key=None, duplicate=duplicate, created_at=datetime.now(UTC))


def test_publishing_counts_messages_and_the_deliveries_they_made() -> None:
    def draft(*legs: Leg, key: str | None = None) -> Draft:
        entry = Idempotency("publish:t", key, "h", "d") if key else None
        return Draft(id=uuid4(), topic="t", type="t", legs=legs, idempotency=entry)

    two, keyed, lost = draft(Leg(destination="a"), Leg(destination="b")), draft(Leg(destination="a"), key="k"), None
    lost = draft(Leg(destination="none", dead="NO_ROUTE"))
    telemetry = Telemetry()
    telemetry.published(
        [two, keyed, keyed, lost], [stored(two), stored(keyed), stored(keyed, duplicate=True), stored(lost)]
    )
    telemetry.publish_failed(IdempotencyConflict("k"))
    telemetry.publish_failed(DatabaseUnavailable("gone"), 5)
    telemetry.fell_back()
    assert counted(telemetry) == {
        "outbox_publish_total{ok}": 3,
        "outbox_publish_total{duplicate}": 1,
        "outbox_publish_total{conflict}": 1,
        "outbox_publish_total{error}": 5,
        "outbox_enqueued_total": 3,
        "outbox_terminal_failed_total{NO_ROUTE}": 1,
        "idempo_ledger_writes_total{accepted}": 1,
        "idempotency_conflicts_total": 1,
        "queue_fallback_total{best_effort}": 1,
    }


def test_messages_that_are_alike_are_counted_as_each_of_them_would_be() -> None:
    legs = (Leg(destination="a"), Leg(destination="none", dead="NO_ROUTE"))
    alike = Alike(Draft(id=uuid4(), topic="t", type="t", legs=legs), [uuid4() for _ in range(3)], ["1"] * 3)
    drafts = [msgspec.structs.replace(alike.draft, id=id) for id in alike.ids]
    one_by_one, together = Telemetry(), Telemetry()
    one_by_one.published(drafts, [stored(draft) for draft in drafts])
    together.published_alike(alike)
    assert counted(together) == counted(one_by_one)
    assert counted(together)["outbox_enqueued_total"] == 3


def test_owners_that_died_and_rows_that_ran_out_of_time_are_counted() -> None:
    telemetry = Telemetry()
    telemetry.reclaimed(Reclaimed(workers=1, freed=3, aborted=2))
    telemetry.reclaimed(Reclaimed(workers=0, freed=0, aborted=0))
    telemetry.lost([claimed(), claimed()])
    telemetry.expired(4, 1)
    assert counted(telemetry) == {
        "outbox_lock_lease_expired_total": 5,
        "outbox_terminal_failed_total{WORKER_LOST}": 2,
        "outbox_terminal_failed_total{EXPIRED}": 4,
        "outbox_terminal_failed_total{UNKNOWN_DESTINATION}": 1,
        "outbox_processed_total{lost}": 2,
    }


def test_a_label_has_few_values_whatever_handlers_give_as_reasons() -> None:
    telemetry = Telemetry()
    telemetry.settled([ended(aborted(f"REASON_{number}")) for number in range(1_000)], seconds=0.1)
    reasons = merge([telemetry.dump()]).counters["outbox_terminal_failed_total"]
    assert len(reasons) == counting.MOST_LABELS + 1
    assert sum(reasons.values()) == 1_000
    assert reasons[counting.OTHER] > 900


def test_counting_loses_nothing_between_threads() -> None:
    telemetry = Telemetry()

    def work() -> None:
        for _ in range(500):
            telemetry.settled([ended(), ended(aborted("REFUSED"))], seconds=0.001)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted(telemetry)["outbox_processed_total{done}"] == 2_000
    assert counted(telemetry)["outbox_terminal_failed_total{REFUSED}"] == 2_000


def test_watching_never_stops_what_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    telemetry = Telemetry()
    monkeypatch.setattr(Metrics, "add", None)  # somebody's mistake: calling it raises TypeError
    telemetry.claimed([claimed()], seconds=0.1)
    telemetry.settled([ended()], seconds=0.1)


# ----------------------------------------------------------------------------------------- the exposition


def test_every_metric_is_shown_before_it_happens() -> None:
    """A series that appears at 1 has not risen, as far as Prometheus can see."""
    shown = samples(render([Metrics().dump()]))
    assert shown["outbox_claimed_total", ()] == 0
    for outcome in ("done", "retry", "abort", "snooze", "lost"):
        assert shown["outbox_processed_total", (("outcome", outcome),)] == 0
    for result in ("ok", "duplicate", "conflict", "error"):
        assert shown["outbox_publish_total", (("result", result),)] == 0
    assert shown["outbox_terminal_failed_total", (("reason", "WORKER_LOST"),)] == 0
    assert not any(name in GAUGES for name, _ in shown)  # unknown is not 0


def test_the_gauges_are_shown_where_they_are_known() -> None:
    seen = Gauges(
        lag_events=1, oldest_age_seconds=2.5, inflight_events=3, stuck_processing_events=4, dead_letters=5,
        breakers_open=6, parked={"signal": 7},
    )  # fmt: skip
    shown = samples(render([], seen))
    assert [shown[name, ()] for name in GAUGES] == [1, 2.5, 3, 4, 5, 6]
    assert shown[FLOW_PARKED_RUNS[0], (("waits_for", "signal"),)] == 7


def test_the_metrics_of_children_are_added_up() -> None:
    parent, children = Telemetry(), [Telemetry(), Telemetry()]
    for telemetry in (parent, *children):
        telemetry.settled([ended(), ended(aborted("REFUSED"))], seconds=0.01)
    shown = samples(parent.render([child.dump() for child in children]))
    assert shown["outbox_processed_total", (("outcome", "done"),)] == 3
    assert shown["outbox_terminal_failed_total", (("reason", "REFUSED"),)] == 3
    assert shown["outbox_latency_ms_count", (("phase", "send"),)] == 6
    assert shown["outbox_end_to_end_seconds_bucket", (("le", "+Inf"),)] == 3


def test_a_dead_childs_numbers_stay_so_that_no_counter_goes_back() -> None:
    children, first, second = Children(), Telemetry(), Telemetry()
    first.claimed([claimed()] * 5, seconds=0.01)
    children.record(1, first.dump())
    first.claimed([claimed()] * 2, seconds=0.01)
    children.record(1, first.dump())  # what it says includes what it said before
    assert samples(render(children.dumps()))["outbox_claimed_total", ()] == 7
    children.retire(1)
    children.retire(1)
    assert samples(render(children.dumps()))["outbox_claimed_total", ()] == 7
    second.claimed([claimed()] * 3, seconds=0.01)
    children.record(2, second.dump())
    assert samples(render(children.dumps()))["outbox_claimed_total", ()] == 10
    children.retire(2)
    shown = samples(render(children.dumps()))
    assert shown["outbox_claimed_total", ()] == 10
    assert shown["outbox_latency_ms_count", (("phase", "claim"),)] == 3
    children.retire(3)  # it never said anything


def test_a_forked_child_begins_at_0_because_its_parent_has_counted_the_rest() -> None:
    program = """
import os, sys
from todoku.engine.observability.telemetry import Telemetry
telemetry = Telemetry()
telemetry.claimed([1] * 5, seconds=0.01)
if os.fork() == 0:
    telemetry.claimed([1], seconds=0.01)
    sys.stdout.buffer.write(telemetry.dump())
    sys.stdout.flush()
    os._exit(0)
os.wait()
sys.stderr.write(telemetry.render().decode())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=120, check=True)
    assert samples(done.stderr)["outbox_claimed_total", ()] == 5
    assert samples(render([done.stdout]))["outbox_claimed_total", ()] == 1


def test_an_application_can_show_them_beside_its_own() -> None:
    from prometheus_client import CollectorRegistry, Counter, generate_latest

    telemetry, registry = Telemetry(), CollectorRegistry()
    telemetry.claimed([claimed()], seconds=0.01)
    Counter("shop_orders", "Orders.", registry=registry).inc()
    registry.register(Collector(lambda: merge([telemetry.dump()])))
    shown = samples(generate_latest(registry))
    assert (shown["shop_orders_total", ()], shown["outbox_claimed_total", ()]) == (1, 1)


def test_without_prometheus_client_everything_else_works() -> None:
    """A base install has neither it nor OpenTelemetry."""
    program = """
import sys
sys.modules["prometheus_client"] = sys.modules["opentelemetry"] = None
from todoku.engine.observability.telemetry import Telemetry
from todoku.engine.observability.tracing import inject
telemetry = Telemetry()
telemetry.claimed([1, 2], seconds=0.1)
assert telemetry.begin(None, send=True) is None
assert inject({"a": "b"}) == {"a": "b"}
assert telemetry.render().startswith(b"# prometheus-client is not installed")
assert not [name for name in sys.modules if name.startswith(("opentelemetry.", "prometheus_client."))]
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_same_numbers_are_read_by_opentelemetry() -> None:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from todoku.engine.observability.exposition import observe_with

    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    telemetry = Telemetry()
    observe_with(provider.get_meter("todoku"), lambda: merge([telemetry.dump()]))
    telemetry.settled([ended(took=0.03), ended(aborted("REFUSED"), took=0.03)], seconds=0.01)
    data = reader.get_metrics_data()
    assert data is not None
    read = {
        (metric.name, tuple(sorted((point.attributes or {}).items()))): point.value  # type: ignore[union-attr]
        for scope in data.resource_metrics[0].scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }
    assert read["outbox_processed_total", (("outcome", "done"),)] == 1
    assert read["outbox_terminal_failed_total", (("reason", "REFUSED"),)] == 1
    assert read["outbox_latency_ms_bucket", (("le", "25.0"), ("phase", "send"))] == 0
    assert read["outbox_latency_ms_bucket", (("le", "+Inf"), ("phase", "send"))] == 2
    assert read["outbox_latency_ms_sum", (("phase", "send"),)] == pytest.approx(60)
    provider.shutdown()


# --------------------------------------------------------------------------------------------- the gauges


def test_an_empty_database_has_no_lag(world: World) -> None:
    assert read_gauges(world.store, stuck_after=60) == Gauges(
        lag_events=0, oldest_age_seconds=0, inflight_events=0, stuck_processing_events=0, dead_letters=0,
        breakers_open=0, parked={"sleep": 0, "signal": 0, "children": 0, "retry": 0},
    )  # fmt: skip


def test_lag_is_what_is_due_and_nobody_has_taken(world: World) -> None:
    """Plain rows, lanes and suspects; not the future, not what has expired."""
    world.publish(3)
    world.publish(2, to=("mail",), ordered=True, key="k", priority=3)
    world.publish(4, to=("later",), delay=600)
    world.publish(1, to=("gone",), expires=5)
    dying = world.worker(lease=5)
    taken = world.claim(dying, 1, ["warehouse"])
    world.advance(10)
    world.store.leases.reclaim()
    seen = read_gauges(world.store, stuck_after=60)
    assert taken
    assert seen.lag_events == 5  # one of them with an owner that died
    assert 10 <= seen.oldest_age_seconds < 300
    assert seen.inflight_events == 0


def test_the_oldest_age_is_since_it_was_due(world: World) -> None:
    world.publish(1, delay=100)
    world.advance(130)
    assert 30 <= read_gauges(world.store, stuck_after=60).oldest_age_seconds < 99


def test_stuck_is_what_is_held_for_too_long_or_by_nobody_alive(world: World) -> None:
    world.publish(6)
    slow, dead = world.worker(lease=10_000), world.worker(lease=50)
    assert len(world.claim(slow, 2)) == 2
    world.advance(40)
    assert len(world.claim(dead, 3)) == 3
    assert read_gauges(world.store, stuck_after=60).stuck_processing_events == 0
    world.advance(30)  # 70 s after the first claim, 30 s after the second
    assert read_gauges(world.store, stuck_after=60).stuck_processing_events == 2 + 3
    assert read_gauges(world.store, stuck_after=600).stuck_processing_events == 3
    assert read_gauges(world.store, stuck_after=600).inflight_events == 5
    assert read_gauges(world.store, stuck_after=600).lag_events == 1


def test_dead_letters_and_open_breakers_are_counted(world: World) -> None:
    world.publish(3)
    world.settle(world.claim(world.worker(), 2), aborted())
    world.store.limits.set_breaker("warehouse", open_for=60)
    world.store.limits.set_breaker("mail", open_for=5)
    world.store.limits.set_breaker("closed", open_for=0)
    seen = read_gauges(world.store, stuck_after=60)
    assert (seen.dead_letters, seen.breakers_open) == (2, 2)
    world.advance(10)
    assert read_gauges(world.store, stuck_after=60).breakers_open == 1


def test_a_long_backlog_is_estimated(world: World) -> None:
    """Beyond 10,000 of a place nobody counts row by row; the future is still not lag."""
    world.publish(15_000)
    world.publish(15_000, to=("mail",), delay=600)
    seen = world.store.statistics.lag(stuck_after=60)
    assert seen.exact is False
    assert 11_000 < seen.due < 19_000
    world.settle(world.claim(world.worker(), 500), aborted())
    assert world.store.statistics.lag(stuck_after=60).dead == 500  # few dead letters are counted exactly all the same


def test_however_many_ask_the_database_is_asked_once_in_a_while(world: World) -> None:
    now = [0.0]
    looking = CachedGauges(world.store, stuck_after=60, max_age=5, monotonic=lambda: now[0])
    assert looking.read() == read_gauges(world.store, stuck_after=60)
    world.publish(1)
    now[0] = 4.9
    before = looking.read()
    assert before is not None
    assert before.lag_events == 0
    now[0] = 5.0
    after = looking.read()
    assert after is not None
    assert after.lag_events == 1


def test_a_database_that_does_not_answer_gives_no_numbers(world: World) -> None:
    looking = CachedGauges(world.store, stuck_after=60, max_age=0)
    assert looking.read() is not None
    world.sql("alter table todoku_queue rename to todoku_queue_gone")
    assert looking.read() is None
