"""The testing kit says what happened, moves the clock and crashes workers, on both databases."""

from __future__ import annotations

import base64
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import todoku
from tests.support.world import Backend
from tests.testing.conftest import OrderCreated, Shop
from todoku.core.errors import InvalidAct, InvalidMessage, InvalidSetting
from todoku.testing import (
    assert_enqueued,
    assert_not_enqueued,
    assert_not_published,
    assert_published,
    crash,
    empty,
    enqueued,
    fire,
    fresh,
    frozen,
    inline,
    lose_lease,
    published,
)

# ------------------------------------------------------------------------------------------ what was enqueued


def test_what_was_enqueued_is_found_with_its_arguments_before_and_after_it_ran(shop: Shop) -> None:
    assert_not_enqueued(shop.welcome)
    shop.welcome.using(priority=3, key="7").enqueue(7)
    found = assert_enqueued(shop.welcome, user_id=7)
    assert (found.arguments, found.queue, found.priority, found.key, found.status) == (
        {"user_id": 7, "hobby": None}, "mail", 3, "7", "pending",
    )  # fmt: skip
    assert_enqueued(shop.welcome, hobby=None)  # a default is an argument, too
    shop.box.drain()
    assert [each.status for each in enqueued(shop.welcome)] == ["succeeded"]
    assert_enqueued(shop.welcome, user_id=7)


def test_a_failed_assertion_names_what_differs_and_what_there_is(shop: Shop) -> None:
    shop.welcome.enqueue(8, hobby="go")
    shop.welcome.enqueue(9, hobby="chess")
    with pytest.raises(AssertionError) as failed:
        assert_enqueued(shop.welcome, user_id=7, hobby="chess")
    assert str(failed.value).splitlines() == [
        'welcome(user_id=7, hobby="chess") was not enqueued',
        '  the closest of 2 is welcome(user_id=9, hobby="chess") [pending, queue mail]; it differs in',
        "    user_id: 9 instead of 7",
        "  stored, oldest first:",
        '    welcome(user_id=8, hobby="go") [pending, queue mail]',
        '    welcome(user_id=9, hobby="chess") [pending, queue mail]',
    ]
    with pytest.raises(AssertionError, match=r"welcome\(user_id=8\) was enqueued"):
        assert_not_enqueued(shop.welcome, user_id=8)
    with pytest.raises(AssertionError, match=r"there is no committed one; committed for others: welcome \(2\)"):
        assert_enqueued(shop.flaky)


def test_an_argument_the_job_does_not_have_is_a_mistake_in_the_test(shop: Shop) -> None:
    """Or a misspelt assert_not_enqueued would be green for ever."""
    with pytest.raises(InvalidMessage, match="welcome has no argument usr_id"):
        assert_not_enqueued(shop.welcome, usr_id=7)
    with pytest.raises(InvalidMessage, match="OrderCreated has no field id"):
        assert_not_published(shop.box, OrderCreated, id=7)


def test_what_is_rolled_back_was_not_enqueued(shop: Shop) -> None:
    with closing(shop.connect()) as db:
        shop.welcome.using(tx=db).enqueue(7)
        db.rollback()
    assert_not_enqueued(shop.welcome)


def test_what_was_published_is_found_by_topic_class_or_event(shop: Shop) -> None:
    event = OrderCreated(7, {"city": "Oslo", "zip": "0150"})
    shop.box.publish(event, tx=None)
    found = assert_published(shop.box, event)
    assert set(found.destinations) == {"points", "warehouse"}
    assert published(shop.box, "order.created") == [found] == [assert_published(shop.box, OrderCreated, order_id=7)]
    with pytest.raises(AssertionError) as failed:
        assert_published(shop.box, OrderCreated, address={"city": "Rome", "zip": "0150"})
    assert '    address.city: "Oslo" instead of "Rome"' in str(failed.value).splitlines()
    with pytest.raises(AssertionError, match="was published"):
        assert_not_published(shop.box, "order.created", order_id=7)
    assert_not_published(shop.box, OrderCreated, order_id=8)


# ------------------------------------------------------------------------------------------------- the clock


def test_I12_a_delayed_job_runs_when_the_frozen_clock_has_been_moved_there(shop: Shop) -> None:
    with frozen(shop.box) as clock:
        shop.welcome.using(delay=3600).enqueue(7)
        assert shop.box.drain() == 0
        clock.tick(3599)
        assert shop.box.drain() == 0
        clock.tick(timedelta(seconds=1))
        assert shop.box.drain() == 1
    assert shop.done == ["welcome 7"]
    assert abs(shop.box.store.ping() - datetime.now(UTC).timestamp()) < 60  # it goes again


def test_a_retry_waits_for_the_frozen_clock_and_dies_at_its_last_attempt(shop: Shop) -> None:
    with frozen(shop.box) as clock:
        handle = shop.flaky.enqueue()
        assert shop.box.drain() == 1
        assert handle.status() is todoku.Status.FAILED
        clock.tick(66)  # 60 s and the jitter of up to a tenth
        assert shop.box.drain() == 1
        assert handle.status() is todoku.Status.ABORTED
    assert shop.done == ["flaky", "flaky"]


def test_I12_a_lease_ends_when_the_clock_says_so(shop: Shop) -> None:
    with frozen(shop.box, datetime(2031, 3, 1, tzinfo=UTC)) as clock:
        shop.welcome.enqueue(7)
        crash(shop.box, at="claim.after_commit")
        assert shop.box.store.leases.reclaim().freed == 0
        clock.tick(shop.box.settings.lease_sec)
        assert shop.box.store.leases.reclaim().freed == 1
        assert clock.now == datetime(2031, 3, 1, tzinfo=UTC) + timedelta(seconds=shop.box.settings.lease_sec)


def test_the_clock_goes_forward_and_knows_time_zones(shop: Shop) -> None:
    with frozen(shop.box, datetime(2031, 3, 1, tzinfo=UTC)) as clock:
        with pytest.raises(InvalidAct, match="only move forward"):
            clock.move_to(datetime(2030, 3, 1, tzinfo=UTC))
        with pytest.raises(InvalidAct, match="no time zone"):
            clock.move_to(datetime(2032, 3, 1))  # noqa: DTZ001 - that is the mistake
        clock.move_to(datetime(2032, 3, 1, tzinfo=UTC))
        assert shop.welcome.enqueue(7).status() is todoku.Status.PENDING
        assert enqueued(shop.welcome)[0].run_at == datetime(2032, 3, 1, tzinfo=UTC)


def test_a_schedule_fires_when_the_frozen_clock_has_come_to_its_slot(shop: Shop) -> None:
    @shop.box.cron("0 9 * * *", tz="Asia/Tokyo")
    def report() -> None:
        shop.note("report")

    with frozen(shop.box, datetime(2031, 3, 1, tzinfo=UTC)) as clock:
        shop.box.migrate()  # stores what was declared after the database was made
        fire(shop.box)
        assert shop.box.drain() == 0
        clock.tick(86_400)  # past nine in Tokyo, which is midnight in UTC
        fire(shop.box)
        fire(shop.box)
        assert shop.box.drain() == 1
    assert shop.done == ["report"]


# ----------------------------------------------------------------------------------------------- the crash


def test_I13_killed_before_the_settle_a_job_runs_again_and_only_then(shop: Shop) -> None:
    shop.welcome.enqueue(7)
    crash(shop.box, at="settle.before_commit")
    assert [each.status for each in enqueued(shop.welcome)] == ["sending"]
    assert shop.box.drain() == 0  # its lease has not ended (I3)
    assert lose_lease(shop.box) == 1
    assert shop.box.drain() == 1
    assert shop.done == ["welcome 7", "welcome 7"]


def test_killed_after_the_settle_a_job_does_not_run_again(shop: Shop) -> None:
    shop.welcome.enqueue(7)
    crash(shop.box, at="settle.after_commit")
    lose_lease(shop.box)
    assert shop.box.drain() == 0
    assert shop.done == ["welcome 7"]


def test_I6_a_transactional_consumer_that_is_killed_has_one_effect(shop: Shop) -> None:
    shop.box.publish(OrderCreated(7, {}), tx=None)
    crash(shop.box, at="transact.before_commit")
    assert shop.points() == []
    lose_lease(shop.box)
    shop.box.drain()
    assert shop.points() == [7]


def test_I3_whoever_lost_its_lease_while_it_ran_settles_nothing(shop: Shop) -> None:
    @shop.box.job(queue="late")
    def late() -> None:
        shop.note("late")
        if len(shop.done) == 1:
            assert lose_lease(shop.box) == 1

    handle = late.enqueue()
    shop.box.drain()
    shop.box.drain()
    assert shop.done == ["late", "late"]
    assert handle.status() is todoku.Status.SUCCEEDED


def test_a_crash_that_does_not_happen_is_a_failure(shop: Shop) -> None:
    with pytest.raises(AssertionError, match=r"without reaching settle\.before_commit: check that a delivery was due"):
        crash(shop.box)
    with pytest.raises(InvalidSetting, match="is not a failpoint"):
        crash(shop.box, at="settle.sometime")


async def test_an_async_test_crashes_and_drains_as_well(shop: Shop) -> None:
    await shop.double.aenqueue(2)
    crash(shop.box)
    lose_lease(shop.box)
    assert await shop.box.adrain() == 1


# -------------------------------------------------------------------------------------------- the database


def test_what_is_encrypted_is_seen_by_who_has_the_key(
    backend: Backend, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data key of another database is not used in this one."""
    monkeypatch.setenv("TODOKU_MASTER_KEYS", f"first:{base64.b64encode(bytes(range(32))).decode()}")
    box = todoku.App("sqlite:///never-opened.db")

    @box.job(encrypted=True)
    def secret(pin: str) -> None: ...

    for pin in ("1234", "5678"):
        with fresh(box, url):
            secret.enqueue(pin)
            assert_enqueued(secret, pin=pin)
            assert box.drain() == 1
        with inline(box):
            secret.enqueue(pin)


def test_an_emptied_database_remembers_nothing(shop: Shop) -> None:
    """Not the keys either: the next test may use them again."""
    shop.welcome.using(idempotency_key="once").enqueue(7)
    shop.flaky.enqueue()
    crash(shop.box, at="claim.after_commit")
    empty(shop.box)
    assert shop.box.store.leases.workers() == ()
    assert_not_enqueued(shop.flaky)
    assert not shop.welcome.using(idempotency_key="once").enqueue(7).duplicate
    assert shop.box.drain() == 1


def test_two_tests_share_nothing_and_the_app_comes_home(backend: Backend, url: str) -> None:
    box = todoku.App("sqlite:///never-opened.db")

    @box.job
    def seen() -> None: ...

    for _ in range(2):
        with fresh(box, url) as inside:
            assert inside is box
            assert_not_enqueued(seen)
            seen.enqueue()
            assert_enqueued(seen)
    assert box.settings.database == "sqlite:///never-opened.db"


def test_a_file_that_was_there_is_kept_and_one_with_messages_is_refused(sqlite_url: str, tmp_path: Path) -> None:
    box = todoku.App("sqlite:///never-opened.db")
    with closing(sqlite3.connect(tmp_path / "todoku.db")) as db:
        db.execute("create table mine (id integer)")
    with fresh(box, sqlite_url):
        pass
    with pytest.raises(InvalidAct, match="already has todoku"), fresh(box, sqlite_url):
        pass
    with closing(sqlite3.connect(tmp_path / "todoku.db")) as db:
        assert db.execute("select * from mine").fetchall() == []
