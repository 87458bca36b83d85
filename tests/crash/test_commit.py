"""The connection is cut while a COMMIT is on the wire: before the server has it, or before its answer arrives.

Whoever committed cannot know what happened (faults 1, 2 and 3); still nothing is lost and nothing is done twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.crash.run import Run
from tests.crash.scenarios import STATEMENTS, cut_commits
from tests.support.pack import Forks
from tests.support.proxy import Proxy, Side
from tests.support.world import World

pytestmark = [pytest.mark.crash, pytest.mark.slow, pytest.mark.postgres]

CUTS = 5


@pytest.fixture
def proxy(postgres_url: str, tmp_path: Path) -> Iterator[Proxy]:
    proxy = Proxy(postgres_url, tmp_path / "proxy")
    yield proxy
    proxy.close()


@pytest.fixture
def run(proxy: Proxy, postgres_url: str, forks: Forks, tmp_path: Path) -> Iterator[Run]:
    """Its processes go through the proxy."""
    world = World("postgres", postgres_url)
    run = Run(forks, tmp_path, world, url=proxy.url, TODOKU_LOCK_TIMEOUT_SEC="30")
    yield run
    run.pack.end()
    world.close()


# ------------------------------------------------------------------------------------------------- the proxy itself


@pytest.mark.parametrize("prepared", [None, 0], ids=["simple", "extended"])
@pytest.mark.parametrize("side", ["before", "after"])
def test_the_proxy_cuts_at_a_commit_and_nowhere_else(proxy: Proxy, side: Side, prepared: int | None) -> None:
    """By the simple and by the extended protocol; what the server has committed tells which side it was."""
    with psycopg.connect(proxy.url, autocommit=True) as through:
        through.execute("create table seen (n integer)")
    proxy.cut(side, "into seen")
    with psycopg.connect(proxy.url, autocommit=True, prepare_threshold=prepared) as other:
        other.execute("begin")
        other.execute("commit")  # nothing was inserted: not this one
    assert proxy.waits
    cut = psycopg.connect(proxy.url, autocommit=True, prepare_threshold=prepared)
    cut.execute("begin")
    cut.execute("insert into seen values (%s)", (1,))
    with pytest.raises(psycopg.OperationalError):
        cut.execute("commit")
    cut.close()
    assert len(proxy.cuts) == 1
    with psycopg.connect(proxy.url) as after:
        assert after.execute("select count(*) from seen").fetchall() == [(1 if side == "after" else 0,)]


# --------------------------------------------------------------------------------------------------------- the line


@pytest.mark.parametrize("side", ["before", "after"])
@pytest.mark.parametrize("operation", STATEMENTS)
def test_a_commit_whose_fate_is_unknown_loses_nothing_and_doubles_nothing(
    run: Run, proxy: Proxy, operation: str, side: Side
) -> None:
    cut_commits(run, proxy, operation, side, times=CUTS)
    verdict = run.finish()
    assert verdict.problems == ()
    # Only a handler whose own transaction was rolled back runs again; everything else is found to be done, or not.
    again = CUTS if (operation, side) == ("transact", "before") else 0
    assert verdict.duplicates == again
    assert len(run.refused()) == (CUTS if operation == "publish" else 0)
