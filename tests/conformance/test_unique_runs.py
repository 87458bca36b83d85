"""`unique_for` of a workflow lasts at least until its run ends (R8), and that of a job does not."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import msgspec
import psycopg
import pytest

import todoku
from tests.support.world import World, aborted
from todoku.core.flow import RUN
from todoku.core.identity import key_hash
from todoku.core.message import Draft, Idempotency, with_headers
from todoku.engine.publish import unique_scope
from todoku.store.audit import Signed
from todoku.store.deliveries import Filter
from todoku.store.join import run as run_on
from todoku.store.publish import Publishing, publish
from todoku.testing import frozen

HOUR = 3600.0
DAY = 24 * HOUR


def start(world: World, *, until_end: bool = True) -> tuple[UUID, bool]:
    """Starts a run that is unique for an hour. Returns its id, and whether it was there already."""
    (message,) = world.store.run(publish(publishing(world), drafts(world, until_end=until_end)))
    return message.id, message.duplicate


def drafts(world: World, *, until_end: bool = True, lasts: float = HOUR) -> list[Draft]:
    scope, body = unique_scope("order.created"), "the same arguments"
    unique = Idempotency(scope, body, key_hash(body), key_hash(body), lasts=lasts, until_end=until_end)
    marks = {RUN: "auto"} if until_end else {}
    started = [with_headers(draft, marks) for draft in world.drafts(to=("fulfil",))]
    return [msgspec.structs.replace(draft, idempotency=unique) for draft in started]


def publishing(world: World) -> Publishing:
    database = world.store.database
    return Publishing(database.dialect, database.queries, database.now())


def prune(world: World) -> None:
    world.store.retention.prune(history_ttl=3650 * DAY)


@pytest.mark.parametrize("pruned", [False, True])
def test_a_run_is_not_started_again_while_it_has_not_ended_however_long_that_is(world: World, pruned: bool) -> None:
    """R8"""
    first = start(world)[0]
    for _ in range(3):
        world.advance(10 * DAY)
        if pruned:
            prune(world)
        assert start(world) == (first, True)
    worker = world.worker(lease=60)
    (claim,) = world.claim(worker, destinations=["fulfil"])
    assert start(world) == (first, True)  # it runs
    world.settle([claim])
    if pruned:
        prune(world)
    second, duplicate = start(world)
    assert (second == first, duplicate) == (False, False)
    assert start(world) == (second, True)


def test_a_run_that_ends_within_the_time_is_unique_for_the_rest_of_it(world: World) -> None:
    """R8"""
    first = start(world)[0]
    world.settle(world.claim(world.worker(lease=60), destinations=["fulfil"]))
    world.advance(HOUR - 60)
    prune(world)
    assert start(world) == (first, True)
    world.advance(61)
    assert not start(world)[1]


@pytest.mark.parametrize("pruned", [False, True])
def test_a_dead_letter_has_ended_and_one_that_is_replayed_has_not(world: World, pruned: bool) -> None:
    """R8: a person decides about a dead letter; until then the arguments are free."""
    first = start(world)[0]
    world.settle(world.claim(world.worker(lease=60), destinations=["fulfil"]), aborted())
    assert start(world) == (first, True)  # within the time
    world.advance(HOUR + 1)
    world.store.acts.replay(Filter(message_id=first), Signed("ada", "a test"))
    if pruned:
        prune(world)
    assert start(world) == (first, True)
    world.settle(world.claim(world.worker(lease=60), destinations=["fulfil"]), aborted())
    if pruned:
        prune(world)
    second, duplicate = start(world)
    assert (second == first, duplicate) == (False, False)


def test_a_job_is_unique_for_its_time_alone(world: World) -> None:
    first = start(world, until_end=False)[0]
    assert start(world, until_end=False) == (first, True)
    world.advance(HOUR + 1)
    assert not start(world, until_end=False)[1]


@pytest.mark.postgres
@pytest.mark.parametrize("before", [False, True])
def test_a_start_that_waited_for_another_does_not_start_it_again_though_its_time_is_over(
    postgres_url: str, before: bool
) -> None:
    """R8: the statement that waited does not see the run of the transaction that it waited for.

    `before`: that transaction replaces the entry of a run that has ended.
    """
    world = World("postgres", postgres_url)
    if before:
        start(world)
        world.settle(world.claim(world.worker(lease=60), destinations=["fulfil"]))
        world.advance(HOUR + 1)
    with psycopg.connect(world.url) as winner, ThreadPoolExecutor(1) as pool:
        (first,) = run_on(winner, world.store.database.dialect, publish(publishing(world), drafts(world, lasts=0.0)))
        waiting = pool.submit(start, world)
        world.until_blocked()
        winner.commit()
        assert waiting.result() == (first.id, True)
    world.close()


# ------------------------------------------------------------------------------------------- by the App


@pytest.fixture
def box(url: str) -> Iterator[todoku.App]:
    box = todoku.App(url)
    box.migrate()
    yield box
    box.close()


def test_workflows_have_it_and_jobs_do_not(box: todoku.App) -> None:
    """R8"""

    @box.workflow(unique_for=60)
    async def flow(ctx: todoku.Flow, order: int) -> None:
        await ctx.wait("approval")

    @box.job(unique_for=60, queue="closed")
    def work(order: int) -> None: ...

    with frozen(box) as clock:
        run, job = flow.start(7), work.enqueue(7)
        box.drain()
        clock.tick(61)
        again = flow.start(7)
        assert (again.id, again.duplicate, flow.start(8).duplicate) == (run.id, True, False)
        assert work.enqueue(7).id != job.id
        box.signal(run, "approval", tx=None)
        box.drain()
        assert not flow.start(7).duplicate
