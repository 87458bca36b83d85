"""Alerts in one daemon: what it reads, and how a webhook, a mail server and Sentry are told (S4-34…36, S4-43…45)."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime
from typing import Any

import pytest

from tests.daemon.running import until
from tests.support.ports import free_port
from tests.support.recording import PostOffice, Recorder, SentryRecorder, post_office, recorder, sentry_recorder
from tests.support.world import World, aborted
from todoku.core.alert import HOLDS, Alerting, DueAlert, Raised, Reading, Thresholds, new_standing
from todoku.core.errors import DatabaseUnavailable
from todoku.core.settings import Settings, read_settings
from todoku.engine.observability import metrics as counting
from todoku.engine.observability.alert_sinks import AlertNotice, post, sinks
from todoku.engine.observability.alerts import Alarm, Alerts, CounterWindow, with_database
from todoku.engine.observability.metrics import Metrics

TELLING = DueAlert("begun", new_standing(Raised("dead_letters", 3.0, 0.0), "webhook", 1_800_000_000.0))


@pytest.fixture
def webhook() -> Iterator[Recorder]:
    with recorder() as server:
        yield server


@pytest.fixture
def sentry() -> Iterator[SentryRecorder]:
    with sentry_recorder() as server:
        yield server


@pytest.fixture
def mail() -> Iterator[PostOffice]:
    with post_office() as server:
        yield server


def settings(**given: Any) -> Settings:
    return read_settings({}, None, http_loopback=True, **given)


# --------------------------------------------------------------------------------------------- what is read


def test_ratios_are_of_the_last_five_minutes() -> None:
    """S4-43, S4-44, S4-39, S4-45, S4-40, S4-52."""
    now = [0.0]
    metrics = Metrics()
    numbers = CounterWindow(lambda: [metrics.dump()], monotonic=lambda: now[0])
    assert numbers.reading() == Reading(dead_letter_inflow=0, queue_fallback=0)
    for outcome, number in (("done", 97), ("abort", 1), ("retry", 2)):
        metrics.add(counting.PROCESSED, number, outcome)
    metrics.add(counting.TERMINAL_FAILED, 1, "SOME_REASON")
    metrics.add(counting.TERMINAL_FAILED, 5, "CANCELLED")  # by a person, on purpose
    metrics.add(counting.PUBLISHED, 98, "ok")
    metrics.add(counting.PUBLISHED, 2, "error")
    metrics.add(counting.FALLBACK, 4, "best_effort")
    metrics.add(counting.FALLBACK, 9, "spool")  # of a client, which alarms by itself and names its queue (S4-52)
    metrics.observe(counting.END_TO_END, [20.0] * 10)
    now[0] = 100.0
    seen = numbers.reading()
    assert seen.handler_error_ratio == pytest.approx(1 / 98)
    assert seen.retry_ratio == pytest.approx(0.02)
    assert seen.publish_failure_ratio == pytest.approx(0.02)
    assert (seen.dead_letter_inflow, seen.queue_fallback) == (1, 4)
    assert seen.e2e_p95 is not None
    assert 10 < seen.e2e_p95 <= 30
    now[0] = 399.0
    assert numbers.reading() == seen
    now[0] = 401.0
    assert numbers.reading() == Reading(dead_letter_inflow=0, queue_fallback=0)


def test_the_rest_is_read_from_the_database(world: World) -> None:
    """S4-34, S4-35."""
    world.publish(3)
    world.settle(world.claim(world.worker(), 1), aborted())
    world.claim(world.worker(lease=60), 1)
    world.advance(90)
    seen = with_database(Reading(), world.store, stuck_after=600)
    assert (seen.dead_letters, seen.lag, seen.stuck) == (1, 1, 1)
    assert seen.dead_letter_age is not None
    assert seen.oldest_age is not None
    assert min(seen.dead_letter_age, seen.oldest_age) >= 90


# ----------------------------------------------------------------------------------------------- one daemon


def look_at(world: World, given: Settings) -> Alerts:
    return Alerts(world.store, given.alerts, sinks(given), list, database="somewhere", stuck_after=600)


def test_a_dead_letter_is_told_to_everybody_once_and_that_it_is_over(
    world: World, webhook: Recorder, mail: PostOffice, sentry: SentryRecorder
) -> None:
    given = settings(
        alert_webhook=f"{webhook.url}/hook?team=payments",
        alert_mail_to="ops@example.com, dev@example.com",
        alert_mail_from="todoku@example.com",
        alert_mail_smtp=mail.url,
        alert_sentry=sentry.dsn,
    )
    alerts = look_at(world, given)
    alerts.look()
    assert (webhook.posted, mail.mails) == ([], [])
    world.publish(1)
    world.settle(world.claim(world.worker()), aborted())
    for _ in range(3):
        alerts.look()
    (posted,) = webhook.posted
    assert posted.path == "/hook?team=payments"
    assert posted.headers["content-type"] == "application/json"
    said = posted.json
    assert (said["alert"], said["state"], said["value"], said["threshold"]) == ("dead_letters", "begun", 1, 0)
    assert said["text"] == "todoku: 1 dead letters wait for a person (somewhere)"
    assert "todoku replay" in said["action"]
    assert datetime.fromisoformat(said["since"]).tzinfo is not None
    (letter,) = mail.mails
    assert letter["Subject"] == "todoku: 1 dead letters wait for a person"
    assert letter["To"] == "ops@example.com, dev@example.com"
    assert "What to do: todoku reasons" in letter.get_content()  # type: ignore[attr-defined]
    (event,) = until(lambda: sentry.items("event"), "an event in Sentry")
    assert event["message"] == said["text"]
    assert event["tags"] == {"alert": "dead_letters", "state": "begun", "database": "somewhere"}
    assert event["level"] == "error"

    world.sql("delete from todoku_delivery")
    world.advance(3600)
    alerts.look()
    assert [posted.json["state"] for posted in webhook.posted] == ["begun", "over"]
    assert [letter["Subject"] for letter in mail.mails][1:] == ["todoku: over: dead_letters"]
    assert until(lambda: sentry.items("event")[1:], "the end in Sentry")[0]["level"] == "info"


def test_a_sink_that_fails_is_told_again_and_costs_the_others_nothing(
    world: World, webhook: Recorder, mail: PostOffice
) -> None:
    given = settings(alert_webhook=webhook.url, alert_mail_to="ops@example.com", alert_mail_smtp=mail.url)
    webhook.statuses = [500, 302]
    mail.refuses = "451 come back later"
    world.publish(1)
    world.settle(world.claim(world.worker()), aborted())
    alerts = look_at(world, given)
    alerts.look()
    assert (len(webhook.posted), mail.mails) == (1, [])
    mail.refuses = None
    for _ in range(3):
        world.advance(60)
        alerts.look()
    assert [posted.json["state"] for posted in webhook.posted] == ["begun"] * 3  # 500, a redirect, and a yes
    assert len(mail.mails) == 1


class Away:
    """A store whose database does not answer. It is its own `statistics`."""

    @property
    def statistics(self) -> Away:
        return self

    def lag(self, **_: object) -> Any:
        raise DatabaseUnavailable("gone")


def test_while_the_database_is_away_the_daemon_tells_what_its_own_counters_say(
    webhook: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S4-43: that is when publishing fails. The daemon sends the alert once it has lasted; here, at once."""
    monkeypatch.setitem(HOLDS, "publish_failure_ratio", 0.0)
    given = settings(alert_webhook=webhook.url)
    metrics = Metrics()
    metrics.add(counting.TERMINAL_FAILED, 1, "SOME_REASON")
    metrics.add(counting.PUBLISHED, 97, "ok")
    metrics.add(counting.PUBLISHED, 3, "error")
    alerts = Alerts(
        Away(),  # type: ignore[arg-type]
        Alerting(thresholds=Thresholds(), webhook=given.alerts.webhook),
        sinks(given),
        lambda: [metrics.dump()],
        database="somewhere",
        stuck_after=600,
    )
    alerts.look()
    alerts.look()
    assert sorted(posted.json["alert"] for posted in webhook.posted) == ["dead_letter_inflow", "publish_failure_ratio"]


def test_a_process_without_a_daemon_raises_its_own_alarm_once(webhook: Recorder) -> None:
    """S4-52: the queue cannot be reached, and whoever called it goes another way."""
    alarm = Alarm(settings(alert_webhook=webhook.url))
    for value in (1, 2, 3):
        thread = alarm.raised("queue_fallback", value)
        assert thread is not None
        thread.join()
    assert [(posted.json["alert"], posted.json["value"]) for posted in webhook.posted] == [("queue_fallback", 1)]
    assert Alarm(settings(alert_queue_fallback="off")).raised("queue_fallback", 5) is None


# ------------------------------------------------------------------------------------------------ a webhook


def test_a_webhook_goes_nowhere_private_unless_that_is_allowed(webhook: Recorder) -> None:
    """webhooks.md §3: alerts are sent under the same guard as deliveries."""
    closed = read_settings({})
    for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "169.254.169.254", "10.0.0.1"):
        with pytest.raises(OSError, match="are forbidden"):
            post(f"http://{host}:{webhook.port}/", b"{}", settings=closed, seconds=60)
    assert webhook.posted == []
    assert post(webhook.url, b"{}", settings=settings(), seconds=60) == 200


def test_a_receiver_that_never_ends_its_answer_is_left_at_the_deadline() -> None:
    ended = threading.Event()
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:

        def drip() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\n")
                while not ended.wait(0.02):
                    try:
                        connection.sendall(b"x: y\r\n")
                    except OSError:
                        return

        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises((TimeoutError, ConnectionError)):
            post(f"http://127.0.0.1:{listening.getsockname()[1]}/", b"{}", settings=settings(), seconds=0.3)
        ended.set()
        socket.create_connection(listening.getsockname()).close()  # if there was no time even to connect
        thread.join()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_receiver_that_says_nothing_is_left_at_the_deadline(scheme: str) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening, pytest.raises((TimeoutError, ConnectionError)):
        post(f"{scheme}://127.0.0.1:{listening.getsockname()[1]}/", b"{}", settings=settings(), seconds=0.2)


def test_nobody_there_is_an_error_of_the_network() -> None:
    with pytest.raises(ConnectionRefusedError):
        post(f"http://127.0.0.1:{free_port()}/", b"{}", settings=settings(), seconds=60)


def test_the_news_is_the_documented_object() -> None:
    assert set(AlertNotice.__struct_fields__) == {
        "text", "alert", "state", "summary", "action", "value", "threshold", "since", "database", "host",
    }  # fmt: skip
