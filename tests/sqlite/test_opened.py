"""The end of a handler's own transaction, and of the time it has: whichever comes first, the other comes too late."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from tests.support.world import World
from todoku.core.errors import DatabaseBusy
from todoku.store.sqlite import handler_transaction


@pytest.fixture
def world(sqlite_url: str) -> Iterator[World]:
    world = World("sqlite", sqlite_url)
    world.store.migrate()
    world.sql("create table effect (n integer)")
    yield world
    world.close()


class Late:
    """A timer that has gone off when it is cancelled, and whose thread is next in turn when the test says so."""

    made: list[Callable[[], None]]

    def __init__(self, _seconds: float, act: Callable[[], None]) -> None:
        self.made.append(act)
        self.daemon = False

    def start(self) -> None: ...

    def cancel(self) -> None: ...


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What those timers do, in the order they were made."""
    made: list[Callable[[], None]] = []
    monkeypatch.setattr(Late, "made", made, raising=False)
    monkeypatch.setattr(handler_transaction.threading, "Timer", Late)
    return made


def test_a_timer_that_goes_off_after_the_end_touches_nothing(world: World, timers: list[Callable[[], None]]) -> None:
    """H21: the connection is closed by then."""
    with world.store.database.open_transaction(1.0) as one:  # type: ignore[attr-defined]
        one.connection.execute("insert into effect values (1)")
        one.check()
        one.commit()
    (act,) = timers
    act()
    assert world.sql("select count(*) from effect") == [(1,)]


def test_a_timer_that_goes_off_before_it_takes_the_transaction_away(
    world: World, timers: list[Callable[[], None]]
) -> None:
    """H21: from another thread; nothing is stored, and others can write again."""

    def handle() -> None:
        with world.store.database.open_transaction(1.0) as one:  # type: ignore[attr-defined]
            one.connection.execute("insert into effect values (1)")
            late = threading.Thread(target=timers[0])
            late.start()
            late.join()
            one.connection.execute("insert into effect values (2)")

    with pytest.raises(DatabaseBusy, match="write lock"):
        handle()
    assert world.sql("select count(*) from effect") == [(0,)]
