"""300 publishers and 8 workers, and a PostgreSQL that lets 20 in (fault 31): they wait or are told, nothing is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.crash.run import Run
from tests.daemon.own_server import own_server
from tests.support.checker import Fault
from tests.support.pack import Forks, until
from tests.support.world import World

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.postgres]

PUBLISHERS, WORKERS, CONNECTIONS = 300, 8, 20
PROCESSES = 6
EACH = 2


@pytest.fixture
def run(forks: Forks, tmp_path: Path) -> Iterator[Run]:
    """Its processes are an ordinary user: three connections are kept for the one who looks at it all."""
    with own_server(f"-c max_connections={CONNECTIONS} -c superuser_reserved_connections=3 -c fsync=off") as server:
        with psycopg.connect(server.url, autocommit=True) as admin:
            admin.execute("create role shop login")
            admin.execute("create database shop owner shop")
        url = server.url.replace("postgres@/postgres", "shop@/shop")
        World("postgres", url).store.migrate()
        world = World("postgres", server.url.replace("/postgres?", "/shop?"))
        # An idle worker keeps a connection to poll and one for its heartbeat; a third, to be woken, is too much here.
        run = Run(forks, tmp_path, world, url=url, lease=30.0, TODOKU_NOTIFY="0")
        world.sql("grant all on crash_effect to shop")
        yield run
        run.pack.end()
        world.close()


def test_300_publishers_and_8_workers_share_20_connections(run: Run) -> None:
    """Most get through; who does not is told why, again and again. When the crowd is gone, everything arrives."""
    began = time.monotonic()
    crowds = [
        run.pack.start(
            "tests.crash.roles:crowd",
            TODOKU_TEST_FIRST=str(1_000_000 * place),
            TODOKU_TEST_CROWD=str(PUBLISHERS // PROCESSES),
        )
        for place in range(PROCESSES)
    ]
    workers = [run.worker() for _ in range(WORKERS)]
    until(lambda: run.acknowledged() >= EACH * PUBLISHERS * 0.75 and run.refused(), "three of four to get through")
    run.pack.drain(*crowds)
    run.until_finished(seconds=120)
    assert {one.pid for one in run.pack.living} == {one.pid for one in workers}, "no worker died of it"
    run.publish(10_000_000, 14)
    run.until_finished()
    run.pack.faults.append(Fault("outage", None, began, time.monotonic()))
    run.pack.drain(*workers)

    assert run.verdict().problems == ()
    assert {note.error for note in run.refused()} <= {"DatabaseUnavailable", "OperationalError"}
    clear = ("too many clients", "remaining connection slots", "does not answer")
    assert [note.text for note in run.refused() if not any(words in note.text for words in clear)] == []
