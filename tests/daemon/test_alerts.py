"""A daemon tells what is wrong by itself (DESIGN §8, S4-34, S4-36): once, however many daemons there are."""

from __future__ import annotations

import pytest

from tests.daemon.running import Daemon, Shop, until
from tests.support.recording import post_office, recorder, sentry_recorder
from tests.support.world import World, aborted


def let_die(shop: Shop) -> None:
    """What waits becomes a dead letter."""
    world = World("sqlite" if shop.url.startswith("sqlite") else "postgres", shop.url)
    try:
        world.settle(world.claim(world.worker()), aborted())
    finally:
        world.close()


@pytest.mark.slow
def test_two_daemons_tell_of_a_dead_letter_once_and_once_that_it_is_over(shop: Shop) -> None:
    job = shop.box.jobs["quick"].enqueue(1)
    let_die(shop)
    with recorder() as webhook, post_office() as mail, sentry_recorder() as sentry:
        daemons = [
            shop.run(
                TODOKU_ALERT_WEBHOOK=webhook.url,
                TODOKU_ALERT_MAIL_TO="ops@example.com",
                TODOKU_ALERT_MAIL_SMTP=mail.url,
                TODOKU_ALERT_SENTRY=sentry.dsn,
                TODOKU_ALERT_INTERVAL_SEC="0.5",  # what nobody sees for four of them is over: more than a stall
                TODOKU_HTTP_LOOPBACK="1",
                TODOKU_PROCESSES="1",
            )
            for _ in range(2)
        ]
        until(lambda: webhook.posted and mail.mails and sentry.items("event"), "everybody to be told")
        assert shop.box.replay(job.id, by="ana", why="it may run after all").replayed == 1

        def told() -> tuple[int, ...]:
            return len(webhook.posted), len(mail.mails), len(sentry.items("event")), len(states(daemons))

        until(lambda: min(told()) > 1, "everybody to be told that it is over")
        assert all(daemon.stop() == 0 for daemon in daemons)
        assert told() == (2, 2, 2, 2)
        assert [(posted.json["alert"], posted.json["state"]) for posted in webhook.posted] == [
            ("dead_letters", "begun"),
            ("dead_letters", "over"),
        ]
        assert [letter["Subject"] for letter in mail.mails] == [
            "todoku: 1 dead letters wait for a person",
            "todoku: over: dead_letters",
        ]
    assert sorted(states(daemons)) == ["begun", "over"]


def states(daemons: list[Daemon]) -> list[str]:
    """What the logs say of dead letters; each line is in the log of the daemon that told it."""
    lines = [line for daemon in daemons for line in daemon.events("ALERT")]
    return [line["state"] for line in lines if line["alert"] == "dead_letters"]


def test_without_a_sink_an_alert_is_a_line_in_the_log(shop: Shop) -> None:
    shop.enqueue("quick")
    let_die(shop)
    daemon = shop.run(TODOKU_ALERT_INTERVAL_SEC="0.1")
    (line,) = until(lambda: daemon.events("ALERT"), "the line")
    assert (line["level"], line["alert"], line["state"], line["value"]) == ("warning", "dead_letters", "begun", 1)


def test_a_threshold_that_cannot_be_read_stops_the_daemon_before_it_starts(shop: Shop) -> None:
    daemon = shop.start("run", "--app", "shop:box", TODOKU_ALERT_LAG="many")
    assert daemon.exit_code() != 0
    assert "alert_lag cannot be 'many'" in daemon.err + daemon.out
