"""When the queue is away (S4-52): the caller is told, or its handler runs, or it is kept; each is counted and told."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import todoku
from tests.api.qstash.receiving import receiver
from tests.client.conftest import Elsewhere, fell_back
from tests.engine.test_telemetry import counted
from tests.support.world import World
from todoku.client import QueueUnavailable
from todoku.client.connection import WITHIN
from todoku.core.destination import Outgoing
from todoku.engine.observability.telemetry import Telemetry

WORKER = "https://worker.example.com/x"


class Silent:
    """A server that accepts connections and never answers."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.opened: list[socket.socket] = []


@pytest.fixture
def silent() -> Iterator[Silent]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        silent = Silent(listening.getsockname()[1])

        def accept() -> None:
            while True:
                try:
                    silent.opened.append(listening.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield silent
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(10)
        for one in silent.opened:
            one.close()


def test_a_queue_that_accepts_and_never_answers_is_left_after_its_time(queues: Any, silent: Silent) -> None:
    queue = queues(to=silent.url, within=WITHIN)
    with pytest.raises(QueueUnavailable, match="did not answer within 400 ms"):
        queue.publish(WORKER, 1)
    assert fell_back(queue) == {"raise": 1}


def test_an_answer_that_drips_is_left_after_its_time_too(queues: Any, elsewhere: Elsewhere) -> None:
    """One deadline for the whole: each byte in time is not an answer in time."""
    elsewhere.tell("drip")
    with pytest.raises(QueueUnavailable, match="did not answer within 400 ms"):
        queues(within=WITHIN).publish(WORKER, 1)


@pytest.mark.parametrize("url", ["http://queue.invalid", "http://127.0.0.1:1"])
def test_a_name_nobody_knows_and_a_port_nobody_has_are_away(queues: Any, url: str) -> None:
    with pytest.raises(QueueUnavailable):
        queues(to=url).publish(WORKER, 1)


@pytest.mark.parametrize("status", ["500", "502", "503"])
def test_a_server_that_is_not_able_to_is_away(queues: Any, elsewhere: Elsewhere, status: str) -> None:
    elsewhere.tell(status)
    with pytest.raises(QueueUnavailable, match=status):
        queues().publish(WORKER, 1)


def test_what_answers_and_is_no_queue_is_said(queues: Any, elsewhere: Elsewhere) -> None:
    elsewhere.tell("200")
    with pytest.raises(QueueUnavailable, match="no messageId"):
        queues().publish(WORKER, 1)


def test_sync_runs_the_handler_in_the_caller(queues: Any, elsewhere: Elsewhere) -> None:
    elsewhere.kill()
    ran: list[Outgoing] = []
    queue = queues(fallback="sync", handlers={WORKER: ran.append, "https://worker.example.com/*": None})
    done = queue.publish(WORKER, {"n": 1}, deduplication_id="evt_7", headers={"X-Event-Id": "evt_7"})
    assert (done.how, done.id) == ("ran", "evt_7")
    (message,) = ran
    assert (message.topic, message.payload, message.idempotency_key) == (WORKER, b'{"n":1}', "evt_7")
    assert message.headers["X-Event-Id"] == message.headers["Idempotency-Key"] == "evt_7"
    assert fell_back(queue) == {"sync": 1}


async def test_sync_runs_plain_and_async_handlers_from_plain_and_async_code(queues: Any, elsewhere: Elsewhere) -> None:
    elsewhere.kill()
    ran: list[tuple[str, int]] = []

    def plain(message: Outgoing) -> None:
        ran.append(("plain", threading.get_ident()))

    async def async_(message: Outgoing) -> None:
        await asyncio.sleep(0)
        ran.append(("async", threading.get_ident()))

    queue = queues(fallback="sync", handlers={"plain.*": plain, "async.*": async_})
    await queue.apublish("plain.a", 1)
    await queue.aenqueue("orders", "async.a", 1)
    assert [name for name, _ in ran] == ["plain", "async"]
    assert ran[0][1] != threading.get_ident() == ran[1][1]  # a plain one must not block the loop
    await asyncio.to_thread(queue.publish, "async.b", 1)
    assert ran[2][0] == "async"


def test_what_a_handler_raises_the_caller_sees(queues: Any, elsewhere: Elsewhere) -> None:
    elsewhere.kill()

    def failing(message: Outgoing) -> None:
        raise KeyError("participant")

    with pytest.raises(KeyError, match="participant"):
        queues(fallback="sync", handlers={"*": failing}).publish(WORKER, 1)


def test_what_nobody_handles_is_said(queues: Any, elsewhere: Elsewhere) -> None:
    elsewhere.kill()
    queue = queues(fallback="sync", handlers={"https://other.example.com/*": print})
    with pytest.raises(QueueUnavailable, match="there is no handler for"):
        queue.publish(WORKER, 1)


def test_a_queue_that_is_away_is_not_asked_by_each_caller(queues: Any, silent: Silent) -> None:
    """One of them waits; the others need not, for a second."""
    ran: list[Outgoing] = []
    queue = queues(to=silent.url, fallback="sync", handlers={"*": ran.append}, within=1)
    for n in range(20):
        queue.publish(WORKER, n)
    assert len(ran) == 20
    assert len(silent.opened) < 20


def test_skip_qstash_in_test_runs_the_handler_and_asks_nobody(
    queues: Any, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4-53: whatever the fallback is."""
    monkeypatch.setenv("SKIP_QSTASH_IN_TEST", "1")
    ran: list[Outgoing] = []
    for fallback in ("raise", "sync", "spool"):
        queue = queues(fallback=fallback, handlers={"*": ran.append})
        assert queue.publish(WORKER, 1).how == "ran"
        assert fell_back(queue) == {}
    assert (len(ran), elsewhere.accepted()) == (3, [])


def test_each_use_is_logged_without_the_payload(
    queues: Any, elsewhere: Elsewhere, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere.kill()
    queue = queues(fallback="sync", handlers={"*": lambda _: None})
    with caplog.at_level(logging.WARNING, "todoku"):
        queue.publish(WORKER, {"card": "4242"}, deduplication_id="evt_7")
    (record,) = [one for one in caplog.records if "QUEUE_FALLBACK" in one.getMessage()]
    assert record.levelno == logging.WARNING
    assert "mode=sync" in record.getMessage()
    assert "evt_7" in record.getMessage()
    assert "4242" not in record.getMessage()


def test_a_forked_child_has_connections_of_its_own(queues: Any, elsewhere: Elsewhere) -> None:
    queue = queues()
    queue.publish(WORKER, 1)
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        try:
            queue.publish(WORKER, 2)
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    queue.publish(WORKER, 3)
    assert elsewhere.bodies() == [b"1", b"2", b"3"]
    ports = [headers["x-came-from"] for _, headers, _ in elsewhere.accepted()]
    assert ports[0] == ports[2] != ports[1]


def test_each_use_raises_the_alert_from_the_callers_own_process(
    queues: Any, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4-36: there is no daemon here that would tell."""
    elsewhere.kill()
    with receiver() as told:
        monkeypatch.setenv("TODOKU_ALERT_WEBHOOK", f"{told.url}/alerts")
        monkeypatch.setenv("TODOKU_HTTP_LOOPBACK", "true")
        queue = queues(fallback="sync", handlers={"*": lambda _: None})
        queue.publish(WORKER, {"card": "4242"})
        body = told.one("/alerts").body.decode()
    assert "queue_fallback" in body
    assert "4242" not in body


@pytest.mark.parametrize("status", ["400", "401", "429"])
def test_a_queue_that_refuses_falls_back_and_alarms_as_one_that_is_away(
    queues: Any, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    """S4-51, S4-52: a token that was revoked, or a quota that is used up, loses nothing."""
    elsewhere.tell(status)
    ran: list[Outgoing] = []
    with receiver() as told:
        monkeypatch.setenv("TODOKU_ALERT_WEBHOOK", f"{told.url}/alerts")
        monkeypatch.setenv("TODOKU_HTTP_LOOPBACK", "true")
        sync = queues(fallback="sync", handlers={"*": ran.append})
        assert [sync.publish(WORKER, n).how for n in range(2)] == ["ran", "ran"]
        assert json.loads(told.one("/alerts").body)["alert"] == "queue_fallback"
    assert (len(ran), fell_back(sync)) == (2, {"sync": 2})
    spool = queues(fallback="spool")
    assert spool.publish(WORKER, "kept").how == "spooled"
    assert fell_back(spool) == {"spool": 1}


def test_the_alert_names_the_queue_and_not_a_database_of_the_settings(
    queues: Any, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4-52."""
    elsewhere.kill()
    with receiver() as told:
        monkeypatch.setenv("TODOKU_ALERT_WEBHOOK", f"{told.url}/alerts")
        monkeypatch.setenv("TODOKU_HTTP_LOOPBACK", "true")
        monkeypatch.setenv("TODOKU_DATABASE", "postgresql://nobody@nowhere/other")
        queues(fallback="sync", handlers={"*": lambda _: None}).publish(WORKER, 1)
        alert = json.loads(told.one("/alerts").body)
    assert alert["database"] == f"queue:{elsewhere.url}"
    assert elsewhere.url in alert["text"]
    assert "nowhere" not in json.dumps(alert)


def test_publishes_are_counted_by_what_the_queue_did_with_them(
    queues: Any, elsewhere: Elsewhere, world: World, box: todoku.App
) -> None:
    """S4-37, S4-43: also those that it was not asked for, and in the metrics of an App if that is wanted."""
    own, counted_by_app = queues(fallback="spool"), queues(metrics=box)
    for queue in (own, counted_by_app):
        for id in ("evt_1", "evt_1", "evt_2"):
            queue.publish(WORKER, 1, deduplication_id=f"{id} {queue is own}")
    elsewhere.kill()
    assert [own.publish(WORKER, n).how for n in range(3)] == ["spooled"] * 3
    with pytest.raises(QueueUnavailable):
        counted_by_app.publish(WORKER, 1)
    assert published(own.telemetry) == {"ok": 2, "duplicate": 1, "error": 3}
    assert published(box.telemetry) == {"ok": 2, "duplicate": 1, "error": 1}


def published(telemetry: Telemetry) -> dict[str, float]:
    found = counted(telemetry)
    return {
        name.partition("{")[2][:-1]: number for name, number in found.items() if name.startswith("outbox_publish_total")
    }


def test_a_message_carries_the_trace_it_was_published_in(queues: Any, elsewhere: Elsewhere) -> None:
    """S4-42: for the queue, which goes on with it, and for the receiver, where the queue does not."""
    from opentelemetry.sdk.trace import TracerProvider

    with TracerProvider().get_tracer("shop").start_as_current_span("webhook") as span:
        queues().publish(WORKER, 1)
    ((_, headers, _),) = elsewhere.accepted()
    trace = f"{span.get_span_context().trace_id:032x}"
    assert trace in headers["traceparent"]
    assert headers["upstash-forward-traceparent"] == headers["traceparent"]
