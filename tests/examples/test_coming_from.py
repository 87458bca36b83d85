"""The pages for people who come from another queue: what they show of that queue is true, where it is installed.

Our own side is run by tests/architecture/test_docs.py, everywhere.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import todoku
from tests.architecture.test_docs import BLOCKS, ROOT, SECONDS, Block
from tests.daemon.running import Daemon, until
from tests.support.ports import free_port

PAGES = {"celery": "Celery", "huey": "Huey", "procrastinate": "Procrastinate", "qstash": "qstash"}
THEIRS = [
    (library, block)
    for library, name in PAGES.items()
    for block in BLOCKS
    if block.page == f"docs/from-{library}.md" and block.info.startswith(f"python no-run: {name} ")
]
SECTIONS = ("retries", "tests", "what has no counterpart", "while both run")


def run(block: Block, where: Path, **environ: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", block.code], cwd=where, env=os.environ | environ,
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{block.id}\n{done.stdout}{done.stderr}"
    if block.prints is not None:
        assert re.fullmatch(re.escape(block.prints).replace("…", ".*"), done.stdout), done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("library", "block"), [one for one in THEIRS if one[0] != "qstash"], ids=lambda one: getattr(one, "id", "of")
)
def test_their_side_is_true(
    library: str, block: Block, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Celery is given a broker in memory, by its own environment variables."""
    if find_spec(library) is None:
        pytest.skip("it is not installed: `.venv/bin/pip install celery huey procrastinate`")
    if "on PostgreSQL" in block.info:
        monkeypatch.setenv("DATABASE_URL", request.getfixturevalue("postgres_url"))
    run(block, tmp_path, CELERY_BROKER_URL="memory://", CELERY_RESULT_BACKEND="cache+memory://")


@pytest.mark.slow
def test_their_side_of_qstash_is_true_of_todoku_dev(tmp_path: Path) -> None:
    """The page says that QStash's own client works unchanged: its blocks are run against `todoku dev`."""
    receiver = free_port()
    daemon = Daemon(("dev", "--receiver-port", str(receiver)), tmp_path, {})
    try:
        daemon.until_ready()
        environ = dict(re.findall(r"export (\w+)=(\S+)", until(lambda: daemon.out, "what a client needs")))
        blocks = [block for library, block in THEIRS if library == "qstash"]
        assert blocks
        for block in blocks:
            run(block, tmp_path, WORKER_URL=f"http://127.0.0.1:{receiver}/200", **environ)
    finally:
        daemon.close()


@pytest.mark.parametrize("library", PAGES)
def test_the_page_has_every_part(library: str) -> None:
    text = (ROOT / "docs" / f"from-{library}.md").read_text("utf-8")
    headings = [heading.lower() for heading in re.findall(r"^## (.+)$", text, re.MULTILINE)]
    assert [section for section in SECTIONS if not any(section in heading for heading in headings)] == []


def test_a_worker_runs_what_its_own_app_declares_and_nothing_else(sqlite_url: str) -> None:
    """What the pages say in place of `worker --queues`: a second App of the same database has workers of its own."""
    shop, mail = todoku.App(sqlite_url), todoku.App(sqlite_url)
    ran: list[str] = []

    @shop.job
    def pay() -> None:
        ran.append("pay")

    @mail.job
    def welcome() -> None:
        ran.append("welcome")

    shop.migrate()
    pay.enqueue()
    welcome.enqueue()
    assert (mail.drain(), ran) == (1, ["welcome"])
    assert (shop.drain(), ran) == (1, ["welcome", "pay"])
