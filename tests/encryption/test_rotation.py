"""Rotation survives kill -9, goes on where it was, and touches no message."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter

import pytest

import todoku
from tests.daemon.running import ARMED
from tests.encryption.conftest import Boxes
from tests.support.world import World
from todoku.engine.encryption.key_rotation import BATCH
from todoku.engine.encryption.sealer import Sealer

NUMBER = 2 * BATCH + 10


def rotation(world: World, *keys: str, failpoints: str = "") -> subprocess.CompletedProcess[str]:
    """`todoku encryption-keys rotate` in a process of its own, which dies where the failpoints say."""
    return subprocess.run(
        [sys.executable, "-m", ARMED, "encryption-keys", "rotate", "--by", "ada", "--why", "autumn", "--json"],
        env={**os.environ, "TODOKU_DATABASE": world.url, "TODOKU_MASTER_KEYS": ",".join(keys),
             "TODOKU_FAILPOINTS": failpoints},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def under(world: World) -> Counter[str]:
    """How many data keys are wrapped by which master key."""
    return Counter(dict(world.sql("select master_key_id, count(*) from todoku_data_key group by master_key_id")))


def messages(world: World) -> str:
    """A digest of the message table, down to the versions of its rows where the database has such."""
    version = "xmin::text, ctid::text, " if world.backend == "postgres" else ""
    rows = world.sql(f"select {version}seq, id, payload_bytes, content_type, digest from todoku_message order by seq")
    return hashlib.sha256(repr(rows).encode()).hexdigest()


@pytest.mark.parametrize("where", ["before_commit", "after_commit"])
def test_rotation_survives_kill_9_and_updates_no_message(
    boxes: Boxes, world: World, old: str, new: str, where: str
) -> None:
    """Issue 4: killed between batches, or with a batch on its way, the next run does the rest."""
    box, seen = boxes(old), []

    @box.job(encrypted=True)
    async def greet(number: int) -> None: ...

    box.outbox.sealer = Sealer(box.settings, most=1)
    box.outbox.sealer.declare("greet")
    box.enqueue_many([greet.call(number) for number in range(NUMBER)], tx=None)
    before = messages(world)
    assert under(world) == {"2026-05": NUMBER}

    killed = rotation(world, new, old, failpoints=f"rewrap.{where}=kill")
    assert killed.returncode == -9
    done = BATCH if where == "after_commit" else 0
    assert under(world) == Counter({"2026-11": done, "2026-05": NUMBER - done})

    ended = rotation(world, new, old)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert f'"keys":{NUMBER - done}' in ended.stdout
    assert under(world) == {"2026-11": NUMBER}
    assert messages(world) == before
    audited = world.sql(
        "select by, why, count(*) from todoku_audit where action = 'rotate to 2026-11' group by by, why"
    )
    assert audited == [("ada", "autumn", NUMBER)]

    only_new = boxes(new)

    @only_new.job("greet", encrypted=True)
    async def greeted(number: int) -> None:
        seen.append(number)

    only_new.drain()
    assert sorted(seen) == list(range(NUMBER))


def test_two_who_rotate_at_once_wrap_each_key_once(boxes: Boxes, world: World, old: str, new: str) -> None:
    box: todoku.App = boxes(old)

    @box.job(encrypted=True)
    async def greet(number: int) -> None: ...

    box.outbox.sealer = Sealer(box.settings, most=1)
    box.outbox.sealer.declare("greet")
    box.enqueue_many([greet.call(number) for number in range(NUMBER)], tx=None)
    environ = {**os.environ, "TODOKU_DATABASE": world.url, "TODOKU_MASTER_KEYS": f"{new},{old}"}
    command = [sys.executable, "-m", "todoku", "encryption-keys", "rotate", "--by", "ada", "--why", "autumn"]
    both = [subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    for one in both:
        assert one.communicate(timeout=120)[1] == b""
        assert one.returncode == 0
    assert under(world) == {"2026-11": NUMBER}
    assert world.sql("select count(*) from todoku_audit where action = 'rotate to 2026-11'") == [(NUMBER,)]
