"""One trace in Sentry from whoever publishes to the handler (S4-18, S4-42): the real SDK, a Sentry that notes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sentry_sdk

import todoku
from tests.daemon.running import until
from tests.support.recording import SentryRecorder
from todoku.engine.observability.sentry import with_sentry
from todoku.engine.observability.tracing import inject, trace_headers

SECRET = "4000-0000-0000-0002"


@pytest.fixture
def box(url: str) -> Iterator[todoku.App]:
    box = todoku.App(url)
    box.migrate()
    yield box
    box.close()


def arrived(sentry: SentryRecorder, kind: str, number: int = 1) -> list[dict[str, Any]]:
    sentry_sdk.flush(timeout=60)
    return until(lambda: (found := sentry.items(kind))[number - 1 :] and found, f"{number} of {kind} in Sentry")


def declare(box: todoku.App) -> None:
    """A handler of each kind; all of them fail."""

    @box.on("payment.loop", name="loop", max_attempts=1)
    async def loop(ctx: todoku.Context, event: dict[str, str]) -> None:
        await asyncio.sleep(0)
        raise RuntimeError("the loop")

    @box.on("payment.thread", name="thread", max_attempts=1)
    def thread(ctx: todoku.Context, event: dict[str, str]) -> None:
        raise RuntimeError("the thread")

    @box.on("payment.transactional", name="transactional", max_attempts=1, transactional=True)
    def transactional(ctx: todoku.Context, event: dict[str, str]) -> None:
        raise RuntimeError("the transactional")


@pytest.mark.parametrize("kind", ["loop", "thread", "transactional"])
def test_a_handler_runs_in_a_transaction_of_the_publishers_trace_and_what_it_raises_is_captured(
    box: todoku.App, sentry: SentryRecorder, kind: str
) -> None:
    declare(box)
    with sentry_sdk.start_transaction(name="POST /ingest/stripe", op="http.server") as publishing:
        headers = {"X-Event-Id": "evt_1", "X-Correlation-Id": "request-7"}
        message = box.publish(f"payment.{kind}", {"card": SECRET}, tx=None, headers=headers)
    box.drain()
    transactions = {one["transaction"]: one for one in arrived(sentry, "transaction", 2)}
    trace = transactions[f"payment.{kind}"]["contexts"]["trace"]
    assert trace["trace_id"] == publishing.trace_id
    assert trace["parent_span_id"] == publishing.span_id
    assert (trace["op"], trace["status"]) == ("queue.process", "internal_error")
    (event,) = arrived(sentry, "event")
    assert event["exception"]["values"][-1]["value"] == f"the {kind}"
    assert event["contexts"]["trace"]["trace_id"] == publishing.trace_id
    tags = event["tags"]
    assert (tags["topic"], tags["destination"], tags["attempt"]) == (f"payment.{kind}", kind, "1")
    assert (tags["event_id"], tags["correlation_id"]) == ("evt_1", "request-7")
    assert tags["message_id"] == str(message.id)
    assert all(SECRET.encode() not in posted.body for posted in sentry.posted)
    assert SECRET not in str(sentry.items("event")) + str(sentry.items("transaction"))


def test_an_outcome_that_is_raised_is_no_error_of_the_program(box: todoku.App, sentry: SentryRecorder) -> None:
    """It is in the log, in the dead letters and in the alerts; a transaction says how it ended."""

    @box.on("payment.made", name="record")
    def record(ctx: todoku.Context, event: dict[str, str]) -> None:
        raise todoku.Abort("MISSING_PARTICIPANT")

    box.publish("payment.made", {}, tx=None)
    box.drain()
    (transaction,) = arrived(sentry, "transaction")
    assert transaction["contexts"]["trace"]["status"] == "aborted"
    assert sentry.items("event") == []


def test_attempts_side_by_side_keep_their_tags_apart(box: todoku.App, sentry: SentryRecorder) -> None:
    gate = asyncio.Event()
    waiting = 0

    @box.on("payment.made", name="record", max_attempts=1)
    async def record(ctx: todoku.Context, event: dict[str, str]) -> None:
        nonlocal waiting
        waiting += 1
        if waiting == 2:
            gate.set()
        await gate.wait()
        raise RuntimeError(event["id"])

    for id in ("evt_1", "evt_2"):
        box.publish("payment.made", {"id": id}, tx=None, headers={"x-event-id": id})
    box.drain()
    events = arrived(sentry, "event", 2)
    assert {event["tags"]["event_id"]: event["exception"]["values"][-1]["value"] for event in events} == {
        "evt_1": "evt_1",
        "evt_2": "evt_2",
    }
    assert len({event["contexts"]["trace"]["trace_id"] for event in events}) == 1  # their publisher's


LAZY = """
from sentry_sdk.transport import HttpTransport

class Lazy(HttpTransport):
    '''Sends nothing before it is flushed, as on a machine that is too busy to do it earlier.'''
    waiting = []

    def capture_envelope(self, envelope):
        self.waiting.append(envelope)

    def flush(self, timeout, callback=None):
        while self.waiting:
            super().capture_envelope(self.waiting.pop())
        super().flush(timeout, callback)
"""


def test_a_handler_in_a_process_of_its_own_is_watched_there(
    tmp_path: Path, sentry: SentryRecorder, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MEND-8: the process ends with the worker, and what it captured has been sent by then."""
    (tmp_path / "apart_program.py").write_text(
        f"import sentry_sdk, todoku\n{LAZY}\n"
        f"sentry_sdk.init({sentry.dsn!r}, traces_sample_rate=1.0, default_integrations=False, "
        "transport=Lazy, shutdown_timeout=9)\n"
        f"box = todoku.App({sqlite_url!r})\n"
        "@box.job(run='process', max_attempts=1)\n"
        "def apart(card: str) -> None:\n"
        "    try:\n"
        "        raise RuntimeError('apart')\n"
        "    finally:\n"
        "        pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import apart_program  # type: ignore[import-not-found]

    try:
        apart_program.box.migrate()
        with sentry_sdk.start_transaction(name="publishing") as publishing:
            apart_program.apart.enqueue(SECRET)
        apart_program.box.drain()
    finally:
        apart_program.box.close()
    events = until(lambda: sentry.items("event"), "the child's own Sentry to send")
    assert events[0]["contexts"]["trace"]["trace_id"] == publishing.trace_id
    assert SECRET not in str(events)


# -------------------------------------------------------------------------------------------------- headers


def test_without_sentry_nothing_is_added() -> None:
    assert with_sentry(None) is None
    assert inject({"a": "b"}) == {"a": "b"}


def test_a_trace_that_the_caller_gave_is_kept(sentry: SentryRecorder) -> None:
    given = {"Sentry-Trace": "a" * 32 + "-" + "b" * 16 + "-1", "baggage": "sentry-release=7"}
    assert inject(given) == given


def test_the_baggage_of_others_stays_beside_sentrys(sentry: SentryRecorder) -> None:
    with sentry_sdk.start_transaction(name="publishing"):
        found = dict(inject({"Baggage": "tenant=7"}) or {})
    assert found["baggage"].startswith("tenant=7,sentry-")
    assert found.keys() == {"sentry-trace", "baggage"}


def test_the_trace_of_a_request_goes_on_in_the_headers_of_its_message() -> None:
    request = {
        "Traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01",
        "Tracestate": "x=1",
        "Baggage": "tenant=7",
        "Sentry-Trace": "a" * 32 + "-" + "b" * 16 + "-1",
        "Authorization": "Bearer secret",
        "Cookie": "no",
    }
    assert trace_headers(request) == {
        name.lower(): request[name] for name in ("Traceparent", "Tracestate", "Baggage", "Sentry-Trace")
    }
    assert trace_headers({"baggage": "x" * 9000, "traceparent": "a\r\nb", "tracestate": ""}) == {}
