"""The pytest plugin: `todoku_box` is your App in a fresh database, for one test.

[tool.pytest.ini_options]
todoku_app = "shop:box"          # or [tool.todoku] app, or your own fixture `todoku_app`

pytest --todoku-database postgresql://localhost/test      # one schema per test; without it, SQLite files
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from todoku.app import App
from todoku.daemon.app_loader import find_app_name, load_app
from todoku.testing.fresh_database import fresh, new_schema


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options of the plugin."""
    group = parser.getgroup("todoku")
    group.addoption("--todoku-database", metavar="URL", help="PostgreSQL database of todoku_box; else SQLite files.")
    parser.addini("todoku_app", "App of todoku_box, as module:attribute.")


@pytest.fixture
def todoku_app(pytestconfig: pytest.Config) -> App:
    """The App under test. Override it, or name yours in `todoku_app`; without either, an App without jobs."""
    name = find_app_name(pytestconfig.getini("todoku_app") or None)
    return App("sqlite:///todoku.db") if name is None else load_app(name)


@pytest.fixture
def todoku_database(pytestconfig: pytest.Config, tmp_path: Path) -> Iterator[str]:
    """The URL of this test's database: a file, or a schema. Create your own tables there if tests join transactions."""
    given: str | None = pytestconfig.getoption("--todoku-database")
    if given is None:
        yield f"sqlite:///{tmp_path}/todoku.db"
        return
    with new_schema(given) as url:
        yield url


@pytest.fixture
def todoku_box(todoku_app: App, todoku_database: str) -> Iterator[App]:
    """The App under test, migrated and empty, in a database or schema that is removed afterwards."""
    with fresh(todoku_app, todoku_database) as box:
        yield box
