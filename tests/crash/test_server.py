"""The database goes away under load: PostgreSQL is stopped as a power failure stops it, and comes back (fault 10)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.run import Run
from tests.crash.scenarios import restart
from tests.daemon.own_server import OwnServer, own_server
from tests.support.pack import Forks
from tests.support.world import World

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.postgres]

DURABLE = "-c fsync=on -c shared_buffers=64MB"
LEASE = 6.0
DOWN = (0.0, 0.5, 1.5 * LEASE)
"""Seconds: back at once, after a while, and when every lease is over."""


@pytest.fixture
def server() -> Iterator[OwnServer]:
    """A server that writes what it acknowledges to disk."""
    with own_server(DURABLE) as server:
        yield server


@pytest.fixture
def run(server: OwnServer, forks: Forks, tmp_path: Path) -> Iterator[Run]:
    world = World("postgres", server.url)
    world.store.migrate()
    run = Run(forks, tmp_path, world, lease=LEASE)
    yield run
    run.pack.end()
    world.close()


def test_nothing_acknowledged_is_lost_when_the_server_is_stopped_at_once_and_restarted(
    run: Run, server: OwnServer
) -> None:
    """The same processes go on by themselves, and every attempt that came twice was under way when it stopped."""
    workers = [run.worker() for _ in range(2)]
    publishers = [run.publisher(1_000_000 * place, TODOKU_TEST_PAUSE="0.01") for place in range(2)]
    for down in DOWN:
        restart(run, server, down=down)
    assert {member.pid for member in run.pack.living} == {member.pid for member in (*workers, *publishers)}
    run.pack.drain(*publishers)
    verdict = run.finish()
    assert verdict.problems == ()
    assert {(note.error, "does not answer" in note.text) for note in run.refused()} == {("DatabaseUnavailable", True)}
