"""Threads that publish at the same time share a commit, and nothing else: no error, and no false success (I1, I13)."""

from __future__ import annotations

import asyncio
import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest

import todoku
from tests.engine.test_telemetry import counted
from tests.support.world import World
from todoku.core.message import Draft, Message
from todoku.engine import shared_commit
from todoku.engine.shared_commit import SharedCommit
from todoku.store import failpoint
from todoku.store.columns import EPOCH

LONG = 60.0


class Interrupted(BaseException):
    """What a test raises in another thread."""


class Refused(Exception):
    """What a database says of one message."""


class Books:
    """A store: holds its first commit up until it is let go, and refuses what it is told to refuse."""

    def __init__(self) -> None:
        self.commits: list[list[str]] = []
        self.counted: list[str] = []
        self.refused: dict[str, BaseException] = {}
        self.reached, self.open = threading.Event(), threading.Event()

    def store(self, drafts: list[Draft]) -> list[Message]:
        names = [draft.topic for draft in drafts]
        first = not self.reached.is_set()
        self.reached.set()
        if first:
            assert self.open.wait(LONG)
        for name in names:
            if name in self.refused:
                raise self.refused[name]
        self.commits.append(names)
        return [
            Message(id=draft.id, topic=draft.topic, key=None, duplicate=False, created_at=EPOCH) for draft in drafts
        ]

    def stored(self, drafts: Any, messages: Any) -> None:
        assert [draft.id for draft in drafts] == [message.id for message in messages]
        self.counted += [draft.topic for draft in drafts]


@pytest.fixture
def books() -> Books:
    return Books()


@pytest.fixture
def shared(books: Books) -> SharedCommit:
    return SharedCommit(books.store, books.stored)


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


_numbers = iter(range(1, 10_000))


def draft(name: str, payload: str = "1") -> Draft:
    return Draft(id=UUID(int=next(_numbers)), topic=name, type=name, payload=payload, content_type="", legs=())


def in_line(
    shared: SharedCommit, books: Books, threads: ThreadPoolExecutor, *names: str
) -> tuple[Future[list[Message]], list[Future[list[Message]]]]:
    """A caller that is committing, and those who wait for the next commit, in this order."""
    first = threads.submit(shared.put, [draft("first")])
    assert books.reached.wait(LONG)
    waiting = []
    for place, name in enumerate(names, 1):
        waiting.append(threads.submit(shared.put, [draft(name)]))
        until(lambda place=place: len(shared._waiting) == place)  # type: ignore[misc]
    return first, waiting


def until(true: Callable[[], bool]) -> None:
    waiting = threading.Event()
    for _ in range(30_000):
        if true():
            return
        waiting.wait(0.002)
    raise AssertionError("it did not come about")


def topics(answers: list[Future[list[Message]]]) -> list[str]:
    return [message.topic for answer in answers for message in answer.result(LONG)]


def test_whoever_waits_when_a_commit_ends_is_in_the_next_one(
    shared: SharedCommit, books: Books, threads: ThreadPoolExecutor
) -> None:
    first, others = in_line(shared, books, threads, "a", "b", "c")
    books.open.set()
    assert topics([first, *others]) == ["first", "a", "b", "c"]  # each has its own
    assert books.commits == [["first"], ["a", "b", "c"]]
    assert sorted(books.counted) == ["a", "b", "c", "first"]  # once


def test_a_lone_publisher_commits_at_once_and_alone(
    shared: SharedCommit, books: Books, threads: ThreadPoolExecutor
) -> None:
    books.open.set()
    for name in "abc":
        assert topics([threads.submit(shared.put, [draft(name), draft(name)])]) == [name, name]
    assert books.commits == [["a", "a"], ["b", "b"], ["c", "c"]]


def test_a_message_that_is_refused_fails_its_caller_alone(
    shared: SharedCommit, books: Books, threads: ThreadPoolExecutor
) -> None:
    """One bad message never costs its neighbours anything (I13)."""
    first, (a, bad, c) = in_line(shared, books, threads, "a", "bad", "c")
    books.refused["bad"] = Refused("a bad message")
    books.open.set()
    assert topics([first, a, c]) == ["first", "a", "c"]
    with pytest.raises(Refused):
        bad.result(LONG)
    assert sorted(books.commits) == [["a"], ["c"], ["first"]]
    assert sorted(books.counted) == ["a", "c", "first"]


def test_a_commit_without_an_answer_fails_all_who_share_it_each_with_an_error_of_its_own(
    shared: SharedCommit, books: Books, threads: ThreadPoolExecutor
) -> None:
    """Nobody is told a success that may be none, and nothing is sent again: it may be stored (I2)."""
    first, others = in_line(shared, books, threads, "a", "b", "c")
    books.refused["b"] = todoku.DatabaseUnavailable("gone", hint="wait")
    books.open.set()
    errors = [other.exception(LONG) for other in others]
    assert topics([first]) == ["first"]
    assert [(type(error), str(error)) for error in errors] == [(todoku.DatabaseUnavailable, "gone (wait)")] * 3
    assert len({id(error) for error in errors}) == 3
    assert books.commits == [["first"]]


def test_an_interrupted_thread_that_commits_leaves_the_others_in_doubt_and_not_in_the_line(
    shared: SharedCommit, books: Books, threads: ThreadPoolExecutor
) -> None:
    first, (a, b) = in_line(shared, books, threads, "a", "b")
    books.refused["a"] = Interrupted()
    books.open.set()
    assert isinstance(a.exception(LONG), Interrupted)
    assert isinstance(b.exception(LONG), todoku.DatabaseUnavailable)
    assert topics([first, threads.submit(shared.put, [draft("next")])]) == ["first", "next"]


def test_an_interrupted_thread_that_was_to_commit_next_lets_another_one_do_it(
    shared: SharedCommit, books: Books, threads: ThreadPoolExecutor
) -> None:
    first = threads.submit(shared.put, [draft("first")])
    assert books.reached.wait(LONG)
    ended: list[BaseException] = []

    def waits() -> None:
        try:
            shared.put([draft("gone")])
        except Interrupted as error:
            ended.append(error)

    gone = threading.Thread(target=waits)
    gone.start()
    until(lambda: len(shared._waiting) == 1)
    staying = threads.submit(shared.put, [draft("staying")])
    until(lambda: len(shared._waiting) == 2)
    # It is raised when the thread runs again: when it was given its turn.
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(gone.ident or 0), ctypes.py_object(Interrupted))
    books.open.set()
    assert topics([first, staying]) == ["first", "staying"]
    gone.join(LONG)
    assert ended
    assert books.commits == [["first"], ["staying"]]  # what was not sent is not stored


def test_a_caller_whose_turn_does_not_come_commits_by_itself(
    shared: SharedCommit, books: Books, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection of the thread that commits may hang: that is no reason for others to."""
    monkeypatch.setattr(shared_commit, "PATIENCE", 0.01)
    first = threads.submit(shared.put, [draft("first")])
    assert books.reached.wait(LONG)
    assert topics([threads.submit(shared.put, [draft("a")])]) == ["a"]
    assert not first.done()
    books.open.set()
    assert topics([first]) == ["first"]
    assert books.commits == [["a"], ["first"]]


def test_the_main_thread_neither_waits_for_others_nor_commits_for_them(
    shared: SharedCommit, books: Books, threads: ThreadPoolExecutor
) -> None:
    """Ctrl-C is raised there: it must not end a commit of others."""
    first, (a,) = in_line(shared, books, threads, "a")
    assert [message.topic for message in shared.put([draft("main")])] == ["main"]
    assert not first.done()
    books.open.set()
    assert topics([first, a]) == ["first", "a"]
    assert books.commits == [["main"], ["first"], ["a"]]


@pytest.mark.parametrize("limit", ["MOST", "MOST_BYTES"])
def test_a_commit_has_its_limits(
    shared: SharedCommit, books: Books, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(shared_commit, limit, 2)  # a payload has one byte
    first, others = in_line(shared, books, threads, "a", "b", "c")
    books.open.set()
    assert topics([first, *others]) == ["first", "a", "b", "c"]
    assert books.commits == [["first"], ["a", "b"], ["c"]]


def test_a_forked_child_does_not_wait_for_threads_of_its_parent(
    shared: SharedCommit, books: Books, threads: ThreadPoolExecutor
) -> None:
    first, (a,) = in_line(shared, books, threads, "a")
    child = os.fork()
    if child == 0:
        thread = threading.Thread(target=shared.put, args=([draft("child")],), daemon=True)
        thread.start()
        thread.join(LONG)
        os._exit(0 if books.commits == [["child"]] else 1)
    _, status = os.waitpid(child, 0)
    books.open.set()
    assert status == 0
    assert topics([first, a]) == ["first", "a"]


# ------------------------------------------------------------------------------------------------- with a database


@pytest.fixture
def box(world: World) -> Iterator[todoku.App]:
    box = todoku.App(world.url)
    yield box
    box.close()


class Gate:
    """Counts commits, and holds the first one up."""

    def __init__(self) -> None:
        self.commits = 0
        self.reached, self.open = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.commits += 1
        if self.commits == 1:
            self.reached.set()
            assert self.open.wait(LONG)


@contextmanager
def gated() -> Iterator[Gate]:
    gate = Gate()
    with failpoint.armed("publish.before_commit", gate):
        yield gate


def declared(box: todoku.App) -> Any:
    @box.job(queue="orders")
    def ship(n: int) -> None:
        """Nothing to do."""

    return ship


def stored(world: World) -> set[str]:
    return {str(found.message_id) for found in world.deliveries()}


def test_jobs_that_threads_enqueue_at_the_same_time_are_one_transaction(
    box: todoku.App, world: World, threads: ThreadPoolExecutor
) -> None:
    ship = declared(box)
    with gated() as gate:
        handles = [threads.submit(ship.enqueue, 0)]
        assert gate.reached.wait(LONG)
        handles += [threads.submit(ship.enqueue, n) for n in range(1, 11)]
        until(lambda: len(box.outbox._shared._waiting) == 10)
        gate.open.set()
        ids = {str(handle.result(LONG).id) for handle in handles}
    assert gate.commits == 2
    assert len(ids) == 11
    assert ids == stored(world)
    assert counted(box.telemetry)["outbox_publish_total{ok}"] == 11


def test_jobs_that_coroutines_enqueue_at_the_same_time_share_commits_too(box: todoku.App, world: World) -> None:
    ship = declared(box)

    async def run() -> list[Any]:
        first = asyncio.create_task(ship.aenqueue(0))
        await asyncio.to_thread(gate.reached.wait, LONG)
        others = [asyncio.create_task(ship.aenqueue(n)) for n in range(1, 3)]
        await asyncio.to_thread(until, lambda: len(box.outbox._shared._waiting) == 2)
        gate.open.set()
        return [await task for task in (first, *others)]

    with gated() as gate:
        handles = asyncio.run(run())
    assert gate.commits == 2
    assert {str(handle.id) for handle in handles} == stored(world)


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_commit_without_an_answer_is_counted_as_failed_by_each_caller(
    box: todoku.App, world: World, threads: ThreadPoolExecutor, side: str
) -> None:
    ship = declared(box)
    with failpoint.armed(f"publish.{side}_commit", failpoint.lose):
        lost = [threads.submit(ship.enqueue, n) for n in range(6)]
        assert {type(one.exception(LONG)) for one in lost} == {todoku.DatabaseUnavailable}
    assert len(stored(world)) == (6 if side == "after" else 0)
    assert counted(box.telemetry)["outbox_publish_total{error}"] == 6


@pytest.mark.postgres
def test_a_message_that_may_wait_for_a_lock_shares_no_commit(postgres_url: str, threads: ThreadPoolExecutor) -> None:
    """Its neighbours would wait with it."""
    box = todoku.App(postgres_url)
    ship = declared(box)
    try:
        with gated() as gate:
            first = threads.submit(ship.enqueue, 0)
            assert gate.reached.wait(LONG)
            threads.submit(ship.using(idempotency_key="k").enqueue, 1).result(LONG)
            assert not first.done()
            gate.open.set()
            first.result(LONG)
    finally:
        box.close()
