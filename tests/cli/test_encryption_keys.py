"""Keys from the command line: make, list, rotate, shred. What they do to each database: tests/encryption."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import TypeVar

import pytest

from tests.cli.program import Run, Shop, misused, refused, rows, said
from tests.support.world import World
from todoku.app import App
from todoku.core.sealed import format_master_key, master_keys
from todoku.engine.encryption.sealer import Sealer, utc_today

T = TypeVar("T")
YESTERDAY = utc_today() - timedelta(days=1)


@pytest.fixture
def key() -> str:
    return format_master_key("spring", os.urandom(32))


@pytest.fixture
def shop(run: Run, sqlite_url: str) -> Iterator[Shop]:
    """A migrated SQLite database, and the program on it."""
    world = World("sqlite", sqlite_url)
    world.store.migrate()
    yield Shop(world, lambda *given, **more: run(*given, **{"TODOKU_DATABASE": sqlite_url, "TODOKU_BY": "ada", **more}))
    world.close()


def encrypt(shop: Shop, key: str, monkeypatch: pytest.MonkeyPatch, *, number: int = 1) -> None:
    """Enqueue encrypted calls, sealed yesterday."""
    monkeypatch.setenv("TODOKU_MASTER_KEYS", key)
    box = App(shop.world.url)

    @box.job(encrypted=True)
    def greet(name: str) -> None: ...

    box.outbox.sealer = Sealer(box.settings, today=lambda: YESTERDAY)
    box.outbox.sealer.declare("greet")
    for _ in range(number):
        greet.enqueue("Ada")
    box.close()


def on_one_day(act: Callable[[], T]) -> tuple[date, T]:
    """What an act came to that was not caught by midnight, and its day."""
    while True:
        day, done = utc_today(), act()
        if utc_today() == day:
            return day, done


def test_a_generated_key_can_be_used_as_it_is_printed(run: Run) -> None:
    (line,) = said(run("encryption-keys", "generate", "--id", "autumn"))
    found = master_keys(line).current
    assert (found.id, len(found.key)) == ("autumn", 32)
    day, (another,) = on_one_day(lambda: said(run("encryption-keys", "generate")))
    assert another.startswith(f"{day}:")
    assert another.partition(":")[2] != line.partition(":")[2]
    assert "cannot be called" in refused(run("encryption-keys", "generate", "--id", "a b"))


def test_list_rotate_and_shred(shop: Shop, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encrypt(shop, key, monkeypatch)
    (row,) = rows(shop.run("encryption-keys", "list", "--json", TODOKU_MASTER_KEYS=key))
    assert (row["day"], row["master_key"], row["configured"], row["keys"]) == (str(YESTERDAY), "spring", True, 1)
    autumn = format_master_key("autumn", os.urandom(32))

    both = {"TODOKU_MASTER_KEYS": f"{autumn},{key}"}
    told = said(shop.run("encryption-keys", "rotate", "--why", "autumn", **both))
    assert told == ["rotate to autumn: wrapped 1 data keys"]

    day = ("--day", str(YESTERDAY))
    assert "1 unfinished deliveries" in refused(shop.run("encryption-keys", "shred", *day, **both))
    told = said(shop.run("encryption-keys", "shred", *day, "--force", "--why", "asked to forget", **both))
    assert told == ["shred: deleted 1 data keys", "  unreadable: 1 unfinished deliveries, 0 dead letters"]
    assert [(by, action, why) for by, action, _, why in shop.audit()] == [
        ("ada", "rotate to autumn", "autumn"), ("ada", "shred", "asked to forget"),
    ]  # fmt: skip


def test_what_cannot_be_done_is_said(shop: Shop, key: str) -> None:
    keys = {"TODOKU_MASTER_KEYS": key}
    _, done = on_one_day(lambda: shop.run("encryption-keys", "shred", "--day", str(utc_today()), **keys))
    assert "in use" in refused(done)
    assert "is not a day" in misused(shop.run("encryption-keys", "shred", "--day", "yesterday", **keys))
    wrong = refused(shop.run("list", TODOKU_MASTER_KEYS="spring:c2hvcnQ="))
    assert "'spring' has 5 bytes, 32 are needed" in wrong


def test_a_key_may_be_in_a_file_and_doctor_does_not_tell_it(shop: Shop, key: str, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{key}\n")
    done = shop.run("encryption-keys", "rotate", "--json", TODOKU_MASTER_KEYS_FILE=str(file))
    assert '"master_key":"spring"' in done.stdout
    done = shop.run("doctor", TODOKU_MASTER_KEYS_FILE=str(file))
    assert key.partition(":")[2] not in done.stdout + done.stderr
