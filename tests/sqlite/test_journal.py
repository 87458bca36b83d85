"""The journal is chosen by the build: WAL only where SQLite cannot lose acknowledged writes in it (DESIGN §5)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.world import World
from todoku.core.errors import UnsafeJournal
from todoku.store.database import Tx
from todoku.store.sqlite import writer
from todoku.store.sqlite.database import SqliteTx
from todoku.store.sqlite.writer import Writer, connect, set_journal, wal_is_safe


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A SQLite file that is not there yet."""
    return tmp_path / "todoku.db"


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Let the linked SQLite pass for one that is safe in WAL, or not."""

    def pretend(safe: bool) -> None:
        monkeypatch.setattr(writer, "wal_is_safe", lambda: safe)

    return pretend


@pytest.fixture
def opened(path: Path) -> Iterator[Callable[..., Writer]]:
    """Opens the file as a store does, and closes it afterwards."""
    writers: list[Writer] = []

    def open_(wal: bool | None = None) -> Writer:
        writers.append(Writer(str(path), wal=wal, timeout=0.1))
        return writers[-1]

    yield open_
    for each in writers:
        each.stop()


def journal_of(path: Path) -> str:
    with closing(sqlite3.connect(path)) as connection:
        return str(connection.execute("pragma journal_mode").fetchone()[0])


# -------------------------------------------------------------------------------------------- the choice


@pytest.mark.parametrize(
    ("version", "safe"),
    [
        ((3, 37, 0), False),
        ((3, 40, 1), False),
        ((3, 43, 99), False),
        ((3, 44, 5), False),
        ((3, 44, 6), True),
        ((3, 44, 99), True),
        ((3, 45, 0), False),
        ((3, 49, 2), False),
        ((3, 50, 0), False),
        ((3, 50, 6), False),
        ((3, 50, 7), True),
        ((3, 50, 8), True),
        ((3, 51, 0), False),
        ((3, 51, 2), False),
        ((3, 51, 3), True),
        ((3, 51, 4), True),
        ((3, 52, 0), True),
        ((4, 0, 0), True),
    ],
    ids=lambda value: ".".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_the_builds_without_the_wal_reset_bug(version: tuple[int, int, int], safe: bool) -> None:
    """3.51.3 and newer, and of the older lines those that had the fix brought back: 3.50.7+, 3.44.6+."""
    assert wal_is_safe(version) is safe


def test_the_build_at_hand_decides(path: Path, opened: Callable[..., Writer]) -> None:
    """WAL where it is safe, TRUNCATE elsewhere; the store says which, and why."""
    expected = "wal" if wal_is_safe(sqlite3.sqlite_version_info) else "truncate"
    assert opened().journal == expected
    world = World("sqlite", f"sqlite:///{path}")
    told = world.store.database.describe()
    world.close()
    assert f"journal {expected}" in told
    assert ("can lose acknowledged writes" in told) is (expected == "truncate")


@pytest.mark.parametrize(("safe", "journal"), [(True, "wal"), (False, "truncate")])
def test_a_safe_build_gets_wal_and_another_does_not(
    path: Path, opened: Callable[..., Writer], build: Callable[[bool], None], safe: bool, journal: str
) -> None:
    """Nobody has to know about it."""
    build(safe)
    assert opened().journal == journal
    assert (journal_of(path) == "wal") is safe


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize(("wal", "journal"), [(True, "wal"), (False, "truncate")])
def test_a_setting_insists(
    path: Path, opened: Callable[..., Writer], build: Callable[[bool], None], safe: bool, wal: bool, journal: str
) -> None:
    """sqlite_wal=True takes WAL on any build, False on none."""
    build(safe)
    assert opened(wal).journal == journal
    assert (journal_of(path) == "wal") is wal


def test_the_setting_reaches_the_file(path: Path, tmp_path: Path) -> None:
    """sqlite_wal is a setting of the store like any other."""
    world = World("sqlite", f"sqlite:///{path}", sqlite_wal=True)
    world.store.migrate()
    world.publish()
    assert (journal_of(path), len(world.deliveries())) == ("wal", 1)
    world.close()


# ------------------------------------------------------------------------------- a file that is in WAL already


def in_wal(path: Path) -> sqlite3.Connection:
    """Somebody's connection to a file that somebody put in WAL."""
    connection = sqlite3.connect(path)
    connection.execute("pragma journal_mode = wal")
    connection.execute("create table mine (id integer)")
    connection.commit()
    return connection


def test_a_file_in_wal_is_taken_out_of_it(
    path: Path, opened: Callable[..., Writer], build: Callable[[bool], None]
) -> None:
    """On an unsafe build, if nobody else has it open."""
    in_wal(path).close()
    build(False)
    assert opened().journal == "truncate"
    assert journal_of(path) != "wal"


def test_a_file_that_must_stay_in_wal_is_refused(
    path: Path, opened: Callable[..., Writer], build: Callable[[bool], None]
) -> None:
    """Another connection keeps it there: UnsafeJournal, whose hint has three ways out; each of them works."""
    build(False)
    with closing(in_wal(path)), pytest.raises(UnsafeJournal, match="can lose acknowledged writes") as refused:
        opened()
    for way in ("close other connections", "3.51.3", "TODOKU_SQLITE_WAL=1"):
        assert way in refused.value.hint
    # The refused one has closed its own connection too, though the error that tells of it is still held here.
    assert opened().journal == "truncate"


def test_who_insists_may_stay_in_wal_with_others(
    path: Path, opened: Callable[..., Writer], build: Callable[[bool], None]
) -> None:
    """TODOKU_SQLITE_WAL=1 on an unsafe build: it was said aloud, and is obeyed."""
    build(False)
    with closing(in_wal(path)):
        assert opened(True).journal == "wal"


def test_a_refused_journal_leaves_the_file_as_it_was(path: Path, build: Callable[[bool], None]) -> None:
    """The other connection goes on as if nothing had happened."""
    build(False)
    with closing(in_wal(path)) as other, closing(connect(str(path), timeout=0.1)) as connection:
        with pytest.raises(UnsafeJournal):
            set_journal(connection, wal=None, timeout=0.05)
        other.execute("insert into mine values (1)")
        other.commit()
        assert other.execute("select * from mine").fetchall() == [(1,)]


# --------------------------------------------------------------------------------------- what is on disk


@pytest.mark.parametrize("wal", [None, True, False])
def test_every_connection_waits_for_the_disk(path: Path, wal: bool | None) -> None:
    """An acknowledged publish is on disk: synchronous is FULL on the writer and on the reader, in every journal."""
    world = World("sqlite", f"sqlite:///{path}", sqlite_wal=wal)
    world.store.migrate()

    def synchronous(tx: Tx) -> int:
        assert isinstance(tx, SqliteTx)
        return int(tx._connection.execute("pragma synchronous").fetchone()[0])

    full = 2
    assert world.store.database.write("publish", synchronous) == full
    assert world.store.database.read(synchronous) == full
    world.close()
