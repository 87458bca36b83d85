"""The fixtures of tests that need a database. Imported as a plugin by the root conftest."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tests.support.crew import Crew
from tests.support.migrated import copy_migrated
from tests.support.order import spread
from tests.support.place import place
from tests.support.postgres import fresh_database, server_dsn, stop_server, template_database
from tests.support.world import Backend, World

_HOME = "TODOKU_TEST_HOME"


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        os.environ[_HOME] = tempfile.mkdtemp(prefix="todoku-tests-", dir=place())
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", place())  # of every tmp_path; the workers are told theirs
        signal.signal(signal.SIGTERM, _end)


def _end(*_: object) -> NoReturn:
    """A run that is told to end ends as by Ctrl-C: it stops its PostgreSQL and leaves nothing in memory."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # `timeout` says it twice
    raise KeyboardInterrupt


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Side by side, the slow ones are spread. And pytest-xdist 3.8 notes the groups of `--dist loadgroup` where pytest
    9.2 does not look: bring them there.
    """
    if hasattr(config, "workerinput"):
        items[:] = spread(items)
    if getattr(config.option, "loadgroup", False):
        for item in items:
            grouped = vars(item).get("_nodeid")
            if grouped is not None and grouped != item.nodeid and hasattr(item, "_id"):
                item._id = type(item._id).parse(grouped)


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and _HOME in os.environ:
        stop_server(Path(os.environ.pop(_HOME)))


@pytest.fixture(scope="session")
def mypy_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What mypy has learned of todoku in this process: those that ask for it are in the group `mypy`."""
    return tmp_path_factory.getbasetemp() / "mypy"


@pytest.fixture(scope="session")
def postgres_dsn() -> str:
    """A PostgreSQL server on which databases may be created."""
    return server_dsn(Path(os.environ[_HOME]))


@pytest.fixture
def postgres_url(postgres_dsn: str) -> Iterator[str]:
    """A fresh, migrated PostgreSQL database."""
    template = template_database(Path(os.environ[_HOME]), postgres_dsn)
    with fresh_database(postgres_dsn, template=template) as url:
        yield url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of a SQLite file that is not there yet."""
    return f"sqlite:///{tmp_path}/todoku.db"


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def backend(request: pytest.FixtureRequest) -> Backend:
    """Each database in turn."""
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def url(backend: Backend, request: pytest.FixtureRequest) -> str:
    """The URL of a fresh database of the backend."""
    return request.getfixturevalue(f"{backend}_url")  # type: ignore[no-any-return]


@pytest.fixture
def world(backend: Backend, url: str) -> Iterator[World]:
    """A migrated, empty store with a clock to move."""
    if backend == "sqlite":
        copy_migrated(url)
    world = World(backend, url)
    world.store.migrate()
    yield world
    world.close()


@pytest.fixture
def crew(world: World) -> Crew:
    """Workers on the world's database."""
    return Crew(world)
