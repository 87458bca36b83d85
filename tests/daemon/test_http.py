"""What a daemon says and serves over HTTP: credentials once, everything behind them, and no database in the loop."""

from __future__ import annotations

import re
import sqlite3
import threading
from contextlib import closing

import httpx
import pytest

from tests.daemon.running import Daemon, Shop, until
from todoku.store.sqlite.database import file_path

pytestmark = pytest.mark.slow

MADE = re.compile(r"^  (QSTASH_\w+)=(\S+)$", re.MULTILINE)


def status(daemon: Daemon, path: str, token: str) -> int:
    headers = {"authorization": f"Bearer {token}"}
    return httpx.get(f"{daemon.url}{path}", headers=headers, timeout=60, trust_env=False).status_code


def test_what_a_daemon_makes_it_says_once(shop: Shop) -> None:
    """Issue 6: the first admin token and the signing keys are made and printed once, and open everything."""
    daemon = shop.run()
    said = until(lambda: found if len(found := dict(MADE.findall(daemon.out))) > 3 else None, "what it made")
    assert set(said) == {"QSTASH_URL", "QSTASH_TOKEN", "QSTASH_CURRENT_SIGNING_KEY", "QSTASH_NEXT_SIGNING_KEY"}
    assert said["QSTASH_URL"] == daemon.url
    assert status(daemon, "/api/v1/tokens", said["QSTASH_TOKEN"]) == 200
    assert status(daemon, "/v2/keys", said["QSTASH_TOKEN"]) == 200
    assert status(daemon, "/api/v1/tokens", "wrong") == 401
    assert daemon.stop() == 0
    again = shop.run()
    assert status(again, "/api/v1/tokens", said["QSTASH_TOKEN"]) == 200
    assert again.stop() == 0
    assert again.out == ""
    for secret in (said["QSTASH_TOKEN"], said["QSTASH_CURRENT_SIGNING_KEY"]):
        assert secret not in daemon.err + again.err, "no secret is logged"


def test_credentials_that_are_given_are_not_made(sqlite_shop: Shop) -> None:
    sqlite_shop.box.migrate()
    token = "a-token-of-our-own-1"
    daemon = sqlite_shop.run(TODOKU_TOKEN=token, TODOKU_SIGNING_KEYS="current-key-0000001,next-key-000000001")
    assert status(daemon, "/api/v1/tokens", token) == 200
    assert daemon.stop() == 0
    assert daemon.out == ""


def test_requests_that_wait_for_the_database_keep_nobody_else_waiting(sqlite_shop: Shop) -> None:
    """More of them than there are threads wait for a lock; health is answered from memory all the while."""
    sqlite_shop.box.migrate()
    daemon = sqlite_shop.run(TODOKU_TOKEN="a-token-of-our-own-1")
    answers: list[int] = []

    def pause(name: str) -> None:
        with httpx.Client(timeout=120, trust_env=False) as client:
            answer = client.post(
                f"{daemon.url}/api/v1/queues/{name}/pause",
                json={"why": "a test"},
                headers={"authorization": "Bearer a-token-of-our-own-1"},
            )
            answers.append(answer.status_code)

    with closing(sqlite3.connect(file_path(sqlite_shop.url), isolation_level=None)) as holder:
        holder.execute("begin immediate")
        waiting = [threading.Thread(target=pause, args=(f"q{n}",)) for n in range(40)]
        for thread in waiting:
            thread.start()
        for _ in range(5):
            assert daemon.ask("/healthz")[0] == 200
        assert 200 not in answers, "who waits long enough is told to come again"
        holder.execute("rollback")
    for thread in waiting:
        thread.join(120)
    assert set(answers) <= {200, 503}, "done, or told to come again"
    assert len(answers) == 40
    assert daemon.stop() == 0
