"""H26: two SQLite libraries of one process on one file lose acknowledged writes, so the second one is refused.

POSIX locks belong to the process: apsw beside the standard library's sqlite3 lost a third of the acknowledged rows,
and `integrity_check` found nothing wrong. apsw is such a second library here.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import aiosqlite
import apsw
import pytest

from tests.support.world import World
from todoku import App
from todoku.core.errors import MixedSQLite, UnsupportedConnection


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The file behind `sqlite_url`."""
    return tmp_path / "todoku.db"


@pytest.fixture
def box(sqlite_url: str) -> Iterator[App]:
    """An App on it."""
    app = App(sqlite_url)
    app.route("**", to="warehouse")
    yield app
    app.close()


@pytest.fixture
def migrated(path: Path, sqlite_url: str) -> Path:
    """The file with its tables, and nobody connected to it."""
    world = World("sqlite", sqlite_url)
    world.store.migrate()
    world.close()
    return path


@contextmanager
def other_library(name: str | Path) -> Iterator[apsw.Connection]:
    """A second SQLite library that has the file open."""
    connection = apsw.Connection(str(name))
    try:
        connection.execute("select * from sqlite_schema").fetchall()  # type: ignore[union-attr]
        yield connection
    finally:
        connection.close()


def count(path: Path) -> int:
    """Messages in the file."""
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute("select count(*) from todoku_message").fetchone()[0])


CALLS: dict[str, Callable[[App], object]] = {
    "migrate": lambda box: box.migrate(),
    "publish": lambda box: box.publish("order.created", {"n": 1}, tx=None),
    "read": lambda box: box.store.ping(),
    "about": lambda box: box.about(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_file_that_another_library_holds_is_not_opened(migrated: Path, box: App, call: str) -> None:
    """H26: whatever would open the file first raises MixedSQLite, which names the library and the way out."""
    with other_library(migrated), pytest.raises(MixedSQLite, match=r"apsw has .*todoku\.db open") as refused:
        CALLS[call](box)
    assert "use sqlite3 for this file" in refused.value.hint
    CALLS[call](box)  # and once the other library has closed it, nothing is in the way
    assert count(migrated) == (call == "publish")


def test_a_library_that_comes_later_stops_the_next_write(path: Path, box: App) -> None:
    """H26: the file is open through sqlite3 already; the write after apsw's opening raises, and nothing is stored."""
    box.migrate()
    box.publish("order.created", {"n": 1}, tx=None)
    with other_library(path):
        with pytest.raises(MixedSQLite):
            box.publish("order.created", {"n": 2}, tx=None)
        with pytest.raises(MixedSQLite):
            box.store.leases.reclaim()
    assert count(path) == 1
    box.publish("order.created", {"n": 3}, tx=None)
    assert count(path) == 2


def test_a_publish_in_the_callers_transaction_is_stopped_too(migrated: Path, box: App) -> None:
    """H26: the caller's own connection is sqlite3's as well, so its commit is no safer."""
    with closing(sqlite3.connect(migrated)) as connection:
        with other_library(migrated), pytest.raises(MixedSQLite):
            box.publish("order.created", {"n": 1}, tx=connection)
        assert not connection.in_transaction
        box.publish("order.created", {"n": 2}, tx=connection)
        connection.commit()
    assert count(migrated) == 1


def test_the_same_for_async_code(migrated: Path, box: App) -> None:
    """H26, through aiosqlite."""

    async def work() -> None:
        async with aiosqlite.connect(migrated) as connection:
            with other_library(migrated), pytest.raises(MixedSQLite):
                await box.apublish("order.created", {"n": 1}, tx=connection)
            await box.apublish("order.created", {"n": 2}, tx=connection)
            await connection.commit()

    asyncio.run(work())
    assert count(migrated) == 1


@pytest.mark.parametrize("way", ["symbolic link", "hard link", "relative path", "uri"])
def test_another_name_of_the_file_is_the_same_file(
    migrated: Path, box: App, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H26: what counts is the file, not what it was called."""
    name: str | Path = migrated.with_name("other.db")
    match way:
        case "symbolic link":
            Path(name).symlink_to(migrated)
        case "hard link":
            os.link(migrated, name)
        case "relative path":
            monkeypatch.chdir(migrated.parent)
            name = f"./{migrated.name}"
        case _:
            name = f"file:{migrated}?mode=rw"
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI
    connection = apsw.Connection(str(name), flags=flags)
    try:
        with pytest.raises(MixedSQLite):
            box.migrate()
    finally:
        connection.close()


def test_an_attached_file_is_open_as_well(migrated: Path, box: App) -> None:
    """H26: ATTACH takes the same locks as a connection of its own."""
    with other_library(":memory:") as connection:
        connection.execute("attach ? as shop", (str(migrated),))
        with pytest.raises(MixedSQLite):
            box.migrate()
        connection.execute("detach shop")
        box.migrate()


def test_another_file_in_the_other_library_is_fine(migrated: Path, box: App) -> None:
    """Only this file matters: apsw may have as many others as it likes, in memory and on disk."""
    with other_library(migrated.with_name("other.db")), other_library(":memory:"), other_library(""):
        box.migrate()
        box.publish("order.created", {"n": 1}, tx=None)
    assert count(migrated) == 1


def test_a_connection_of_another_library_is_no_tx(migrated: Path, box: App) -> None:
    """H26: it would be the second library on the file; the error names it and what may be handed in instead."""
    with other_library(migrated) as connection:
        with pytest.raises(UnsupportedConnection, match=r"apsw\.Connection") as refused:
            box.publish("order.created", {"n": 1}, tx=connection)
        assert "sqlite3" in refused.value.hint
    assert count(migrated) == 0
