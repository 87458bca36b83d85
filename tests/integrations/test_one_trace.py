"""One trace from the webhook to the worker, in OpenTelemetry and in Sentry (S4-14, S4-18, S4-42): every step.

request to ingest → headers of the message → the handler; and request to `/v2` → headers of the delivered request.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import sentry_sdk
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import todoku
from tests.daemon.running import Daemon, until
from tests.support.recording import SentryRecorder, recorder
from todoku.core.http_request import TOPIC
from todoku.engine.observability.tracing import Tracing

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CARRIED = {
    "traceparent": f"00-{TRACE}-{SPAN}-01",
    "tracestate": "vendor=1",
    "sentry-trace": f"{TRACE}-{SPAN}-1",
    "baggage": f"tenant=7,sentry-trace_id={TRACE},sentry-sampled=true,sentry-sample_rate=1",
}
SECRET = "whsec_of_the_tests"
TOKEN = "a-token-of-the-tests"


@pytest.fixture
def box(url: str) -> Iterator[todoku.App]:
    box = todoku.App(url)
    box.migrate()
    box.ingest("shop", todoku.hmac(secrets=[SECRET], header="x-signature", id="id"), topic="shop.event")
    yield box
    box.close()


def ingested(box: todoku.App, **headers: str) -> httpx.Response:
    """A signed event, posted to the App's own ingest."""
    body = b'{"id": "evt_1", "card": "visa 4000"}'
    signature = hmac.digest(SECRET.encode(), body, "sha256").hex()

    async def post() -> httpx.Response:
        transport = httpx.ASGITransport(box.ingest_app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            return await client.post(
                "/shop", content=body, headers={"content-type": "application/json", "x-signature": signature, **headers}
            )

    return asyncio.run(post())


def test_the_trace_of_the_webhook_is_the_handlers_in_sentry(box: todoku.App, sentry: SentryRecorder) -> None:
    seen: dict[str, str] = {}

    @box.on("shop.event", name="record", max_attempts=1)
    def record(ctx: todoku.Context, event: dict[str, str]) -> None:
        seen.update(ctx.headers)
        raise RuntimeError("it fails")

    assert ingested(box, **CARRIED, **{"x-request-id": "request-7"}).status_code == 204
    box.drain()
    assert CARRIED.items() <= seen.items()
    sentry_sdk.flush(timeout=60)
    (event,) = until(lambda: sentry.items("event"), "the error in Sentry")
    (transaction,) = until(lambda: sentry.items("transaction"), "the transaction in Sentry")
    assert event["contexts"]["trace"]["trace_id"] == transaction["contexts"]["trace"]["trace_id"] == TRACE
    assert transaction["contexts"]["trace"]["parent_span_id"] == SPAN
    assert (event["tags"]["event_id"], event["tags"]["correlation_id"]) == ("evt_1", "request-7")
    assert "visa 4000" not in str(event) + str(transaction)


def test_the_trace_of_the_webhook_is_the_handlers_in_opentelemetry(box: todoku.App) -> None:
    @box.on("shop.event", name="record")
    def record(ctx: todoku.Context, event: dict[str, str]) -> None:
        found.append(otel.get_current_span().get_span_context().trace_id)

    found: list[int] = []
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    box.telemetry._tracing, box.telemetry._is_given = Tracing(provider), True
    assert ingested(box, **CARRIED).status_code == 204
    box.drain()
    (process,) = [span for span in exporter.get_finished_spans() if span.name == "outbox.process"]
    assert process.context is not None
    assert process.parent is not None
    assert f"{process.context.trace_id:032x}" == TRACE
    assert f"{process.parent.span_id:016x}" == SPAN
    assert [f"{id:032x}" for id in found] == [TRACE]


def test_the_trace_of_a_publish_over_http_goes_on_in_the_request_that_is_delivered(tmp_path: Path) -> None:
    """The same headers, and the caller's own names for it, whatever worker delivers it."""
    with recorder() as receiver:
        daemon = Daemon(
            ("up", "--db", f"sqlite:///{tmp_path}/queue.db"),
            tmp_path,
            {"TODOKU_TOKEN": TOKEN, "TODOKU_HTTP_LOOPBACK": "1", "TODOKU_PROCESSES": "1"},
        )
        try:
            daemon.until_ready()
            named = {"Upstash-Forward-X-Correlation-Id": "request-7", "Upstash-Forward-X-Event-Id": "evt_1"}
            answer = httpx.post(
                f"{daemon.url}/v2/publish/{receiver.url}/hook",
                content=b"{}",
                headers={"Authorization": f"Bearer {TOKEN}", **CARRIED, **named},
                trust_env=False,
                timeout=60,
            )
            assert answer.status_code == 200, answer.text
            (posted,) = until(lambda: receiver.posted, "the delivery")
            lines = until(lambda: [line for line in daemon.events("settled") if line["topic"] == TOPIC], "its line")
        finally:
            daemon.close()
    arrived: dict[str, Any] = posted.headers
    assert CARRIED.items() <= arrived.items()
    assert (arrived["x-correlation-id"], arrived["x-event-id"]) == ("request-7", "evt_1")
    assert (lines[0]["correlation_id"], lines[0]["trace_id"]) == ("request-7", TRACE)
