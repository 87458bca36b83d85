"""Migrated, empty SQLite files: made once per run, then copied. Migrating took longer than most of the tests."""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path

from tests.support.postgres import locked
from tests.support.world import World
from todoku.store.sqlite.database import file_path


def copy_migrated(url: str) -> None:
    """Put a migrated SQLite file where `url` says, and where none may be yet."""
    path = Path(file_path(url))
    assert not path.exists()
    shutil.copyfile(_template(Path(os.environ["TODOKU_TEST_HOME"])), path)


@cache
def _template(home: Path) -> Path:
    """The file to copy, made by whichever worker process asks first."""
    file, making = home / "migrated.db", home / "making.db"
    with locked(home):
        if not file.exists():
            world = World("sqlite", f"sqlite:///{making}")
            world.store.migrate()
            world.close()
            making.rename(file)
    return file
