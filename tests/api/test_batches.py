"""Batches with a completion job, and chains: what follows is called once, whoever crashes."""

from __future__ import annotations

import asyncio
import base64
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from click.testing import CliRunner

import todoku
from tests.support.world import SOMEBODY, World
from todoku.cli.main import cli
from todoku.core.limit import Limit
from todoku.store.deliveries import Filter
from todoku.testing import inline

ROOT = Path(__file__).parents[2]


@pytest.fixture
def seen(box: todoku.App) -> list[str]:
    """What the jobs `step` and `finish` were called with, in order."""
    seen: list[str] = []

    @box.job(max_attempts=2, backoff=todoku.table(0), keep_result=True)
    async def step(ctx: todoku.Context, name: str, fails: int = 0) -> str:
        if ctx.attempt <= fails:
            raise ValueError("not yet")
        seen.append(name)
        return name

    @box.job
    async def finish(what: str) -> None:
        seen.append(what)

    return seen


def step(box: todoku.App, name: str, **options: Any) -> todoku.Call[Any]:
    return box.jobs["step"].call(name, **options)


def test_a_batch_calls_what_follows_when_all_have_ended(box: todoku.App, seen: list[str]) -> None:
    calls = [step(box, "a"), step(box, "b", fails=1), step(box, "dead", fails=9)]
    batch = box.batch(calls, then=box.jobs["finish"].call("done"), tx=None)
    status = batch.status()
    assert (status.total, status.open, status.done, status.on) == (3, 3, False, "finished")
    assert [handle.status() for handle in batch.handles] == ["pending"] * 3
    box.drain()
    assert sorted(seen) == ["a", "b", "done"]
    assert seen[-1] == "done"
    status = box.batch_status(batch.id)
    assert (status.open, status.succeeded, status.aborted, status.done) == (0, 2, 1, True)
    assert batch.handles[0].result(timeout=0) == "a"


def test_a_batch_that_waits_for_success_is_completed_by_a_replay(
    box: todoku.App, world: World, seen: list[str]
) -> None:
    batch = box.batch(
        [step(box, "a"), step(box, "late", fails=2)],
        then=box.jobs["finish"].call("done"),
        on="succeeded",
        tx=None,
    )
    box.drain()
    assert (seen, batch.status().done) == (["a"], False)
    world.sql("update todoku_delivery set max_attempts = 3")
    box.replay(batch.handles[1].id, by="ada", why="mended")
    box.drain()
    assert seen == ["a", "late", "done"]
    assert batch.status().done


def test_a_batch_commits_with_the_callers_rows_or_not_at_all(box: todoku.App, world: World, seen: list[str]) -> None:
    """I2: batch, members and business rows are one commit."""
    connection = world.connect()
    try:
        if world.backend == "sqlite":
            connection.execute("begin")
        lost = box.batch([step(box, "a")], then=box.jobs["finish"].call("done"), tx=connection)
        connection.rollback()
        with pytest.raises(todoku.NoSuchMessage, match="rolled back"):
            lost.status()
        if world.backend == "sqlite":
            connection.execute("begin")
        kept = box.batch([step(box, "b")], then=box.jobs["finish"].call("done"), tx=connection)
        links = box.chain(step(box, "c"), step(box, "d"), tx=connection)
        connection.commit()
    finally:
        connection.close()
    box.drain()
    assert kept.status().done
    assert links[1].result(timeout=0) == "d"
    assert sorted(seen) == ["b", "c", "d", "done"]


def test_an_empty_batch_is_complete_at_once(box: todoku.App, seen: list[str]) -> None:
    batch = box.batch([], then=box.jobs["finish"].call("done"), tx=None)
    status = batch.status()
    assert (batch.handles, status.total, status.open, status.done) == ((), 0, 0, True)
    assert box.batch([], tx=None).status().done
    box.drain()
    assert seen == ["done"]


def test_async_code_has_the_same(box: todoku.App, seen: list[str]) -> None:
    async def main() -> None:
        batch = await box.abatch([step(box, "a")], then=box.jobs["finish"].call("done"), tx=None)
        links = await box.achain(step(box, "b"), step(box, "c"), tx=None)
        assert (await batch.astatus()).open == 1
        await box.adrain()
        assert (await box.abatch_status(batch.id)).done
        assert await links[-1].aresult(timeout=0) == "c"
        with pytest.raises(todoku.TodokuError, match=r"await batch\.astatus"):
            batch.status()

    asyncio.run(main())
    assert sorted(seen) == ["a", "b", "c", "done"]


def test_a_thousand_calls_over_two_workers_complete_once(box: todoku.App, seen: list[str]) -> None:
    batch = box.batch(
        [step(box, f"n{n}", fails=int(n % 7 == 0)) for n in range(1000)], then=box.jobs["finish"].call("done"), tx=None
    )

    async def both() -> None:
        await asyncio.gather(*(box.worker().run(until_idle=True) for _ in range(2)))

    asyncio.run(both())
    box.drain()
    assert Counter(seen) == Counter([*(f"n{n}" for n in range(1000)), "done"])
    assert seen[-1] == "done"
    status = batch.status()
    assert (status.succeeded, status.aborted, status.done) == (1000, 0, True)


def test_ordered_limited_and_transactional_members_count_like_any_other(box: todoku.App, world: World) -> None:
    ran: list[str] = []

    @box.job(ordered=True)
    async def in_turn(n: int) -> None:
        ran.append(f"ordered {n}")

    @box.job(transactional=True)
    def with_rows(ctx: todoku.Context) -> None:
        ctx.tx.execute("insert into my_rows values (1)")

    @box.job(per_key=Limit(concurrency=1))
    async def keyed() -> None:
        ran.append("keyed")

    @box.job(queue="narrow")
    async def limited() -> None:
        ran.append("limited")

    @box.job(ordered=True)
    async def last() -> None:
        ran.append("last")

    world.sql("create table my_rows (n integer)")
    world.store.limits.set("narrow", SOMEBODY, of="queue", concurrency=1, rate=None)
    calls = [in_turn.using(key="k").call(n) for n in range(3)]
    calls += [with_rows.call(), with_rows.call(), limited.call(), limited.call(), keyed.using(key="k").call()]
    batch = box.batch(calls, then=last.using(key="k").call(), tx=None)
    box.drain()
    assert sorted(ran[:-1]) == ["keyed", "limited", "limited", "ordered 0", "ordered 1", "ordered 2"]
    assert [name for name in ran if "ordered" in name] == ["ordered 0", "ordered 1", "ordered 2"]
    assert ran[-1] == "last"
    assert world.sql("select count(*) from my_rows") == [(2,)]
    assert batch.status().done


# ------------------------------------------------------------------------------------------------ chains


def test_the_links_of_a_chain_run_in_turn_retries_and_all(box: todoku.App, seen: list[str]) -> None:
    links = box.chain(step(box, "a", fails=1), step(box, "b"), step(box, "c", fails=1), tx=None)
    with pytest.raises(todoku.NoSuchMessage):
        links[1].status()
    box.drain()
    assert seen == ["a", "b", "c"]
    assert [link.result(timeout=0) for link in links] == ["a", "b", "c"]


def test_an_aborted_link_stops_the_chain_until_its_replay_succeeds(
    box: todoku.App, world: World, seen: list[str]
) -> None:
    links = box.chain(step(box, "a"), step(box, "b", fails=2), box.jobs["finish"].call("end"), tx=None)
    box.drain()
    assert (seen, links[1].status()) == (["a"], "aborted")
    world.sql("update todoku_delivery set max_attempts = 3")
    box.replay(links[1].id, by="ada", why="mended")
    box.drain()
    assert seen == ["a", "b", "end"]
    assert links[2].status() == "succeeded"


def test_a_cancelled_link_stops_the_chain(box: todoku.App, seen: list[str]) -> None:
    links = box.chain(step(box, "a"), step(box, "b"), tx=None)
    assert links[0].cancel(by="ada", why="changed my mind")
    box.drain()
    assert seen == []


def test_the_longest_chain_runs_to_its_end(box: todoku.App, seen: list[str]) -> None:
    links = box.chain(*(step(box, str(n)) for n in range(100)), tx=None)
    box.drain()
    assert seen == [str(n) for n in range(100)]
    assert links[-1].result(timeout=0) == "99"


def test_a_chain_of_one_is_that_call(box: todoku.App, seen: list[str]) -> None:
    (link,) = box.chain(step(box, "a"), tx=None)
    box.drain()
    assert link.status() == "succeeded"


# ------------------------------------------------------------------------------------------------ refused


def test_what_cannot_be_counted_is_refused_and_nothing_is_stored(
    box: todoku.App, world: World, seen: list[str]
) -> None:
    """A duplicate would be a member of the batch that published it first, or of none."""

    @box.job(unique_for=60)
    def once(n: int) -> None: ...

    keyed = box.jobs["step"].using(idempotency_key="k").call("a")
    plain = step(box, "a")
    bad: list[tuple[str, Callable[[], object]]] = [
        ("no idempotency_key", lambda: box.batch([plain, keyed], tx=None)),
        ("no unique_for", lambda: box.batch([once.call(1)], tx=None)),
        ("no idempotency_key", lambda: box.batch([plain], then=keyed, tx=None)),
        ("no idempotency_key", lambda: box.chain(plain, keyed, tx=None)),
        ("on cannot be 'failed'", lambda: box.batch([plain], on="failed", tx=None)),  # type: ignore[arg-type]
        ("no tx", lambda: box.batch([box.jobs["step"].using(best_effort=True).call("a")], tx=None)),
        ("1 to 100 calls, not 0", lambda: box.chain(tx=None)),
        ("1 to 100 calls, not 101", lambda: box.chain(*[plain] * 101, tx=None)),
        ("is no call", lambda: box.batch([box.jobs["step"]], tx=None)),  # type: ignore[list-item]
        ("is todoku's own", lambda: box.publish("x", {}, headers={"todoku-batch": str(uuid4())}, tx=None)),
    ]
    for text, refused in bad:
        with pytest.raises(todoku.InvalidMessage) as caught:
            refused()
        assert text in str(caught.value)
        assert caught.value.hint
    assert world.deliveries() == []
    assert world.sql("select count(*) from todoku_batch") == [(0,)]


def test_headers_may_be_handed_on_by_a_member_without_being_counted_twice(box: todoku.App, seen: list[str]) -> None:
    @box.job
    def passes_on(ctx: todoku.Context) -> None:
        assert ctx.headers == {"tenant": "a"}
        box.jobs["step"].using(headers=ctx.headers).enqueue("passed on")

    batch = box.batch(
        [passes_on.using(headers={"tenant": "a"}).call(), step(box, "b")], then=box.jobs["finish"].call("done"), tx=None
    )
    box.drain()
    assert Counter(seen) == Counter(["passed on", "b", "done"])
    assert batch.status().succeeded == 2


def test_what_follows_is_stored_as_secret_as_its_job(world: World, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits in a batch is sealed like a message, and its data key is where data keys are: it can be shredded."""
    monkeypatch.setenv("TODOKU_MASTER_KEYS", f"first:{base64.b64encode(bytes(32)).decode()}")
    box = todoku.App(url)
    ran: list[str] = []

    @box.job(encrypted=True)
    async def secret(text: str) -> None:
        ran.append(text)

    box.chain(*(secret.call(f"canary {n}") for n in range(3)), tx=None)
    ((stored,),) = world.sql("select cast(next as text) from todoku_batch")
    assert "canary" not in stored
    assert '"sealed_with":{' not in stored.replace(" ", "")
    assert world.sql("select count(*) from todoku_data_key") == [(1,)]
    box.drain()
    assert ran == ["canary 0", "canary 1", "canary 2"]
    box.close()


def test_in_a_test_everything_runs_where_it_is_stored(box: todoku.App, world: World, seen: list[str]) -> None:
    with inline(box):
        box.batch([step(box, "a"), step(box, "b")], then=box.jobs["finish"].call("done"), tx=None)
        box.chain(step(box, "c"), step(box, "d"), tx=None)
    assert seen == ["a", "b", "done", "c", "d"]
    assert world.deliveries() == []


# ---------------------------------------------------------------------------------------------- the command


def test_the_command_shows_a_batch_and_the_hooks(box: todoku.App, url: str, seen: list[str]) -> None:
    box.after("aborted", to="elsewhere", topic="order.*")
    box.migrate()
    batch = box.batch([step(box, "a"), step(box, "b", fails=9)], tx=None)
    box.drain()
    runner = CliRunner()
    shown = runner.invoke(cli, ["batch", str(batch.id), "--db", url, "--json"])
    assert (shown.exit_code, shown.output.count("\n")) == (0, 1)
    assert '"total":2,"open":0,"succeeded":1,"aborted":1,"done":true' in shown.output
    assert "succeeded" in runner.invoke(cli, ["batch", str(batch.id), "--db", url]).output
    assert runner.invoke(cli, ["batch", str(uuid4()), "--db", url]).exit_code == 1
    assert runner.invoke(cli, ["batch", "nonsense", "--db", url]).exit_code == 2
    hooks = runner.invoke(cli, ["hooks", "--db", url, "--json"]).output
    assert '"name":"elsewhere","event":"aborted","topic":"order.*"' in hooks


# ------------------------------------------------------------------------------------------------- crashes

PROGRAM = """
import os, sys
import todoku
from todoku.testing.armed import arm_from

box = todoku.App(sys.argv[1])

@box.job
def member(n: int) -> None: ...

@box.job(transactional=True)
def in_transaction(n: int) -> None: ...

@box.job(ordered=True)
def finish() -> None: ...

@box.after("succeeded", destination="member", name="of_member")
def of_member() -> None: ...

@box.after("succeeded", destination="in_transaction", name="of_transaction")
def of_transaction() -> None: ...

if len(sys.argv) > 2:
    arm_from(os.environ)
    box.drain()
"""


@pytest.mark.crash
@pytest.mark.parametrize("operation", ["settle", "transact"])
@pytest.mark.parametrize("side", ["before_commit", "after_commit"])
def test_a_worker_killed_around_a_commit_neither_loses_nor_doubles_what_follows(
    world: World, url: str, operation: str, side: str
) -> None:
    """I1, I3: hook and completion are in the commit of the end itself."""
    killed_at(world, url, f"{operation}.{side}")


@pytest.mark.crash
@pytest.mark.postgres
@pytest.mark.parametrize("side", ["before_commit", "after_commit"])
def test_a_worker_killed_around_the_commit_into_a_lane_neither_loses_nor_doubles_it(
    postgres_url: str, side: str
) -> None:
    """I1, I3: what goes into a lane has a commit of its own; who comes next finds it due, or done."""
    world = World("postgres", postgres_url)
    killed_at(world, postgres_url, f"follow.{side}")
    world.close()


def killed_at(world: World, url: str, failpoint: str) -> None:
    space: dict[str, Any] = {}
    argv, sys.argv = sys.argv, ["program", url]
    try:
        exec(PROGRAM, space)
    finally:
        sys.argv = argv
    box: todoku.App = space["box"]
    batch = box.batch(
        [space["member"].call(1), space["in_transaction"].call(2)],
        then=space["finish"].using(key="k").call(), tx=None,
    )  # fmt: skip
    killed = subprocess.run(
        [sys.executable, "-c", PROGRAM, url, "work"],
        env={**os.environ, "TODOKU_FAILPOINTS": f"{failpoint}=kill", "PYTHONPATH": str(ROOT / "src")},
        timeout=120, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    for worker in world.store.leases.workers():
        world.store.leases.end(worker.id, lost=True)
    box.drain()
    assert world.store.follow_batches() in (0, 1)
    box.drain()
    ran = Counter(each.destination for each in world.history())
    assert ran == {"member": 1, "in_transaction": 1, "of_member": 1, "of_transaction": 1, "finish": 1}
    status = batch.status()
    assert (status.open, status.succeeded, status.done) == (0, 2, True)
    assert world.store.broken(history_ttl=1e6, ledger_ttl=1e6) == {}
    box.close()


def test_every_run_of_a_job_is_one_of_its_own(box: todoku.App, seen: list[str], world: World) -> None:
    """The same call may be a member twice: two messages, two ends."""
    call = step(box, "a")
    batch = box.batch([call, call], tx=None)
    assert len({handle.id for handle in batch.handles}) == 2
    assert isinstance(batch.handles[0].id, UUID)
    world.store.acts.cancel(Filter(message_id=batch.handles[1].id), SOMEBODY)
    box.drain()
    assert (batch.status().succeeded, batch.status().aborted) == (1, 1)
