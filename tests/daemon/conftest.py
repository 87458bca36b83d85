"""A shop on each database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.running import Shop, shop_at


@pytest.fixture
def shop(tmp_path: Path, url: str) -> Iterator[Shop]:
    """An App and its database, on SQLite and on PostgreSQL, migrated."""
    with shop_at(tmp_path, url) as shop:
        shop.box.migrate()
        yield shop


@pytest.fixture
def sqlite_shop(tmp_path: Path, sqlite_url: str) -> Iterator[Shop]:
    """The same on SQLite, where the database makes no difference; not migrated."""
    with shop_at(tmp_path, sqlite_url) as shop:
        yield shop
