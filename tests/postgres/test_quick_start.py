"""The quick start of docs/postgresql.md, on a server: todoku's tables are in a schema of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.architecture.test_docs import BLOCKS, run
from tests.postgres.conftest import Make

pytestmark = pytest.mark.postgres
SHOWN = "postgresql://localhost/shop"


def command(where: Path, *arguments: str, **environ: str) -> str:
    done = subprocess.run(
        ["env", *(f"{name}={value}" for name, value in environ.items()), sys.executable, "-m", "todoku", *arguments],
        cwd=where, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_quick_start_is_true(make_database: Make, tmp_path: Path) -> None:
    """Issue 12, A7: `schema=` in the quick start; the job arrives, and every command finds the same schema."""
    url = make_database()
    block = next(block for block in BLOCKS if block.page == "docs/postgresql.md" and SHOWN in block.code)
    program = block.code.replace(SHOWN, url)
    (tmp_path / "shop.py").write_text(program, encoding="utf-8")
    printed = run(type(block)(block.page, block.line, block.info, program), tmp_path)
    assert printed == block.prints
    with psycopg.connect(url) as db:
        places = db.execute("select distinct schemaname from pg_tables where tablename like 'todoku_%'").fetchall()
        assert places == [("todoku",)]
        assert db.execute("select name from public.users").fetchall() == [("Ada",)]
    by_hand = command(tmp_path, "stats", "--db", url, "--schema", "todoku", "--json")
    assert '"succeeded"' in by_hand
    assert command(tmp_path, "stats", "--json", TODOKU_APP="shop:box") == by_hand
    assert command(tmp_path, "run", "--app", "shop:box", "--once", "--json").startswith('{"settled":0')
