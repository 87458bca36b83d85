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
        owner = World("postgres", url)
        owner.store.migrate()
        owner.close()
        world = World("postgres", server.url.replace("/postgres?", "/shop?"))
        run = Run(forks, tmp_path, world, url=url, lease=30.0)
        world.sql("grant all on crash_effect to shop")
        yield run
        run.pack.end()
        world.close()


FRUGAL = {"TODOKU_NOTIFY": "0", "TODOKU_CONNECTIONS": "1"}
"""Two connections for each worker, one of them for its heartbeat: so eight of them leave one for everybody else."""


@pytest.mark.parametrize("budget", [{}, FRUGAL], ids=["as they are", "frugal workers"])
def test_300_publishers_and_8_workers_share_20_connections(run: Run, budget: dict[str, str]) -> None:
    """Most get through; who does not is told why, again and again. When the crowd is gone, everything arrives.

    Eight workers as they are would like more connections than there are, and keep what they get; frugal ones do not,
    and then a publisher gets through at any time.
    """
    began = time.monotonic()
    crowds = [
        run.pack.start(
            "tests.crash.roles:crowd",
            TODOKU_TEST_FIRST=str(1_000_000 * place),
            TODOKU_TEST_CROWD=str(PUBLISHERS // PROCESSES),
        )
        for place in range(PROCESSES)
    ]
    workers = [run.worker(**budget) for _ in range(WORKERS)]
    until(lambda: run.acknowledged() >= EACH * PUBLISHERS * 0.5 and run.refused(), "half of them to get through")
    run.pack.drain(*crowds)
    run.until_finished(seconds=120)
    if budget:
        run.publish(10_000_000, 14)
        run.until_finished()
    run.pack.faults.append(Fault("outage", None, began, time.monotonic()))
    assert {one.pid for one in run.pack.living} == {one.pid for one in workers}, "no worker died of it"
    run.pack.drain(*workers)

    assert run.verdict().problems == ()
    assert {note.error for note in run.refused()} <= {"DatabaseUnavailable", "DatabaseBusy", "OperationalError"}
    ours = [note.text for note in run.refused() if note.error == "DatabaseUnavailable"]
    assert [text for text in ours if not text.startswith("PostgreSQL does not answer: ")] == []
