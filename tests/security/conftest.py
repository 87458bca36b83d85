"""A real server on each store, and sockets to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import todoku
from tests.api.conftest import server
from tests.daemon.running import Shop, shop_at
from tests.support.migrated import copy_migrated
from tests.support.world import Backend

__all__ = ["server"]
"""A fixture as it is there: the daemon's HTTP server over `box`, in this process."""


@pytest.fixture
def box(backend: Backend, url: str) -> Iterator[todoku.App]:
    """An App on a migrated, empty database of each kind."""
    if backend == "sqlite":
        copy_migrated(url)
    box = todoku.App(url)
    box.migrate()
    yield box
    box.close()


@pytest.fixture
def shop(tmp_path: Path, url: str) -> Iterator[Shop]:
    """An App in a directory and its migrated database, for tests that start a daemon."""
    with shop_at(tmp_path, url) as shop:
        shop.box.migrate()
        yield shop
