"""`todoku up --reload`: what is saved runs, without a restart by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.daemon.running import SHOP, Daemon, Shop, until
from tests.daemon.test_up import refused
from todoku.daemon.reload import take_snapshot

pytestmark = pytest.mark.slow


def version(shop: Shop, text: str) -> None:
    """Save the shop with another word in its notes."""
    (shop.home / "shop.py").write_text(SHOP.replace('note("quick"', f'note("{text}"'))


def told(daemon: Daemon, event: str) -> list[dict[str, object]]:
    """The log lines of an event; the daemon and what starts it write to one file."""
    lines = [line for line in daemon.err.splitlines() if line.startswith("{") and line.endswith("}")]
    return [line for line in map(json.loads, lines) if line["event"] == event]


def test_a_saved_file_runs_and_a_broken_one_waits_for_the_next(shop: Shop) -> None:
    daemon = shop.start("up", "--app", "shop:box", "--workers", "1", "--log", "json", "--reload")
    try:
        daemon.until_ready()
        shop.enqueue("quick", 1)
        until(lambda: shop.noted("quick 1"), "the first version to run")
        version(shop, "second")
        until(lambda: len(told(daemon, "STARTED")) == 2, "it to start again")
        shop.enqueue("quick", 2)
        until(lambda: shop.noted("second 2"), "the second version to run")
        (shop.home / "shop.py").write_text("this is no Python")
        until(lambda: told(daemon, "WAITING_FOR_CHANGE"), "it to wait")
        assert "cannot import the app shop:box: SyntaxError" in daemon.err
        version(shop, "third")
        shop.enqueue("quick", 3)
        until(lambda: shop.noted("third 3"), "the third version to run")
        assert len(told(daemon, "RELOADING")) == 3
    finally:
        code = daemon.stop()
    assert code == 0
    assert shop.counts()["succeeded"] == 3
    assert shop.box.store.leases.workers() == ()


def test_what_makes_no_sense_is_refused(sqlite_shop: Shop) -> None:
    assert "--reload has nothing to watch without an App" in refused(sqlite_shop.start("up", "--reload"))
    unit = sqlite_shop.start("up", "--reload", "--app", "shop:box", NOTIFY_SOCKET="/run/x")
    assert "--reload is for development, and systemd runs this" in refused(unit)
    production = sqlite_shop.start("run", "--reload", "--app", "shop:box")
    assert (production.exit_code(), "No such option" in production.err) == (2, True)


def test_only_the_projects_own_python_files_are_watched(tmp_path: Path) -> None:
    for name in ("shop.py", "shop.db", "jobs/mail.py", ".venv/lib/x.py", "node_modules/x.py", "jobs/__pycache__/x.py"):
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True, parents=True)
        file.touch()
    assert sorted(take_snapshot([tmp_path])) == [str(tmp_path / "jobs/mail.py"), str(tmp_path / "shop.py")]
