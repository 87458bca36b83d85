"""What the caller's own SQLite connection must be: on the App's file, and honest about what is on disk."""

from __future__ import annotations

import asyncio
import sqlite3
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import aiosqlite
import pytest
import sqlalchemy

from tests.support.world import World
from todoku import App
from todoku.core.errors import DurabilityWarning, WrongDatabase


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The App's file."""
    return tmp_path / "todoku.db"


@pytest.fixture
def box(sqlite_url: str) -> Iterator[App]:
    """An App on it, migrated."""
    app = App(sqlite_url)
    app.route("**", to="warehouse")
    app.migrate()
    yield app
    app.close()


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Another file, with tables of todoku's own: publishing there would succeed, and nobody would see it."""
    world = World("sqlite", f"sqlite:///{tmp_path}/other.db")
    world.store.migrate()
    world.close()
    return tmp_path / "other.db"


def count(path: Path) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("select count(*) from todoku_message").fetchone()[0])


# --------------------------------------------------------------------------------------------- which file


def test_a_connection_to_another_file_is_refused(path: Path, box: App, other: Path) -> None:
    """I2, I1: a message in another file is in nobody's queue; the error names both files, and nothing is stored."""
    with closing(sqlite3.connect(other)) as connection:
        with pytest.raises(WrongDatabase, match=r"other\.db, the App is on .*todoku\.db") as refused:
            box.publish("order.created", {"n": 1}, tx=connection)
        assert not connection.in_transaction
    assert "URL" in refused.value.hint
    assert (count(path), count(other)) == (0, 0)


def test_async_and_sqlalchemy_connections_to_another_file_are_refused(box: App, other: Path) -> None:
    """I2, for the drivers that only wrap sqlite3."""

    async def work() -> None:
        async with aiosqlite.connect(other) as connection:
            with pytest.raises(WrongDatabase):
                await box.apublish("order.created", {"n": 1}, tx=connection)

    asyncio.run(work())
    engine = sqlalchemy.create_engine(f"sqlite:///{other}")
    with engine.connect() as connection, pytest.raises(WrongDatabase):
        box.publish("order.created", {"n": 1}, tx=connection)
    engine.dispose()
    assert count(other) == 0


def test_a_database_in_memory_is_another_one(box: App) -> None:
    """I2: it has no file at all."""
    with closing(sqlite3.connect(":memory:")) as connection, pytest.raises(WrongDatabase, match="in memory"):
        box.publish("order.created", {"n": 1}, tx=connection)


def test_the_same_file_by_another_name_is_welcome(path: Path, box: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link, a relative path or a URI to the App's file is the App's file."""
    link = path.with_name("link.db")
    link.symlink_to(path)
    monkeypatch.chdir(path.parent)
    for name in (str(link), "todoku.db", f"file:{path}?mode=rw"):
        with closing(sqlite3.connect(name, uri=name.startswith("file:"))) as connection:
            box.publish("order.created", {"n": 1}, tx=connection)
            connection.commit()
    assert count(path) == 3


def test_files_attached_beside_the_apps_do_not_matter(path: Path, box: App, other: Path) -> None:
    """The caller's main database counts: that is where unqualified tables are found first."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("attach ? as beside", (str(other),))
        box.publish("order.created", {"n": 1}, tx=connection)
        connection.commit()
    assert (count(path), count(other)) == (1, 0)


def test_the_apps_file_attached_to_another_one_is_refused(path: Path, box: App, other: Path) -> None:
    """The other way round the tables of the other file would be found first."""
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("attach ? as shop", (str(path),))
        with pytest.raises(WrongDatabase):
            box.publish("order.created", {"n": 1}, tx=connection)
    assert (count(path), count(other)) == (0, 0)


# --------------------------------------------------------------------------------------- what is on disk


def publish_with(box: App, path: Path, level: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"pragma synchronous = {level}")
        box.publish("order.created", {"level": level}, tx=connection)
        connection.commit()


@pytest.mark.parametrize("level", ["off", "normal"])
def test_a_connection_that_does_not_wait_for_the_disk_is_warned_about(path: Path, box: App, level: str) -> None:
    """H26: a caller's `synchronous` is its own: the publish goes through, and a warning says what to do."""
    with pytest.warns(DurabilityWarning, match="pragma synchronous = full"):
        publish_with(box, path, level)
    assert count(path) == 1


@pytest.mark.parametrize("level", ["full", "extra"])
def test_a_connection_that_waits_for_the_disk_is_not(path: Path, box: App, level: str) -> None:
    """An acknowledged publish is on disk: nothing to say. (Warnings are errors in these tests.)"""
    publish_with(box, path, level)
    assert count(path) == 1


def test_the_warning_is_given_once_in_a_process(path: Path, box: App) -> None:
    """By Python's usual filter: a hundred publishes from many places say it once."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default", DurabilityWarning)
        for _ in range(3):
            publish_with(box, path, "normal")
        publish_with(box, path, "off")
    assert [warning.category for warning in told] == [DurabilityWarning]
    assert count(path) == 4


def test_async_callers_are_warned_as_well(path: Path, box: App) -> None:
    """H26, through aiosqlite."""

    async def work() -> None:
        async with aiosqlite.connect(path) as connection:
            await connection.execute("pragma synchronous = off")
            await box.apublish("order.created", {"n": 1}, tx=connection)
            await connection.commit()

    with pytest.warns(DurabilityWarning):
        asyncio.run(work())
    assert count(path) == 1


def test_who_makes_the_warning_an_error_stores_nothing(path: Path, box: App) -> None:
    """It comes before the first statement."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("pragma synchronous = off")
        with pytest.raises(DurabilityWarning):
            box.publish("order.created", {"n": 1}, tx=connection)
        connection.commit()
    assert count(path) == 0
