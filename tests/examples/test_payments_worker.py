"""examples/payments, MODE=queue: the worker's answers (S4-20…S4-27), and the whole way through a todoku server."""

from __future__ import annotations

import json
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import stripe
from payments_example.show.stripe_side import intent_event, signed

from tests.daemon.running import Daemon, until
from tests.examples.payments_at_work import ADMIN, NOW, SECRET, AtWork, payments_at
from todoku.core.signature import upstash_signature

KEYS = ("sig_current_of_the_tests_000000000000", "sig_next_of_the_tests_000000000000000")
TOKEN = "a-token-of-the-tests"
WORKER = "http://127.0.0.1:9/worker"


@pytest.fixture
def worker(sqlite_url: str, tmp_path: Path) -> Iterator[AtWork]:
    """The worker by itself: its queue is played by the tests."""
    given = {"mode": "queue", "queue_url": "http://127.0.0.1:9", "queue_token": TOKEN, "signing_keys": KEYS}
    with payments_at(sqlite_url, tmp_path, **given, worker_url=WORKER, spool=str(tmp_path / "spool.db")) as at_work:
        yield at_work


def delivered(worker: AtWork, event: Any, key: str = KEYS[0], **more: str) -> httpx.Response:
    """As the queue delivers it."""
    body = event if isinstance(event, bytes) else json.dumps(event).encode()
    token = upstash_signature(WORKER, body, key=key, now=time.time(), jti="jwt_1")
    headers = {"Upstash-Signature": token, "Upstash-Message-Id": "msg_1", "X-Correlation-Id": "request-7"}
    return worker.client.post("/worker", content=body, headers=headers | more)


def paid(id: str = "evt_1", participant: str | None = "p1") -> dict[str, Any]:
    return intent_event(id, "payment_intent.succeeded", "pi_1", at=NOW, participant=participant)


@pytest.mark.parametrize("key", KEYS)
def test_done_and_done_before_are_204_without_a_body(worker: AtWork, key: str) -> None:
    """S4-22, S4-27, S4-48…S4-50."""
    for _ in range(2):
        answer = delivered(worker, paid(), key)
        assert (answer.status_code, answer.content) == (204, b"")
        named = {"x-request-id": "request-7", "x-event-id": "evt_1", "upstash-message-id": "msg_1"}
        assert named.items() <= dict(answer.headers).items()
    assert worker.sql("select stripe_event_id from payment_events") == [("evt_1",)]


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (paid(participant=None), "MISSING_PARTICIPANT"),
        (b"{not json", "BAD_PAYLOAD"),
        (b'{"id": "evt_1"}', "BAD_PAYLOAD"),
        ({**paid(), "data": {"object": {}}}, "MISSING_FIELD"),
    ],
)
def test_what_can_never_succeed_is_489_and_says_so(worker: AtWork, event: Any, reason: str) -> None:
    """S4-23, S4-25, S4-51."""
    answer = delivered(worker, event)
    assert answer.status_code == 489
    assert answer.headers["upstash-nonretryable-error"] == "true"
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["reason"] == reason
    assert answer.json()["request_id"] == answer.headers["x-request-id"] == "request-7"


def test_what_the_queue_did_not_sign_is_489(worker: AtWork) -> None:
    """S4-25."""
    assert delivered(worker, paid(), "sig_of_somebody_else_0000000000000000").json()["reason"] == "BAD_SIGNATURE"
    assert worker.client.post("/worker", content=b"{}").status_code == 489
    assert worker.sql("select count(*) from payments") == [(0,)]


def test_a_database_that_is_away_is_503(worker: AtWork) -> None:
    """S4-24, S4-26."""
    worker.sql("alter table payments rename to payments_away")
    assert delivered(worker, paid()).status_code == 503
    worker.sql("alter table payments_away rename to payments")
    assert delivered(worker, paid()).status_code == 204


@pytest.mark.parametrize("body", [b"{}", b"[]", b'{"id": 7}', b'{"id": ""}', '{"id": "évt"}'.encode()])
def test_what_stripe_signed_and_is_no_event_is_a_problem(worker: AtWork, body: bytes) -> None:
    """S4-51: an event without its id, among others."""
    at = int(time.time())
    signature = stripe.WebhookSignature._compute_signature(f"{at}.{body.decode()}", SECRET)
    headers = {"Stripe-Signature": f"t={at},v1={signature}", "X-Request-Id": "request-7"}
    answer = worker.client.post("/webhooks/stripe", content=body, headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (400, "application/problem+json")
    assert answer.json()["request_id"] == answer.headers["x-request-id"] == "request-7"


def test_the_line_of_a_failure_says_which_event_and_whose(worker: AtWork, caplog: pytest.LogCaptureFixture) -> None:
    """S4-41: and the mail goes on with the request's id (S4-14)."""
    caplog.set_level("INFO", "todoku")
    worker.sql("alter table payments rename to payments_away")
    delivered(worker, paid())
    (line,) = [one.getMessage() for one in caplog.records if one.getMessage().startswith("payment ")]
    for field in ("correlation_id=request-7", "event_id=evt_1", "participant_id=p1", "error_type=OperationalError"):
        assert field in line
    worker.sql("alter table payments_away rename to payments")
    worker.sql("insert into participants (id, email) values ('p1', 'p1@example.com')")
    delivered(worker, paid())
    ((headers,),) = worker.sql("select headers from todoku_message where topic = 'mail'")
    assert json.loads(headers)["X-Correlation-Id"] == "request-7"


def test_a_row_is_closed_by_the_event_that_stripe_sends_again(worker: AtWork) -> None:
    """S4-32: in the transaction that records it."""
    worker.sql(
        "create table failed_webhook_events (event_id text primary key, payload text, error text, created_at text,"
        " message_id text, dlq_id text, request text, rerun_at text, rerun_by text, rerun_why text)"
    )
    worker.sql(
        "insert into failed_webhook_events (event_id, payload, error, created_at, message_id, dlq_id, request)"
        " values ('evt_1', '{}', 'MISSING', '2026-01-01T00:00:00.000Z', 'm', '7-0', '{}')"
    )
    assert delivered(worker, paid()).status_code == 204
    ((by,),) = worker.sql("select rerun_by from failed_webhook_events where rerun_at is not null")
    assert by == "stripe"


def test_while_the_queue_is_away_the_webhook_still_answers_204_and_keeps_the_event(worker: AtWork) -> None:
    """S4-9, S4-52: on this disk, until the queue is back."""
    body, headers = signed(paid(), SECRET)
    assert worker.client.post("/webhooks/stripe", content=body, headers=headers).status_code == 204
    with closing(sqlite3.connect(worker.payments.settings.spool)) as spool:
        tables = [name for (name,) in spool.execute("select name from sqlite_master where type = 'table'")]
        kept = [row for name in tables for row in spool.execute(f"select * from {name}")]
    assert sum("evt_1" in str(row) for row in kept) == 1
    forged = worker.client.post("/webhooks/stripe", content=body + b" ", headers=headers)
    assert (forged.status_code, forged.headers["content-type"]) == (400, "application/problem+json")


def test_in_tests_there_need_be_no_queue(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S4-53."""
    monkeypatch.setenv("SKIP_QSTASH_IN_TEST", "1")
    given = {"mode": "queue", "queue_url": "http://127.0.0.1:9", "queue_token": TOKEN, "signing_keys": KEYS}
    with payments_at(sqlite_url, tmp_path, **given) as at_work:
        body, headers = signed(paid(), SECRET)
        assert at_work.client.post("/webhooks/stripe", content=body, headers=headers).status_code == 204
        assert (at_work.payment("pi_1") or {})["status"] == "succeeded"


# ------------------------------------------------------------------------------- through a real queue server


@contextmanager
def queue_server(home: Path) -> Iterator[Daemon]:
    """`todoku up`: the queue, elsewhere, in a database of its own."""
    (home / "queue").mkdir()
    daemon = Daemon(
        ("up", "--db", f"sqlite:///{home}/queue/queue.db"),
        home / "queue",
        {
            "TODOKU_TOKEN": TOKEN,
            "TODOKU_SIGNING_KEYS": ",".join(KEYS),
            "TODOKU_HTTP_LOOPBACK": "1",
        },
    )
    try:
        daemon.until_ready()
        yield daemon
    finally:
        daemon.close()


def test_from_stripe_through_the_queue_to_the_worker_and_from_the_dead_letters_back(
    sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """S4-13, S4-14, S4-17, S4-28, S4-29, S4-31…S4-33, S4-47: the seed's picture, with todoku in QStash's place."""
    caplog.set_level("INFO", "todoku")
    with queue_server(tmp_path) as server, socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        given = {"mode": "queue", "queue_url": server.url, "queue_token": TOKEN, "signing_keys": KEYS}
        with payments_at(
            sqlite_url, tmp_path, **given, worker_url=f"http://127.0.0.1:{port}/worker",
            spool=str(tmp_path / "spool.db"), listening=listening,
        ) as at_work:  # fmt: skip
            for event in (paid(), paid(), paid("evt_2", participant=None)):
                body, headers = signed(event, SECRET)
                answer = at_work.client.post(
                    "/webhooks/stripe", content=body, headers=headers | {"X-Request-Id": f"request-{event['id']}"}
                )
                assert answer.status_code == 204, answer.text
                assert answer.headers["upstash-message-id"]
            until(lambda: at_work.payment("pi_1"), "the worker to have recorded it")
            assert "correlation_id=request-evt_1" in caplog.text  # S4-14: of the webhook's request, in the worker's log
            failed = at_work.failed
            until(failed.sync, "the dead letter to be found")
            (row,) = at_work.client.get("/admin/failed", auth=ADMIN).json()
            assert row["event_id"] == "evt_2"
            at_work.sql("insert into participants (id, intent) values ('p7', 'pi_1')")
            failed.rerun("evt_2", by="ana", why="we know now whose it is")
            until(lambda: len(at_work.sql("select 1 from payment_events")) == 2, "the second event to be recorded")
            assert at_work.sql("select count(*) from payment_events") == [(2,)]
