"""What the documents show, works: every Python block is run as it is printed, alone, in an empty directory.

A block that cannot run there says why in its info string: ```python no-run: needs a Kafka broker
"""

from __future__ import annotations

import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<code>.*?)^```\s*$", re.MULTILINE | re.DOTALL)
SECONDS = 120


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    page: str
    line: int
    info: str
    code: str

    @property
    def id(self) -> str:
        return f"{self.page}:{self.line}"


def python_blocks() -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in FENCE.finditer(text):
            info = match["info"].strip()
            if info.split(" ")[0] in {"python", "py"}:
                line = text.count("\n", 0, match.start()) + 1
                found.append(Block(str(page.relative_to(ROOT)), line, info, match["code"]))
    return found


BLOCKS = python_blocks()


def run(block: Block, where: Path) -> str:
    """What the block prints. It runs in a process of its own, so that no block leans on another."""
    done = subprocess.run(
        [sys.executable, "-c", block.code],
        cwd=where,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{block.id}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("block", [b for b in BLOCKS if "no-run" not in b.info], ids=lambda block: block.id)
def test_the_block_runs(block: Block, tmp_path: Path) -> None:
    run(block, tmp_path)


def test_a_block_that_does_not_run_says_why() -> None:
    unexplained = [b.id for b in BLOCKS if "no-run" in b.info and not re.search(r"no-run: \S.{5,}", b.info)]
    assert unexplained == []


def test_the_readme_example_is_true(tmp_path: Path) -> None:
    """One commit: the order and its message are both there; and it has arrived, as the printed line says."""
    example = next(b for b in BLOCKS if b.page == "README.md")
    printed = run(example, tmp_path)
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db:
        assert db.execute("select amount from orders").fetchall() == [(42,)]
        messages = db.execute("select topic, id from todoku_message").fetchall()
        assert db.execute("select destination from todoku_history").fetchall() == [("warehouse",)]
        assert db.execute("select count(*) from todoku_delivery").fetchone() == (0,)
    assert [f"PUBLISH {topic} - {id}" for topic, id in messages] == printed.splitlines()
    assert [(topic, UUID(id).version) for topic, id in messages] == [("order.created", 7)]


def test_links_between_pages_lead_somewhere() -> None:
    """Only links inside the project are followed."""
    broken = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []
