"""Schedules under real daemons: each slot is fired once, whoever dies meanwhile."""

from __future__ import annotations

import os
import signal
from collections import Counter
from contextlib import suppress
from datetime import datetime, timedelta

import pytest

from tests.daemon.running import ARMED, Shop, until

pytestmark = pytest.mark.slow

TICKING = """
from datetime import timedelta
import todoku

box = todoku.App()

@box.every(1, missed="all")
async def tick(ctx: todoku.Context) -> None: ...
"""


def slots(shop: Shop) -> list[datetime]:
    """The slots that were fired, one for each message, in the order they were."""
    rows = shop.box.store.attempts.tail(since=0, limit=10_000)
    stories = [
        shop.box.store.messages.story(row.message_id) for row in rows if row.what == "published" and row.message_id
    ]
    headers = [story.message.headers for story in stories if story is not None]
    return [datetime.fromisoformat(str(text).partition('scheduled-at":"')[2].partition('"')[0]) for text in headers]


def test_I3_three_daemons_fire_each_slot_once_while_one_after_the_other_is_killed(shop: Shop) -> None:
    """Issue 4: schedules with three daemons. Slots a second apart, kill -9 in between, and no slot twice or missing."""
    (shop.home / "shop.py").write_text(TICKING)
    daemons = [shop.start("run", "--app", "shop:box", "--workers", "1") for _ in range(3)]
    for daemon in daemons:
        daemon.until_ready()
    for victim in daemons[:2]:
        fired = len(slots(shop))
        until(lambda: len(slots(shop)) >= fired + 2, "two more slots to be fired")  # noqa: B023 - runs at once
        (worker,) = victim.workers()
        victim.process.kill()  # first: it would start another worker
        victim.process.wait()
        with suppress(ProcessLookupError):  # which leaves by itself when its supervisor is gone
            os.kill(worker["pid"], signal.SIGKILL)
    fired = len(slots(shop))
    until(lambda: len(slots(shop)) >= fired + 2, "the last daemon to go on alone")
    assert daemons[2].stop() == 0
    found = slots(shop)
    assert [slot for slot, number in Counter(found).items() if number > 1] == []
    assert found == [found[0] + timedelta(seconds=number) for number in range(len(found))]
    (schedule,) = shop.box.schedules.list()
    assert (schedule.last_run_at, schedule.next_run_at) == (found[-1], found[-1] + timedelta(seconds=1))


def test_a_daemon_that_dies_in_its_firing_leaves_the_slot_to_another(shop: Shop) -> None:
    """I2: killed between the publish and the commit, it has published nothing, and moved nothing on."""
    (shop.home / "shop.py").write_text(TICKING)
    dying = shop.start(
        "run", "--app", "shop:box", "--workers", "1", module=ARMED, TODOKU_FAILPOINTS="fire.before_commit=kill"
    )
    until(lambda: dying.events("WORKER_DIED"), "a worker to die in its firing")
    dying.process.kill()
    assert slots(shop) == []
    shop.run("--workers", "1")
    found = until(lambda: found if len(found := slots(shop)) >= 3 else None, "another to fire")
    assert found == [found[0] + timedelta(seconds=number) for number in range(len(found))]
