"""What the documents show, works: every Python block is run as it is printed, alone, in an empty directory.

A block that cannot run there says why in its info string: ```python no-run: needs a Kafka broker
"""

from __future__ import annotations

import ast
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
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
    prints: str | None = None
    """What it prints, where the page shows that right behind it: ```text prints. `…` stands for any text."""

    @property
    def id(self) -> str:
        return f"{self.page}:{self.line}"


def python_blocks() -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        fences = list(FENCE.finditer(text))
        for match, following in zip(fences, [*fences[1:], None], strict=False):
            info = match["info"].strip()
            if info.split(" ")[0] in {"python", "py"}:
                line = text.count("\n", 0, match.start()) + 1
                shown = following is not None and following["info"].strip() == "text prints"
                prints = following["code"] if following is not None and shown else None
                found.append(Block(str(page.relative_to(ROOT)), line, info, match["code"], prints))
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
def test_the_block_runs_and_prints_what_the_page_shows(block: Block, tmp_path: Path) -> None:
    printed = run(block, tmp_path)
    if block.prints is not None:
        assert re.fullmatch(re.escape(block.prints).replace("…", ".*"), printed), printed


STORES = {
    "abatch", "achain", "aenqueue", "aenqueue_many", "apublish", "apublish_many", "arun_now", "batch", "chain",
    "delay", "defer", "apply_async", "enqueue", "enqueue_json", "enqueue_many", "post", "publish", "publish_json",
    "publish_many", "run_now",
}  # fmt: skip
"""Calls that store messages: of todoku, of other queues that pages show, and by an endpoint that does (`post`)."""


def at_import(node: ast.AST) -> Iterator[ast.AST]:
    """What of a program runs when it is imported: nothing in functions, nor below `if __name__ == "__main__":`."""
    for child in ast.iter_child_nodes(node):
        main = isinstance(child, ast.If) and "__main__" in ast.unparse(child.test)
        if not main and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield child
            yield from at_import(child)


def stored_at_import(code: str) -> list[str]:
    calls = [node.func for node in at_import(ast.parse(code)) if isinstance(node, ast.Call)]
    return [call.attr for call in calls if isinstance(call, ast.Attribute) and call.attr in STORES]


def test_no_block_stores_messages_when_a_worker_imports_it() -> None:
    """Issue 12, A7. A reader saves a block as shop.py, and each worker process of `--app shop:box` imports that.

    Blocks that show a part of a method (`self`) are no program that could be imported.
    """
    programs = [block for block in BLOCKS if "self.box" not in block.code and "a signature" not in block.info]
    assert {block.id: stored for block in programs if (stored := stored_at_import(block.code))} == {}


EXAMPLES = sorted(path for path in (ROOT / "examples").rglob("*.py") if path.name != "__main__.py")


def test_no_example_stores_messages_when_a_worker_imports_it() -> None:
    found = {str(path.relative_to(ROOT)): stored_at_import(path.read_text("utf-8")) for path in EXAMPLES}
    assert {path: stored for path, stored in found.items() if stored} == {}


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
