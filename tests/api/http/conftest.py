"""One server for a file of tests, on SQLite: the database makes no difference to how HTTP is spoken."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import todoku
from tests.support.serving import Server, serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real HTTP server over an App."""
    box = todoku.App(f"sqlite:///{tmp_path_factory.mktemp('http')}/todoku.db")
    box.migrate()
    with serving(box) as server:
        yield server
    box.close()
