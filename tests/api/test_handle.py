"""Handles: watch, await and cancel what was enqueued."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

import pytest

import todoku
from tests.support.world import World, aborted, failed
from todoku.core.decision import Settlement
from todoku.core.message import Claimed
from todoku.core.status import Status

Claims = Callable[[], list[Claimed]]


@dataclass
class Sum:
    total: int


def done(result: str | None) -> Settlement:
    return Settlement(status=Status.SUCCEEDED, result=result)


def test_a_status_is_where_the_delivery_is(box: todoku.App, world: World, claims: Claims) -> None:
    @box.job(max_attempts=2)
    def work() -> None: ...

    handle = work.enqueue()
    seen = [handle.status()]
    for settlement in (failed(), aborted()):
        (claim,) = claims()
        seen.append(handle.status())
        world.settle([claim], settlement)
        seen.append(handle.status())
    assert seen == ["pending", "sending", "failed", "sending", "aborted"]
    ended = work.enqueue()
    world.settle(claims())
    assert ended.status() is todoku.Status.SUCCEEDED


def test_a_result_is_what_the_return_annotation_says(box: todoku.App, world: World, claims: Claims) -> None:
    @box.job(keep_result=True)
    def add() -> Sum | todoku.Retry: ...  # type: ignore[empty-body]

    @box.job(keep_result=True)
    def ids() -> list[UUID]: ...  # type: ignore[empty-body]

    @box.job(keep_result=True)
    def unsaid():  # type: ignore[no-untyped-def]
        ...

    @box.job(keep_result=True)
    def nothing() -> None: ...

    handles = [job.enqueue() for job in (add, ids, unsaid, nothing)]
    text = "01900000-0000-7000-8000-000000000001"
    results = ['{"total":3}', f'["{text}"]', '{"a":1}', None]
    found = sorted(claims(), key=lambda claim: claim.id)
    world.store.claims.settle([(claim, done(result)) for claim, result in zip(found, results, strict=True)])
    assert [handle.result(timeout=5) for handle in handles] == [Sum(3), [UUID(text)], {"a": 1}, None]


def test_a_result_is_awaited_until_it_is_there(box: todoku.App, world: World, claims: Claims) -> None:
    @box.job(keep_result=True)
    def answer() -> int: ...  # type: ignore[empty-body]

    db = world.connect()
    handle = answer.using(tx=db).enqueue()  # not committed yet: the handle waits for that too
    found: list[int] = []
    waiting = threading.Thread(target=lambda: found.append(handle.result(timeout=30)))
    waiting.start()
    db.commit()
    db.close()
    world.store.claims.settle([(claim, done("42")) for claim in claims()])
    waiting.join(30)
    assert found == [42]


async def test_async_code_awaits_a_result_without_a_thread_that_waits(
    box: todoku.App, world: World, claims: Claims
) -> None:
    @box.job(keep_result=True)
    async def answer(n: int) -> int: ...  # type: ignore[empty-body]

    handles = await box.aenqueue_many([answer.call(n) for n in range(50)], tx=None)
    waiting = [asyncio.create_task(handle.aresult(timeout=60)) for handle in handles]
    found = sorted(await asyncio.to_thread(claims), key=lambda claim: claim.id)
    await asyncio.to_thread(world.store.claims.settle, [(claim, done(str(place))) for place, claim in enumerate(found)])
    assert await asyncio.gather(*waiting) == list(range(50))


def test_no_result_is_an_error_that_says_why(box: todoku.App, world: World, claims: Claims) -> None:
    @box.job
    def forgetful() -> int: ...  # type: ignore[empty-body]

    @box.job(keep_result=True)
    def slow() -> int: ...  # type: ignore[empty-body]

    with pytest.raises(todoku.ResultNotKept, match="keep_result=True"):
        forgetful.enqueue().result()
    handle = slow.enqueue()
    with pytest.raises(TimeoutError, match=r"no result after 0\.05 s"):
        handle.result(timeout=0.05)
    with pytest.raises(TimeoutError):
        handle.result(timeout=0)
    world.settle(claims(), aborted("REFUSED"))
    with pytest.raises(todoku.JobAborted, match=r"was aborted: REFUSED: REFUSED in a test \(.*replay") as told:
        handle.result(timeout=5)
    assert told.value.reason == "REFUSED"


def test_cancel_ends_what_has_not_started_and_asks_what_runs(box: todoku.App, world: World, claims: Claims) -> None:
    @box.job
    def work() -> None: ...

    waiting = work.enqueue()
    assert waiting.cancel(by="ada", why="not needed")
    assert waiting.status() is todoku.Status.ABORTED
    assert not waiting.cancel(by="ada", why="again")
    running = work.enqueue()
    (claim,) = claims()
    assert running.cancel(by="ada", why="too slow")
    assert running.status() is todoku.Status.SENDING
    assert [held.cancel_requested for held in world.store.leases.owned(claim.worker)] == [True]
    story = world.store.messages.story(waiting.id)
    assert story is not None
    assert [(row.by, row.why) for row in story.audit] == [("ada", "not needed")]


async def test_cancel_in_async_code(box: todoku.App) -> None:
    @box.job
    async def work() -> None: ...

    handle = await work.aenqueue()
    assert await handle.acancel(by="ada", why="not needed")


def test_a_handle_knows_its_own_delivery_only(box: todoku.App, world: World, claims: Claims) -> None:
    """The same message may go elsewhere too; a duplicate's handle is the first one's."""

    @box.job
    def work(n: int) -> None: ...

    first = work.using(idempotency_key="k").enqueue(1)
    world.settle(claims())
    again = work.using(idempotency_key="k").enqueue(1)
    assert (again.id, again.duplicate, again.status()) == (first.id, True, "succeeded")
    assert repr(again) == f"<Handle work {first.id} duplicate>"
