"""SEC-10: files that todoku makes are for their owner alone; one that was there keeps its mode, and doctor says so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import todoku
from tests.daemon.running import Shop, shop_at
from todoku.client.answers import Backend
from todoku.client.remote_queue import RemoteBackend
from todoku.client.spool import Spool
from todoku.daemon.file_lock import FileLock
from todoku.engine.diagnostics.doctor import Finding, examine


@pytest.fixture(autouse=True)
def generous() -> Iterator[None]:
    """Everything that is made without a thought would be everybody's to read and write."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    """The modes of the files in a directory, by name."""
    return {path.name: f"{path.stat().st_mode & 0o777:04o}" for path in folder.iterdir() if path.is_file()}


def files(box: todoku.App) -> Finding:
    """What doctor says of the files of a database."""
    (found,) = [finding for finding in examine(box.store, box.settings) if finding.what == "files"]
    return found


@pytest.mark.parametrize("wal", ["true", "false"])
def test_the_file_and_its_journals_are_their_owners_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wal: str
) -> None:
    monkeypatch.setenv("TODOKU_SQLITE_WAL", wal)
    box = todoku.App(f"sqlite:///{tmp_path}/shop.db")
    box.migrate()
    box.route("order.*", to="warehouse")
    box.publish("order.created", {"amount": 42}, tx=None)
    seen = modes(tmp_path)
    assert set(seen) >= ({"shop.db", "shop.db-wal", "shop.db-shm"} if wal == "true" else {"shop.db", "shop.db-journal"})
    assert set(seen.values()) == {"0600"}
    assert files(box).level == "ok"
    box.close()


def test_a_file_behind_a_link_is_private_too(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "shop.db").symlink_to(tmp_path / "disk" / "real.db")
    box = todoku.App(f"sqlite:///{tmp_path}/shop.db")
    box.migrate()
    assert set(modes(tmp_path / "disk").values()) == {"0600"}
    box.close()


def test_the_mode_of_a_file_that_was_there_is_left_and_doctor_says_so(tmp_path: Path) -> None:
    file = tmp_path / "shop.db"
    file.touch(0o664)
    box = todoku.App(f"sqlite:///{file}")
    box.migrate()
    assert modes(tmp_path)["shop.db"] == "0664"
    found = files(box)
    assert found.level == "warn"
    assert f"{file} (0664)" in found.text
    assert "chmod 600" in found.todo
    box.close()


def test_a_spool_and_its_journals_are_their_owners_alone(tmp_path: Path) -> None:
    backend: Backend = RemoteBackend("http://127.0.0.1:9", "a-token")
    spool = Spool(str(tmp_path / "spool.db"), backend, within=0.1)
    assert set(modes(tmp_path).values()) == {"0600"}
    spool.close()


def test_the_lock_of_up_is_its_owners_alone(tmp_path: Path) -> None:
    lock = FileLock(tmp_path / "shop.db")
    assert set(modes(tmp_path).values()) == {"0600"}
    lock.release()


def test_a_daemon_makes_no_file_that_others_can_read(tmp_path: Path) -> None:
    """Its database, journals, lock; and no socket but those that no file leads to."""
    with shop_at(tmp_path, f"sqlite:///{tmp_path}/made.db") as shop:
        _up(shop)
        made = {name: mode for name, mode in modes(tmp_path).items() if name.startswith("made.db")}
        assert set(made.values()) == {"0600"}
        assert not [path for path in tmp_path.rglob("*") if path.is_socket()]


def _up(shop: Shop) -> None:
    shop.start("up", "--app", "shop:box").until_ready()
