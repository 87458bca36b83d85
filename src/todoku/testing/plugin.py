"""The pytest plugin: `todoku_box` is your App in a fresh database, for one test.

[tool.pytest.ini_options]
todoku_app = "shop:box"          # or [tool.todoku] app, or a fixture `todoku_app` of your own

pytest --todoku-database postgresql://localhost/test      # a schema of its own per test; without it, SQLite files
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from todoku.app import App
from todoku.daemon.app_loader import find_app_name, load_app
from todoku.testing.fresh_database import fresh


def pytest_addoption(parser: pytest.Parser) -> None:
    """What the plugin can be told."""
    group = parser.getgroup("todoku")
    group.addoption("--todoku-database", metavar="URL", help="Where todoku_box lives: a PostgreSQL database for tests.")
    parser.addini("todoku_app", "The App of todoku_box, as module:attribute.")


@pytest.fixture
def todoku_app(pytestconfig: pytest.Config) -> App:
    """The App under test. Override it, or name yours in `todoku_app`; without either, an App with nothing declared."""
    name = find_app_name(pytestconfig.getini("todoku_app") or None)
    return App("sqlite:///todoku.db") if name is None else load_app(name)


@pytest.fixture
def todoku_database(pytestconfig: pytest.Config, tmp_path: Path) -> str:
    """The URL of this test's database. Make your own tables there, too, where tests join transactions."""
    given: str | None = pytestconfig.getoption("--todoku-database")
    return given or f"sqlite:///{tmp_path}/todoku.db"


@pytest.fixture
def todoku_box(todoku_app: App, todoku_database: str) -> Iterator[App]:
    """The App under test, migrated and empty, in a database or schema that is removed afterwards."""
    with fresh(todoku_app, todoku_database) as box:
        yield box
