"""The demonstration: its receiver is reached by its own origin only, and it takes its schedule with it."""

from __future__ import annotations

import urllib.request
from itertools import islice
from pathlib import Path

import pytest

from todoku.core.address_guard import Guard
from todoku.daemon import demo_shop
from todoku.daemon.demo import SCHEDULE, DemoPublisher, DemoReceiver, _messages
from todoku.daemon.demo_shop import WEBHOOK_ORIGIN, create_demo_app
from todoku.destinations.http_sender import rewrites
from todoku.engine.tracebacks import format_error


def test_the_receiver_accepts_and_only_its_origin_is_sent_to_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TODOKU_HTTP_REWRITE", "https://a.example=https://b.example")
    receiver = DemoReceiver()
    receiver.start()
    try:
        request = urllib.request.Request(receiver.url + "/orders", data=b"{}", method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            assert answer.status == 200
        monkeypatch.setenv("TODOKU_DATABASE", "sqlite:///unused.db")
        settings = create_demo_app().settings
        assert rewrites(settings.http_rewrite) == {
            "https://a.example": "https://b.example",
            WEBHOOK_ORIGIN: receiver.url,
        }
        assert Guard(settings.http_allow, settings.http_loopback).refuses("127.0.0.1", "127.0.0.1")
    finally:
        receiver.stop()


def test_the_schedule_goes_when_it_stops(monkeypatch: pytest.MonkeyPatch, sqlite_url: str) -> None:
    monkeypatch.setenv("TODOKU_DATABASE", sqlite_url)
    box = create_demo_app()
    box.migrate()
    publisher = DemoPublisher(box)
    publisher._stopped.set()  # after the first messages
    publisher.run()
    assert [schedule.name for schedule in box.schedules.list()] == [SCHEDULE]
    publisher.stop()
    assert box.schedules.list() == ()
    publisher.stop()  # to stop it twice is harmless
    box.close()


def test_the_first_refund_fails_until_it_is_run_again_and_frees_those_behind_it(
    monkeypatch: pytest.MonkeyPatch, sqlite_url: str
) -> None:
    """I10: the others of its key wait without an attempt; afterwards all three have arrived."""
    monkeypatch.setenv("TODOKU_DATABASE", sqlite_url)
    box = create_demo_app()
    box.migrate()
    for message in islice(_messages(), 1, 4):
        box.publish(message.topic, message.payload, tx=None, key=message.key)
    (first,) = [row.id for row in box.deliveries.find(limit=10).items if row.id == 1]
    start = box.store.ping()
    for seconds in (0, 10, 20):  # its back-off is over
        box._database._clock = lambda now=start + seconds: int(now * 1e6)  # type: ignore[attr-defined]
        box.drain()
    assert [(row.id, row.status, row.attempts) for row in box.deliveries.find(limit=10).items] == [
        (3, "pending", 0),
        (2, "pending", 0),
        (first, "aborted", 3),
    ]
    box.replay(first, by="ada", why="the till is open")
    box.drain()
    assert box.deliveries.find(limit=10).items == ()
    assert len(box.deliveries.find(status="succeeded").items) == 3
    box.close()


def test_a_traceback_shows_its_lines_as_those_of_a_user() -> None:
    try:
        demo_shop.pay_out(demo_shop.Till(locked=True), 42)
    except PermissionError as error:
        trace = format_error(error, "todoku", "user")
    assert trace is not None
    assert "in pay_out" in trace.text
    assert f'File "{Path(demo_shop.__file__)}", line ' in trace.text
    assert "raise PermissionError" in trace.text
