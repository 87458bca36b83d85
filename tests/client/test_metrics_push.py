"""What a web process counts is seen there, and in the metrics and alerts of a daemon (S4-37, S4-43)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec
import pytest
from starlette.applications import Starlette

import todoku
from tests.client.conftest import Elsewhere
from tests.client.queue_server import TOKEN as QUEUE_TOKEN
from tests.daemon.running import Daemon, until
from tests.engine.test_telemetry import counted
from tests.support.serving import Server
from tests.support.world import World
from todoku.client import QueueUnavailable, connect, push_metrics
from todoku.core.errors import InvalidSetting
from todoku.engine.observability.alerts import CounterWindow
from todoku.engine.observability.count_report import CountReport, CountReports, rise
from todoku.engine.observability.metrics import Metrics, Snapshot, empty, merge
from todoku.engine.observability.telemetry import Telemetry

TOKEN = "a-token-of-this-test"


@contextmanager
def daemon_of(home: Path, url: str, port: int | None = None) -> Iterator[Daemon]:
    (home / "web.py").write_text("import todoku\nbox = todoku.App()\n")
    environ = {"TODOKU_DATABASE": url, "TODOKU_TOKEN": TOKEN} | ({"TODOKU_PORT": str(port)} if port else {})
    daemon = Daemon(("run", "--app", "web:box"), home, environ)
    daemon.url = f"http://127.0.0.1:{port or daemon.port}"
    try:
        daemon.until_ready()
        yield daemon
    finally:
        daemon.close()


def published(daemon: Daemon) -> dict[str, float]:
    _, text = daemon.ask("/metrics", authorization=f"Bearer {TOKEN}")
    rows = [line.rsplit(" ", 1) for line in str(text).splitlines() if line.startswith("outbox_publish_total{")]
    return {name.split('"')[1]: float(number) for name, number in rows if float(number)}


def test_a_daemons_metrics_include_what_a_web_process_and_its_client_published(
    sqlite_url: str, tmp_path: Path, elsewhere: Elsewhere
) -> None:
    """S4-37: once each, also when the daemon was restarted in between, and when the web process ends."""
    box = todoku.App(sqlite_url)
    box.migrate()
    box.route("order.*", to="nobody")
    queue = connect(elsewhere.url, token=QUEUE_TOKEN, within=60, metrics=box)
    with daemon_of(tmp_path, sqlite_url) as daemon:
        push = push_metrics(box, daemon.url, token=TOKEN, every=0.05)
        box.publish("order.created", {}, tx=None)
        queue.publish("https://worker.example.com/x", 1)
        until(lambda: published(daemon) == {"ok": 2}, "both are counted there")
    elsewhere.kill()
    with pytest.raises(QueueUnavailable):
        queue.publish("https://worker.example.com/x", 2)
    with daemon_of(tmp_path, sqlite_url, daemon.port) as again:
        until(lambda: published(again) == {"error": 1}, "what was counted since")
        box.publish("order.created", {}, tx=None)
        push.close()
        assert published(again) == {"ok": 1, "error": 1}, "the last counts are pushed at the end"
    queue.close()
    box.close()


def test_more_than_one_in_a_hundred_that_failed_elsewhere_is_seen_by_the_daemons_alert() -> None:
    """S4-43: the ratio is that of all processes together."""
    daemon, web = Metrics(), Telemetry()
    window, reports = CounterWindow(lambda: [daemon.dump()]), CountReports(daemon)
    web.taken(duplicate=False)
    web.publish_failed(ConnectionError())
    report = CountReport("web", 1, risen(web))
    assert [reports.add(report), reports.add(report)] == [True, False]  # its answer was lost, and it came again
    assert window.reading().publish_failure_ratio == 0.5


def risen(telemetry: Telemetry, before: Snapshot | None = None) -> Snapshot:
    found = rise(merge([telemetry.dump()]), before or empty())
    assert found is not None
    return found


def test_a_report_has_what_was_added_and_nothing_else() -> None:
    telemetry = Telemetry()
    telemetry.taken(duplicate=False)
    telemetry.claimed([None], seconds=0.001)  # type: ignore[list-item]
    first = merge([telemetry.dump()])
    assert rise(first, first) is None
    telemetry.taken(duplicate=True)
    telemetry.claimed([None], seconds=0.002)  # type: ignore[list-item]
    more = risen(telemetry, first)
    assert more.counters == {"outbox_publish_total": {"duplicate": 1}, "outbox_claimed_total": {"": 1}}
    assert more.histograms["outbox_latency_ms"]["claim"].number == 1
    whole = Metrics()
    for number, part in enumerate((risen(Telemetry(_copied(first))), more), 1):
        CountReports(whole).add(CountReport("web", number, part))
    assert merge([whole.dump()]).counters == merge([telemetry.dump()]).counters


def _copied(snapshot: Snapshot) -> Metrics:
    metrics = Metrics()
    metrics.merge(snapshot)
    return metrics


def test_what_does_not_fit_a_metric_is_left_out_of_it() -> None:
    """A report of another version, or of an attacker, does not break the daemon's own."""
    metrics, before = Metrics(), Metrics()
    reports = CountReports(metrics)
    wrong = {
        "counters": {
            "no_such_total": {"": 1}, "outbox_claimed_total": {"x": 1, "": -4}, "outbox_publish_total": {"ok": 1e300},
            "ingest_requests_total": {"one": 2},
        },
        "histograms": {
            "outbox_latency_ms": {"send": {"up_to": [1], "number": 1, "total": 1.0}, "x": {"up_to": []}},
            "ingest_seconds": {"": {"up_to": [5] + [1] * 12, "number": 1, "total": 1.0}},
        },
    }  # fmt: skip
    reports.add(CountReport("web", 1, msgspec.convert(wrong, Snapshot)))
    assert metrics.dump() == before.dump()
    many = {"outbox_terminal_failed_total": {f"R{number}": 1 for number in range(1000)}}
    reports.add(CountReport("web", 2, Snapshot(many, {})))
    assert len(merge([metrics.dump()]).counters["outbox_terminal_failed_total"]) <= 65


@pytest.fixture
def server(world: World, box: todoku.App) -> Iterator[Server]:
    server = Server(box)
    yield server
    server.close()


def test_only_who_may_publish_may_report(server: Server, box: todoku.App) -> None:
    report = msgspec.json.encode(CountReport("web", 1, Snapshot({"outbox_publish_total": {"error": 3}}, {})))
    headers = {"content-type": "application/json"}
    assert server.client().post("/metrics", content=report, headers=headers).status_code == 401
    assert server.client("read").post("/metrics", content=report, headers=headers).status_code == 403
    assert server.client("publish").post("/metrics", content=report).status_code == 415
    assert server.client("publish").post("/metrics", content=b"{}", headers=headers).status_code == 422
    assert counted(box.telemetry).get("outbox_publish_total{error}") is None
    assert server.client("publish").post("/metrics", content=report, headers=headers).status_code == 204
    assert counted(box.telemetry)["outbox_publish_total{error}"] == 3


async def test_a_web_process_exposes_its_own_counts(world: World, box: todoku.App, server: Server) -> None:
    """S4-37: with a token that may read, as a daemon does."""
    box.route("order.*", to="nobody")
    await box.apublish("order.created", {}, tx=None)
    web = Starlette()
    web.add_route("/metrics", box.metrics_app)
    headers = {"authorization": f"Bearer {await asyncio.to_thread(server.token, 'read')}"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(web), base_url="http://web") as client:
        refused = await client.get("/metrics")
        assert (refused.status_code, refused.headers["content-type"]) == (401, "application/problem+json")
        assert (await client.post("/metrics", headers=headers)).status_code == 405
        answer = await client.get("/metrics", headers=headers)
    assert 'outbox_publish_total{result="ok"} 1.0' in answer.text
    assert "outbox_lag_events" not in answer.text  # gauges are the daemon's


def test_what_cannot_be_pushed_is_said(box: todoku.App) -> None:
    with pytest.raises(InvalidSetting, match="every"):
        push_metrics(box, "http://127.0.0.1:1", every=0)
    with pytest.raises(InvalidSetting, match="url"):
        push_metrics(box, "nowhere")
