"""The pool gives out the connection that was used last, and the others close when they have been idle."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest

from tests.support.world import World
from todoku.store.postgres.database import PostgresDatabase

pytestmark = pytest.mark.postgres

THREADS = 3


def backend(tx: Any) -> int:
    """The server process that runs this transaction."""
    return int(tx.connection.info.backend_pid)


def backends_at_once(database: PostgresDatabase) -> set[int]:
    """The server processes of transactions that are open at the same time."""
    barrier = Barrier(THREADS)

    def one() -> int:
        def work(tx: Any) -> int:
            barrier.wait(60)
            return backend(tx)

        return database.read(work)

    with ThreadPoolExecutor(THREADS) as pool:
        return {each.result() for each in [pool.submit(one) for _ in range(THREADS)]}


def backends_in_turn(database: PostgresDatabase) -> set[int]:
    """The server processes of transactions one after the other."""
    return {database.read(backend) for _ in range(2 * THREADS)}


def test_transactions_one_after_the_other_have_one_server_process(world: World) -> None:
    """Its plans and catalogs are at hand; with the others in turn each would pay for its own."""
    database = world.store.database
    assert isinstance(database, PostgresDatabase)
    several = backends_at_once(database)
    assert len(several) == THREADS
    (one,) = backends_in_turn(database)
    assert one in several


def test_a_pool_that_keeps_its_connections_elsewhere_works(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a pool keeps them is its own affair, so a release that changes it costs the order and nothing else."""
    database = world.store.database
    assert isinstance(database, PostgresDatabase)
    monkeypatch.setattr("todoku.store.postgres.database.deque", type("NoDeque", (deque,), {}))
    assert backends_at_once(database) == backends_in_turn(database)
