"""Callers that publish at the same time share a commit, and nothing else: no error, and no false success (I1, I2)."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import todoku
from tests.engine.test_telemetry import counted
from tests.support.world import World
from todoku.core.message import Draft, Message
from todoku.engine.group_commit import GroupCommit
from todoku.engine.publish import MessageOptions
from todoku.store import failpoint

Outcome = list[Message] | BaseException


class Gate:
    """Counts commits, and holds the first one up until the others have come."""

    def __init__(self) -> None:
        self.commits = 0
        self.reached = threading.Event()
        self.open = threading.Event()

    def __call__(self) -> None:
        self.commits += 1
        self.reached.set()
        assert self.open.wait(60)


@pytest.fixture
def box(world: World) -> Iterator[todoku.App]:
    box = todoku.App(world.url)
    box.route("**", to=todoku.log(), name="warehouse")
    yield box
    box.close()


def drafted(box: todoku.App, n: int, key: str | None = None, *, lane: str | None = None) -> Draft:
    return box.outbox.draft("order.created", {"n": n}, MessageOptions(idempotency_key=key, key=lane), box.routes)


def gathered(
    box: todoku.App, first: list[Draft], *others: list[Draft], gate: Gate, meanwhile: Callable[[], None] | None = None
) -> list[Outcome]:
    """What becomes of callers of whom the first is committing while the others come."""

    async def run() -> list[Outcome]:
        together = GroupCommit(box.outbox)
        tasks = [asyncio.create_task(together.put(first))]
        await asyncio.to_thread(gate.reached.wait, 60)
        tasks += [asyncio.create_task(together.put(drafts)) for drafts in others]
        await asyncio.sleep(0)  # each of them has put itself in the line
        if meanwhile is not None:
            meanwhile()
        gate.open.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(run())


@contextmanager
def gated() -> Iterator[Gate]:
    gate = Gate()
    with failpoint.armed("publish.before_commit", gate):
        yield gate


def stored(world: World) -> set[str]:
    return {str(found.message_id) for found in world.deliveries()}


def test_whoever_waits_when_a_commit_ends_is_in_the_next_one(box: todoku.App, world: World) -> None:
    with gated() as gate:
        outcomes = gathered(
            box, [drafted(box, 0)], *([drafted(box, n), drafted(box, -n)] for n in range(1, 41)), gate=gate
        )
    assert gate.commits == 2  # the one that came alone, and all who came meanwhile
    messages = [message for outcome in outcomes if isinstance(outcome, list) for message in outcome]
    assert len(messages) == 81
    assert {str(message.id) for message in messages} == stored(world)
    assert counted(box.telemetry)["outbox_publish_total{ok}"] == 81


def test_a_caller_that_goes_on_at_once_is_in_the_next_commit(box: todoku.App, world: World) -> None:
    async def run() -> None:
        together = GroupCommit(box.outbox)

        async def twice() -> None:
            await together.put([drafted(box, 0)])
            await together.put([drafted(box, 1)])

        first = asyncio.create_task(twice())
        await asyncio.to_thread(gate.reached.wait, 60)
        second = asyncio.create_task(together.put([drafted(box, 2)]))
        await asyncio.sleep(0)
        gate.open.set()
        await asyncio.gather(first, second)

    with gated() as gate:
        asyncio.run(run())
    assert gate.commits == 2  # the one who waited did not start the next commit without the one who was answered
    assert len(stored(world)) == 3


def test_each_caller_gets_its_own_messages_in_its_own_order(box: todoku.App) -> None:
    mine = [[drafted(box, n) for _ in range(n)] for n in range(1, 6)]
    with gated() as gate:
        outcomes = gathered(box, *mine, gate=gate)
    assert [[m.id for m in outcome] for outcome in outcomes if isinstance(outcome, list)] == [
        [draft.id for draft in drafts] for drafts in mine
    ]


def test_a_conflict_is_its_callers_alone(box: todoku.App, world: World) -> None:
    """One bad message never costs its neighbours anything (I13)."""
    box.publish("order.created", {"n": 0}, tx=None, idempotency_key="taken")
    good = [[drafted(box, n, f"k{n}")] for n in range(1, 20)]
    with gated() as gate:
        outcomes = gathered(box, [drafted(box, -1)], *good[:7], [drafted(box, 99, "taken")], *good[7:], gate=gate)
    conflicts = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, todoku.IdempotencyConflict)]
    assert conflicts == [8]
    assert sum(isinstance(outcome, list) for outcome in outcomes) == 20
    assert len(stored(world)) == 21
    assert counted(box.telemetry)["idempotency_conflicts_total"] == 1


def test_two_callers_with_one_key_in_one_commit_are_one_message(box: todoku.App, world: World) -> None:
    with gated() as gate:
        outcomes = gathered(
            box, [drafted(box, 0)], [drafted(box, 1, "k")], [drafted(box, 1, "k")], [drafted(box, 2, "k")], gate=gate
        )
    _, (one,), (other,), conflict = outcomes  # type: ignore[misc]
    assert (one.id == other.id, one.duplicate, other.duplicate) == (True, False, True)
    assert isinstance(conflict, todoku.IdempotencyConflict)
    assert len(stored(world)) == 2


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_lost_connection_fails_all_of_its_batch_and_a_key_makes_repeating_safe(
    box: todoku.App, world: World, side: str
) -> None:
    """Nobody is told a success that may be none; repeated, each message is there once."""
    drafts = [[drafted(box, n, f"k{n}")] for n in range(10)]

    async def put() -> list[Outcome]:
        together = GroupCommit(box.outbox)
        with failpoint.armed(f"publish.{side}_commit", failpoint.lose):
            lost = await asyncio.gather(*map(together.put, drafts), return_exceptions=True)
        assert all(isinstance(outcome, todoku.DatabaseUnavailable) for outcome in lost)
        again = [[drafted(box, n, f"k{n}")] for n in range(10)]
        return await asyncio.gather(*map(together.put, again), return_exceptions=True)

    outcomes = asyncio.run(put())
    messages = [message for outcome in outcomes if isinstance(outcome, list) for message in outcome]
    assert [message.duplicate for message in messages] == [side == "after"] * 10
    assert {str(message.id) for message in messages} == stored(world)


def test_a_caller_that_goes_away_takes_nobody_with_it(box: todoku.App, world: World) -> None:
    async def run() -> list[Message]:
        together = GroupCommit(box.outbox)
        first = asyncio.create_task(together.put([drafted(box, 0)]))
        await asyncio.to_thread(gate.reached.wait, 60)
        leaving = asyncio.create_task(together.put([drafted(box, 1)]))
        staying = asyncio.create_task(together.put([drafted(box, 2)]))
        await asyncio.sleep(0)
        leaving.cancel()
        first.cancel()  # in the middle of its commit: it is stored all the same
        gate.open.set()
        return await staying

    with gated() as gate:
        (message,) = asyncio.run(run())
    assert str(message.id) in stored(world)
    assert len(stored(world)) == 2


def test_one_can_be_used_from_one_event_loop_after_the_other(box: todoku.App, world: World) -> None:
    together = GroupCommit(box.outbox)
    for n in range(3):
        asyncio.run(_alone(together.put([drafted(box, n)])))
    assert len(stored(world)) == 3
    assert asyncio.run(_alone(together.put([]))) == []


async def _alone(put: Awaitable[list[Message]]) -> list[Message]:
    return await put


@pytest.mark.postgres
def test_a_lane_that_somebody_holds_keeps_nobody_from_publishing_elsewhere(postgres_url: str) -> None:
    """A transaction that has published into a lane locks it until it commits (I10); the rest goes on meanwhile."""
    box = todoku.App(postgres_url)
    box.route("**", to=todoku.log(), name="warehouse", ordered=True)
    world = World("postgres", postgres_url)

    async def run() -> tuple[list[Message], list[Message]]:
        together = GroupCommit(box.outbox)
        with world.connect() as holding:
            box.outbox.put([drafted(box, 0, lane="o1")], holding, twin="")
            blocked = asyncio.create_task(together.put([drafted(box, 1, lane="o1")]))
            await asyncio.to_thread(world.until_blocked)
            free = await together.put([drafted(box, 2)])
            assert not blocked.done()
        return free, await blocked

    try:
        free, blocked = asyncio.run(run())
        assert {str(message.id) for message in (*free, *blocked)} < stored(world)
    finally:
        box.close()
        world.close()


@pytest.mark.parametrize("side", ["before", "after"])
def test_what_was_acknowledged_before_a_kill_at_a_commit_is_there(world: World, side: str, tmp_path: Path) -> None:
    """kill -9 around a commit that many share: every put that returned is stored (I1)."""
    dying = subprocess.run(
        [sys.executable, "-m", "tests.support.acknowledging", world.url, f"publish.{side}_commit", "20"],
        stdout=subprocess.PIPE, timeout=120, check=False, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert dying.returncode == -9
    acknowledged = {line.split()[0].decode() for line in dying.stdout.splitlines()}
    assert len(acknowledged) > 20  # more than commits: they were shared
    missing = acknowledged - stored(world)
    assert not missing
