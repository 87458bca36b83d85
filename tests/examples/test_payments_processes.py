"""examples/payments as it is started: what its own processes write, and what they start (S4-18, S4-32, S4-41)."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from payments_example.show.parts import Part, Stripe
from payments_example.show.stripe_side import intent_event

from tests.client.conftest import Elsewhere
from tests.client.queue_server import TOKEN
from tests.client.test_publish import letter
from tests.daemon.running import until, whole_lines
from tests.examples.payments_at_work import NOW, SECRET
from tests.support.ports import free_port

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "payments"


@pytest.fixture
def environ(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(EXAMPLE), *filter(None, [os.environ.get("PYTHONPATH")])]))
    return {
        "DATABASE_URL": sqlite_url, "STRIPE_WEBHOOK_SECRET": SECRET, "ADMIN_TOKEN": "let-me-in",
        "FIRST_WAIT_SEC": "0.05", "TODOKU_HTTP_LOOPBACK": "1", "TODOKU_PROCESSES": "1",
    }  # fmt: skip


@pytest.fixture
def parts(tmp_path: Path, environ: dict[str, str]) -> Iterator[dict[str, Part]]:
    """The API and the daemon, each a process whose output is a file."""
    port, daemon = free_port(), free_port()
    url = f"http://127.0.0.1:{daemon}"
    of = {
        "daemon": Part(
            "daemon", tmp_path, environ | {"TODOKU_PORT": str(daemon)}, daemon, "todoku", "run", "--app",
            "payments_example.box:box",
        ),
        "api": Part(
            "api", tmp_path, environ | {"PORT": str(port), "DAEMON_URL": url}, port, "payments_example.server"
        ),
    }  # fmt: skip
    try:
        of["api"].start("/payments/none")
        of["daemon"].start("/readyz")
        yield of
    finally:
        for part in of.values():
            part.kill()


def lines(part: Part) -> list[dict[str, Any]]:
    """What the process logged: JSON, every line. (The daemon also says on its standard output where it is.)"""
    return [json.loads(line) for line in whole_lines(part.log.read_text()) if line.startswith("{")]


def lines_of(part: Part, correlation: str) -> list[dict[str, Any]]:
    return [line for line in lines(part) if line.get("correlation_id") == correlation]


@pytest.mark.slow
def test_one_event_is_followed_from_ingest_to_mail_in_what_the_processes_write(
    parts: dict[str, Part], sqlite_url: str
) -> None:
    """S4-14, S4-18, S4-41: by one id; and the line of a failure has it with event, participant and error."""
    event = intent_event("evt_1", "payment_intent.succeeded", "pi_1", at=NOW, participant="p1", email="p1@example.com")
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), timeout=60)) as db:
        db.execute("alter table payments rename to payments_away")
        Stripe(f"{parts['api'].url}/ingest/stripe", SECRET).post([event])
        (arrived,) = until(
            lambda: [line for line in lines(parts["api"]) if line["event"] == "ingested"], "the API to write of it"
        )
        id = arrived["correlation_id"]
        assert arrived["event_id"] == "evt_1"
        failed = until(lambda: lines_of(parts["daemon"], id), "the worker to write of a failure")[0]
        found = [failed[name] for name in ("event", "event_id", "participant_id", "error_type", "status")]
        assert found == ["settled", "evt_1", "p1", "OperationalError", "failed"]
        db.execute("alter table payments_away rename to payments")
    ends = ("record", "succeeded"), ("mail", "succeeded")
    until(lambda: {*ends} <= {_end(line) for line in lines_of(parts["daemon"], id)}, "record and mail to be done")
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), timeout=60)) as db:
        headers = [json.loads(text) for (text,) in db.execute("select headers from todoku_message")]
    assert [one["x-correlation-id"] for one in headers] == [id, id]


def _end(line: dict[str, Any]) -> tuple[str, str]:
    return line.get("adapter", ""), line.get("status", "")


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Elsewhere]:
    elsewhere = Elsewhere(tmp_path)
    elsewhere.begin()
    yield elsewhere
    elsewhere.kill()


@pytest.mark.slow
def test_with_a_queue_elsewhere_the_example_starts_what_watches_its_dead_letters(
    tmp_path: Path, environ: dict[str, str], elsewhere: Elsewhere, sqlite_url: str
) -> None:
    """S4-32, S4-54."""
    elsewhere.bury(letter(1))
    more = {
        "MODE": "queue", "QSTASH_URL": elsewhere.url, "QSTASH_TOKEN": TOKEN, "QSTASH_CURRENT_SIGNING_KEY": "sig_1",
        "PORT": str(free_port()),
    }  # fmt: skip
    running = subprocess.Popen(
        [sys.executable, "-m", "payments_example"], cwd=tmp_path, env=os.environ | environ | more
    )
    try:
        until(lambda: _rows(sqlite_url) == [("evt_1",)], "the row of the dead letter")
        until(lambda: '"ALERT"' in (tmp_path / "sync.log").read_text(), "the alert")
    finally:
        running.send_signal(signal.SIGTERM)
        assert running.wait(120) == 0


def _rows(url: str) -> list[tuple[str]]:
    try:
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=60)) as db:
            return db.execute("select event_id from failed_webhook_events").fetchall()
    except sqlite3.OperationalError:  # no process has made the table yet
        return []
