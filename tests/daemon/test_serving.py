"""`--serve-workers`: several processes serve HTTP on one port, and no client can tell which of them it has reached."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.daemon.running import SHOP, Shop, alive, shop_at, until
from tests.daemon.serving import AUTH, INGEST, LATER, TOKEN, Served, serve
from tests.daemon.test_up import refused
from tests.support.raw_http import request
from todoku.core.scope import TOKEN as PUBLIC
from todoku.daemon.http_thread import listen, listen_for
from todoku.store.deliveries import Filter

JSON = {"Content-Type": "application/json"}

pytestmark = [pytest.mark.slow, pytest.mark.postgres]


@pytest.fixture
def shop(tmp_path: Path, postgres_url: str) -> Iterator[Shop]:
    with shop_at(tmp_path, postgres_url) as shop:
        yield shop


@pytest.fixture
def served(shop: Shop) -> Iterator[Served]:
    """A daemon with two serving processes."""
    served = serve(shop, "--open")
    yield served
    assert served.daemon.stop() == 0


# ------------------------------------------------------------------------------------- whichever is reached


def test_each_process_stores_what_is_sent_to_it(shop: Shop, served: Served) -> None:
    for pid in (served.first, served.other):
        assert served.publish(pid).status == 200
        assert served.ingest(pid, f"evt_{pid}").status == 204
        assert served.ingest(pid, "evt_both").status == 204
    found = shop.box.store.deliveries.find(Filter()).items
    assert sorted(row.topic or "" for row in found) == ["http.request"] * 2 + ["stripe.payment_intent.succeeded"] * 3
    refusal = served.ask(served.other, "POST", "/ingest/nobody", b"{}")
    assert refusal.status == served.ask(served.first, "POST", "/ingest/nobody", b"{}").status == 400


def test_health_is_that_of_the_daemon(served: Served) -> None:
    for path in ("/healthz", "/readyz", "/readyz?verbose"):
        first, other = (served.ask(pid, "GET", path).json() for pid in (served.first, served.other))
        assert first.keys() == other.keys()
        assert [first.get(name) for name in ("live", "ready", "state")] == [
            other.get(name) for name in ("live", "ready", "state")
        ]
    assert [one["state"] for one in served.daemon.serving()] == ["serving"] * 2
    assert [one["pid"] for one in served.daemon.serving()] == [served.first, served.other]


def test_counters_are_those_of_all_processes_and_never_fall(served: Served) -> None:
    """Also when a process is killed: what it has reported stays counted."""
    pids = [served.first, served.other]
    name, seen = 'outbox_publish_total{result="ok"}', 0.0
    for n in range(6):
        assert served.publish(pids[n % 2]).status == 200
        for pid in pids:
            now = served.metric(pid, name)
            assert now >= seen
            seen = now
    until(lambda: served.metric(served.first, name) == 6, "all six to be counted")
    assert served.metric(served.other, name) == 6
    killed = served.kill_other()
    until(lambda: served.daemon.events("SERVING_DIED"), "its death")
    assert served.metric(served.first, name) == 6
    assert served.other != killed
    assert served.publish(served.other).status == 200
    until(lambda: served.metric(served.other, name) == 7, "the new one's to be added")


def test_the_rate_of_a_token_is_counted_over_all_processes(shop: Shop) -> None:
    """A permit for a thousand seconds: one process takes it, and the other has none."""
    served = serve(shop, TODOKU_API_RATE="0.001")
    other = served.other
    assert served.publish(other).status == 200
    for pid in (served.first, other):
        assert served.publish(pid).status == 429
    assert served.daemon.stop() == 0


def test_an_act_on_many_is_found_whichever_process_is_asked(shop: Shop, served: Served) -> None:
    """Decision 39: an act lives in the memory of the process that runs it."""
    pids = [served.other, served.first]
    for pid in pids:
        body = json.dumps({"act": "cancel", "all": True, "why": "a test"}).encode()
        started = served.ask(pid, "POST", "/api/v1/acts", body, **JSON)
        assert started.status == 200, started.body
        id = started.json()["act"]["id"]
        assert [served.ask(pid, "GET", f"/api/v1/acts/{id}").json()["id"] for pid in pids] == [id, id]


def test_pages_and_their_streams_are_served_through_every_process(served: Served) -> None:
    for pid in (served.first, served.other):
        with served.connect(pid) as connection:
            connection.send(request("GET", "/"))
            page = connection.answer(to="GET")
            assert page.status == 200
            assert b"<html" in page.body
            connection.send(request("GET", "/live"))
            head = connection._until(b"\r\n\r\n")
            assert b"text/event-stream" in head
            assert b"tick" in connection._until(b"event: tick") + b"tick"


def test_a_connection_may_ask_for_anything_in_any_order(shop: Shop, served: Served) -> None:
    publish = request("POST", "/v2/publish/https://example.com/", AUTH | LATER, b"x")
    with served.connect(served.other) as connection:
        for wanted, status in [
            (publish, 200), (publish, 200), (request("GET", "/healthz"), 200), (publish, 200),
            (request("GET", "/nothing"), 404), (request("PUT", "/v2/batch", AUTH, b"[]"), 405), (publish, 200),
        ]:  # fmt: skip
            connection.send(wanted)
            assert connection.answer().status == status
    assert len(shop.box.store.deliveries.find(Filter()).items) == 4


def test_a_request_in_small_and_in_large_pieces_is_handed_on_whole(served: Served) -> None:
    wanted = request("POST", "/api/v1/acts", AUTH | JSON, json.dumps({"act": "cancel", "why": "x" * 400_000}).encode())
    with served.connect(served.other) as connection:
        connection.send(wanted)
        answer = connection.answer()
        assert answer.status == 422
    with served.connect(served.other) as connection:
        for byte in request("GET", "/healthz"):
            connection.send(bytes([byte]))
        assert connection.answer(to="GET").status == 200


def test_a_second_request_before_the_first_answer_is_misdirected(served: Served) -> None:
    """A connection cannot be handed on in the middle of an answer; the client may ask again on a new one."""
    publish = request("POST", "/v2/publish/https://example.com/", AUTH | LATER, b"x")
    with served.connect(served.other) as connection:
        connection.send(publish + publish + request("GET", "/healthz"))
        assert [connection.answer().status for _ in range(3)] == [200, 200, 421]
        assert connection.rest() == b""


# ------------------------------------------------------------------------------------------- their lives


def test_while_a_process_is_replaced_another_answers(served: Served) -> None:
    killed = served.kill_other()
    for _ in range(20):
        assert served.daemon.ask("/healthz")[0] == 200
    until(lambda: served.daemon.events("SERVING_DIED"), "its death")
    (died,) = served.daemon.events("SERVING_DIED")
    assert (died["pid"], died["number"], died["how"]) == (killed, 2, "was killed by SIGKILL")
    assert served.publish(served.other).status == 200
    assert [one["restarts"] for one in served.daemon.serving()] == [0, 1]


def test_a_process_that_cannot_start_costs_no_request(shop: Shop) -> None:
    """The module imports in the supervisor and fails elsewhere: the first process takes all connections."""
    served = serve(shop)
    (shop.home / "shop.py").write_text("raise RuntimeError('not today')")
    served.kill_other()
    until(lambda: len(served.daemon.events("SERVING_DIED")) > 1, "it to fail again")
    for n in range(20):
        assert served.daemon.ask("/healthz")[0] == 200, n
    assert {one["state"] for one in served.daemon.serving()[1:]} <= {"restarting", "starting"}
    (shop.home / "shop.py").write_text(SHOP + INGEST)
    assert served.publish(served.other).status == 200
    assert served.daemon.stop() == 0


def test_draining_answers_what_was_accepted_before_the_workers_drain(shop: Shop) -> None:
    served = serve(shop, TODOKU_DRAIN_GRACE_SEC="3600", TODOKU_LOCK_TIMEOUT_SEC="600")
    other = served.other
    shop.enqueue("slow")
    until(lambda: shop.noted("slow begins"), "it to begin")
    with psycopg.connect(shop.url) as blocker, served.connect(other) as connection:
        blocker.execute("lock table todoku_message in access exclusive mode")
        connection.send(request("POST", "/v2/publish/https://example.com/", AUTH | LATER, b"in flight"))
        until(lambda: _waits_for_lock(shop), "the publish to wait for the table")
        served.daemon.signal(signal.SIGTERM)
        until(lambda: served.daemon.ask("/readyz")[0] == 503, "draining")
        # The kernel resets a connection that it had given to the other process just before that one stopped listening.
        answered = until(lambda: served.daemon.ask("/healthz")[0], "an answer")
        assert answered == 200, "the first process answers in place of the other"
        blocker.rollback()
        assert connection.answer().status == 200
    until(lambda: not alive(other), "the other serving process to end")
    assert served.daemon.process.poll() is None, "the worker finishes its attempt"
    shop.let_go()
    assert served.daemon.exit_code() == 0
    assert shop.counts()["succeeded"] == 1
    assert not served.daemon.events("SERVING_DIED")


def _waits_for_lock(shop: Shop) -> bool:
    with psycopg.connect(shop.url) as connection:
        found = connection.execute("select count(*) from pg_locks where not granted").fetchone()
    return found is not None and found[0] > 0


def test_a_second_signal_ends_serving_processes_too(shop: Shop) -> None:
    served = serve(shop, TODOKU_DRAIN_GRACE_SEC="3600")
    other = served.other
    shop.enqueue("slow")
    until(lambda: shop.noted("slow begins"), "it to begin")
    served.daemon.signal(signal.SIGTERM)
    until(lambda: served.daemon.events("DRAINING"), "draining")
    served.daemon.signal(signal.SIGTERM)
    assert served.daemon.exit_code() == 143
    assert not alive(other)


def test_serving_processes_leave_when_their_supervisor_is_killed(shop: Shop) -> None:
    served = serve(shop)
    pids = [served.other, *(worker["pid"] for worker in served.daemon.workers())]
    served.daemon.signal(signal.SIGKILL)
    served.daemon.exit_code()
    until(lambda: not any(alive(pid) for pid in pids), "everybody to leave")


def test_a_frozen_process_is_replaced(shop: Shop) -> None:
    """It reports while its event loop turns; thirty seconds without a report are too many."""
    served = serve(shop)
    frozen = served.other
    os.kill(frozen, signal.SIGSTOP)
    until(lambda: served.daemon.events("SERVING_SILENT"), "it to be missed")
    until(lambda: not alive(frozen), "it to be killed")
    until(lambda: served.other != frozen, "the other to be named in its place")
    assert served.publish(served.other).status == 200
    assert served.daemon.stop() == 0


def test_a_changed_file_replaces_every_process(shop: Shop) -> None:
    """`--reload` starts all of it again, with as many serving processes."""
    (shop.home / "shop.py").write_text(SHOP + INGEST)
    daemon = shop.start(
        "up", "--app", "shop:box", "--workers", "1", "--serve-workers", "2", "--log", "json", "--reload",
        TODOKU_TOKEN=TOKEN,
    )  # fmt: skip
    daemon.until_ready()
    before = until(lambda: [one["pid"] for one in daemon.serving() if one["state"] == "serving"][1:], "the other")
    (shop.home / "shop.py").write_text(SHOP + INGEST + "\n# changed\n")
    until(
        lambda: [one for one in daemon.serving()[1:] if one["state"] == "serving" and one["pid"] not in before],
        "another serving process",
    )
    assert daemon.stop() == 0


# ------------------------------------------------------------------------------------- what is said and refused


def test_the_status_says_how_many_processes_serve(shop: Shop) -> None:
    served = serve(shop, number=3)
    (started,) = served.daemon.events("STARTED")
    assert started["serving"] == 3
    asked = shop.start("status", "--json", TODOKU_PORT=str(served.daemon.port))
    assert asked.exit_code() == 0
    assert json.loads(asked.out)["serve_workers"] == 3
    shown = shop.start("status", TODOKU_PORT=str(served.daemon.port))
    assert shown.exit_code() == 0
    assert "HTTP in 3 processes" in shown.out
    assert served.daemon.stop() == 0


def test_a_port_of_serving_processes_is_taken(shop: Shop) -> None:
    """SO_REUSEPORT alone would let a second daemon have a share of the first one's connections."""
    served = serve(shop)
    second = ("run", "--app", "shop:box", "--serve-workers", "2", "--port", str(served.daemon.port))
    assert "cannot listen on port" in refused(shop.start(*second))
    assert served.daemon.stop() == 0


def test_what_cannot_be_served_together_is_refused(sqlite_shop: Shop, shop: Shop) -> None:
    told = refused(sqlite_shop.start("up", "--app", "shop:box", TODOKU_SERVE_WORKERS="2"))
    assert "2 processes cannot serve HTTP on SQLite" in told
    assert "--serve-workers 1" in told
    public = ("run", "--app", "shop:box", "--serve-workers", "2")
    assert "public credentials" in refused(shop.start(*public, TODOKU_TOKEN=PUBLIC))
    silent = shop.start("run", "--app", "shop:box", "--serve-workers", "2", "--no-http")
    assert (silent.exit_code(), "--no-http" in silent.err) == (2, True)


def test_sockets_of_one_port_are_spread_by_the_kernel_or_the_same() -> None:
    """Linux: each has its own queue of connections. Elsewhere the first that accepts gets the connection."""
    sockets = listen_for("127.0.0.1", 0, 3)
    ports = {one.getsockname()[1] for one in sockets}
    assert len(ports) == 1
    assert [one.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT) for one in sockets] == [1, 1, 1]
    for one in sockets:
        one.close()


def test_without_a_kernel_that_spreads_all_processes_accept_from_one_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    first, second = listen_for("127.0.0.1", 0, 2)
    port = first.getsockname()[1]
    for accepting in (first, second):
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, address = accepting.accept()
            accepted.close()
            assert address == client.getsockname()
    for one in (first, second):
        one.close()
    listen("127.0.0.1", port).close()
