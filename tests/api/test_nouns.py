"""`box.deliveries`, `box.queues`, `box.schedules`: looking after what is stored, from Python, blocking and async."""

from __future__ import annotations

import inspect
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import todoku
from tests.support.world import World
from todoku.core.errors import BlockingCall, InvalidAct, NotThere
from todoku.engine.deliveries import Deliveries
from todoku.engine.queues import Queues
from todoku.engine.schedules import Schedules
from todoku.engine.twins import asynchronous
from todoku.store.deliveries import Delivery

SIGNED = {"by": "ada", "why": "a test"}


@pytest.fixture
def jobs(box: todoku.App) -> tuple[todoku.Job[[int], int], todoku.Job[[int], None]]:
    """One that doubles, and one that always fails for good."""

    @box.job(queue="mail", keep_result=True)
    def double(n: int) -> int:
        return 2 * n

    @box.job(max_attempts=1)
    def fail(n: int) -> None:
        raise todoku.Abort("BAD_DAY" if n % 2 else "BAD_LUCK")

    return double, fail


def dead(box: todoku.App, fail: todoku.Job[[int], None], number: int) -> list[Delivery]:
    """So many dead letters, oldest first."""
    box.enqueue_many([fail.call(n) for n in range(number)], tx=None)
    box.drain()
    return sorted(box.deliveries.find(status="aborted").items, key=lambda each: each.id)


def test_find_pages_through_what_matches_newest_first(box: todoku.App, jobs: Any) -> None:
    double, _ = jobs
    ids = [double.using(key=str(n)).enqueue(n).id for n in range(5)]
    page = box.deliveries.find(queue="mail", limit=3)
    assert [each.message_id for each in page.items] == ids[:1:-1]
    rest = box.deliveries.find(queue="mail", limit=3, cursor=page.next)
    assert [each.message_id for each in rest.items] == ids[1::-1]
    assert rest.next is None
    assert [each.key for each in box.deliveries.find(key="3").items] == ["3"]
    assert [each.key for each in box.deliveries.find(message_id=ids[2]).items] == ["2"]
    assert box.deliveries.find(since=datetime.now(UTC) + timedelta(days=1)).items == ()
    assert box.deliveries.find(destination="nobody").items == ()


def test_get_finds_what_waits_what_is_dead_and_what_succeeded(box: todoku.App, jobs: Any) -> None:
    double, fail = jobs
    (letter,) = dead(box, fail, 1)
    assert box.deliveries.get(letter.id) == letter
    handle = double.enqueue(4)
    (waiting,) = box.deliveries.find(status="pending").items
    assert box.deliveries.get(waiting.id).status == "pending"
    box.drain()
    assert box.deliveries.get(waiting.id).status == "succeeded"
    assert handle.result(timeout=0) == 8
    with pytest.raises(NotThere, match="there is no delivery 999"):
        box.deliveries.get(999)


def test_replay_takes_ids_of_both_kinds_or_a_filter(box: todoku.App, jobs: Any) -> None:
    _, fail = jobs
    letters = dead(box, fail, 4)
    assert box.deliveries.replay(letters[0].id, str(letters[1].message_id), **SIGNED).replayed == 2
    told = box.deliveries.replay(destination="fail", reason="BAD_DAY", dry_run=True, **SIGNED)
    assert (told.matched, told.replayed) == (1, 1)
    assert box.deliveries.replay(reason="BAD_DAY", **SIGNED).replayed == 1
    assert [each.status for each in map(box.deliveries.get, (each.id for each in letters))] == [
        "pending", "pending", "aborted", "pending",
    ]  # fmt: skip
    assert box.replay(letters[2].id, **SIGNED).replayed == 1


def test_cancel_settle_and_purge(box: todoku.App, world: World, jobs: Any) -> None:
    double, _ = jobs
    first, second, third = (double.using(key=key).enqueue(3) for key in "abc")
    assert box.deliveries.cancel(first.id, **SIGNED).changed == 1
    assert first.status() is todoku.Status.ABORTED
    assert box.deliveries.settle(second.id, succeeded=True, result=7, **SIGNED).changed == 1
    assert second.result(timeout=0) == 7
    assert box.deliveries.settle(key="c", succeeded=False, **SIGNED).changed == 1
    assert third.status() is todoku.Status.ABORTED
    assert box.deliveries.purge(key="c", dry_run=True, **SIGNED).changed == 1
    assert third.status() is todoku.Status.ABORTED
    assert box.deliveries.purge(key="c", **SIGNED).changed == 1
    with pytest.raises(todoku.NoSuchMessage):
        third.status()
    assert {row.by for row in world.store.messages.story(first.id).audit} == {"ada"}  # type: ignore[union-attr]


@pytest.mark.parametrize("act", ["replay", "cancel", "purge", "settle"])
def test_an_act_is_signed_and_never_means_everything(box: todoku.App, jobs: Any, act: str) -> None:
    _, fail = jobs
    dead(box, fail, 2)
    more: dict[str, Any] = {"succeeded": False} if act == "settle" else {}
    call = getattr(box.deliveries, act)
    for nothing in ({}, {"reason": None}):
        with pytest.raises(InvalidAct, match=f"{act} needs ids, or a filter"):
            call(**SIGNED, **more, **nothing)
    with pytest.raises(InvalidAct, match="does not say who and why"):
        call(reason="BAD_DAY", by="ada", why=" ", **more)
    with pytest.raises(TypeError, match="why"):
        call(reason="BAD_DAY", by="ada", **more)
    assert len(box.deliveries.find(status="aborted").items) == 2


def test_a_paused_queue_waits_until_it_is_resumed(box: todoku.App, jobs: Any) -> None:
    double, _ = jobs
    box.queues.pause("mail", dry_run=True, **SIGNED)
    assert box.queues.list() == ()
    box.queues.pause("mail", **SIGNED)
    double.enqueue(1)
    assert box.drain() == 0
    assert [(each.name, each.paused) for each in box.queues.list()] == [("mail", True)]
    box.queues.resume("mail", **SIGNED)
    assert box.queues.list() == ()
    assert box.drain() == 1


def test_a_limit_is_of_a_queue_or_of_a_destination(box: todoku.App, jobs: Any) -> None:
    assert box.queues.limit("mail", concurrency=2, rate=5, lasts=timedelta(hours=1), **SIGNED) == "queue"
    assert [(each.name, each.concurrency, each.rate) for each in box.queues.list()] == [("mail", 2, 5.0)]
    assert box.queues.limit("mail", **SIGNED) == "queue"
    assert box.queues.list() == ()
    assert box.queues.limit("double", concurrency=1, of="destination", **SIGNED) == "destination"
    assert box.queues.limit("double", dry_run=True, **SIGNED) == "destination"
    assert box.queues.list() == ()
    with pytest.raises(InvalidAct, match="at least one"):
        box.queues.limit("mail", concurrency=0, **SIGNED)


def test_a_schedule_by_its_name(box: todoku.App, jobs: Any) -> None:
    double, _ = jobs
    box.schedules.add("nightly", double.call(1), cron="0 3 * * *", **SIGNED)
    assert box.schedules.get("nightly") == box.schedules.list()[0]
    with pytest.raises(NotThere, match="no schedule 'weekly'"):
        box.schedules.get("weekly")


async def test_async_code_awaits_the_same_calls(box: todoku.App, jobs: Any) -> None:
    double, _ = jobs
    handle = await double.aenqueue(1)
    page = await box.deliveries.afind(queue="mail")
    assert (await box.deliveries.aget(page.items[0].id)).message_id == handle.id
    await box.queues.apause("mail", **SIGNED)
    assert [each.name for each in await box.queues.alist()] == ["mail"]
    await box.queues.aresume("mail", **SIGNED)
    assert await box.queues.alimit("mail", rate=1, **SIGNED) == "queue"
    assert (await box.deliveries.acancel(handle.id, **SIGNED)).changed == 1
    assert (await box.deliveries.areplay(handle.id, **SIGNED)).replayed == 1
    assert (await box.deliveries.asettle(handle.id, succeeded=False, **SIGNED)).changed == 1
    assert (await box.deliveries.apurge(handle.id, **SIGNED)).changed == 1
    with pytest.raises(BlockingCall, match=r"await box\.deliveries\.afind"):
        box.deliveries.find()
    with pytest.raises(BlockingCall, match=r"await box\.queues\.apause"):
        box.queues.pause("mail", **SIGNED)
    with pytest.raises(BlockingCall, match=r"await box\.deliveries\.areplay"):
        box.replay(reason="TIMEOUT", **SIGNED)


@pytest.mark.parametrize("noun", [Deliveries, Queues, Schedules])
def test_every_call_of_a_noun_has_an_async_form(noun: type) -> None:
    names = [name for name in vars(noun) if not name.startswith("_")]
    blocking = [name for name in names if f"a{name}" in names]
    assert sorted(names) == sorted([*blocking, *(f"a{name}" for name in blocking)])
    for name in blocking:
        assert inspect.getdoc(asynchronous(getattr(noun, name))) == inspect.getdoc(getattr(noun, f"a{name}"))


def test_the_nouns_follow_the_app_to_another_database(box: todoku.App, tmp_path: Any) -> None:
    @box.job
    def work() -> None: ...

    work.enqueue()
    box.connect(f"sqlite:///{tmp_path}/other.db")
    box.migrate()
    assert box.deliveries.find().items == ()
    box.queues.pause("default", **SIGNED)
    assert [each.name for each in box.queues.list()] == ["default"]
