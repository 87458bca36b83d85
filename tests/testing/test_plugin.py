"""The pytest plugin, in somebody else's project: a pytest of its own runs their tests, and we read what it says."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import psycopg
import pytest

from tests.support.world import Backend

ROOT = Path(__file__).resolve().parents[2]

SHOP = """
import todoku

box = todoku.App("sqlite:///production.db")

@box.job(queue="mail")
def welcome(user_id: int, hobby: str | None = None) -> None:
    ...

def sign_up(user_id: int) -> None:
    welcome.using(delay=60).enqueue(user_id)
"""

TESTS = """
import pytest
from shop import box, sign_up, welcome
from todoku.testing import assert_enqueued, assert_not_enqueued, crash, frozen, inline, lose_lease

@pytest.mark.parametrize("time", [1, 2])
def test_a_new_user_is_welcomed_after_a_minute(todoku_box, time):
    assert todoku_box is box
    assert_not_enqueued(welcome)
    with frozen(todoku_box) as clock:
        sign_up(7)
        assert_enqueued(welcome, user_id=7)
        assert todoku_box.drain() == 0
        clock.tick(60)
        assert todoku_box.drain() == 1

def test_a_crash(todoku_box):
    welcome.enqueue(7)
    crash(todoku_box)
    assert lose_lease(todoku_box) == 1
    assert todoku_box.drain() == 1

def test_inline(todoku_box):
    with inline(todoku_box):
        welcome.enqueue(7)

def test_that_fails(todoku_box):
    sign_up(8)
    assert_enqueued(welcome, user_id=7)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "shop.py").write_text(SHOP)
    (folder / "test_shop.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\ntodoku_app = shop:box\npythonpath = .\n")
    return folder


def said_by_pytest(project: Path, *arguments: str) -> tuple[int, str]:
    """Run their tests. The plugin is named, so that it does not matter how todoku is installed here."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:todoku",
        "-p",
        "todoku.testing.plugin",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [*command, *arguments], cwd=project, capture_output=True, text=True, timeout=120, check=False
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_a_projects_own_tests_run_each_in_a_database_of_its_own(backend: Backend, url: str, project: Path) -> None:
    where = [] if backend == "sqlite" else ["--todoku-database", url]
    code, said = said_by_pytest(project, *where)
    assert code == 1, said
    assert "4 passed" in said
    assert "1 failed" in said
    assert "E       AssertionError: welcome(user_id=7) was not enqueued" in said
    assert re.search(r"^E +user_id: 8 instead of 7$", said, re.MULTILINE)
    assert "def assert_enqueued" not in said  # the traceback ends in their test
    assert not (project / "production.db").exists()


OWN_TABLES = """
from contextlib import closing
import sqlite3
import psycopg
import pytest

@pytest.fixture
def db(todoku_database):
    sqlite = todoku_database.startswith("sqlite")
    connect = sqlite3.connect if sqlite else psycopg.connect
    with closing(connect(todoku_database.removeprefix("sqlite:///"))) as db:
        db.execute("create table orders (id integer)")
        db.commit()
        yield db

@pytest.mark.parametrize("time", [1, 2])
def test_an_order_and_its_job_are_one_commit(todoku_box, db, time):
    from shop import welcome
    db.execute("insert into orders values (7)")
    welcome.using(tx=db).enqueue(7)
    db.commit()
    assert db.execute("select count(*) from orders").fetchone() == (1,)
    assert db.execute("select count(*) from todoku_message").fetchone() == (1,)
    assert todoku_box.drain() == 1

def test_without_the_app(db):
    assert db.execute("select count(*) from orders").fetchone() == (0,)
"""


@pytest.mark.slow
def test_a_projects_own_tables_are_in_the_database_of_the_test(backend: Backend, url: str, project: Path) -> None:
    """`todoku_database` is the schema of this test, not the database that all tests share; nothing of it is left."""
    (project / "test_shop.py").write_text(OWN_TABLES)
    where = [] if backend == "sqlite" else ["--todoku-database", url]
    code, said = said_by_pytest(project, *where)
    assert code == 0, said
    assert "3 passed" in said
    if backend == "postgres":
        with psycopg.connect(url) as db:
            left = db.execute("select nspname from pg_namespace where nspname like 'todoku_test_%'").fetchall()
            assert (left, db.execute("select to_regclass('orders')").fetchone()) == ([], (None,))


@pytest.mark.slow
def test_the_app_may_be_named_by_pyproject_or_by_nobody(project: Path) -> None:
    (project / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    (project / "test_shop.py").write_text(
        "def test_named(todoku_box):\n    assert list(todoku_box.jobs) == __import__('json').load(open('jobs.json'))\n"
    )
    (project / "jobs.json").write_text("[]")
    assert said_by_pytest(project)[0] == 0
    (project / "pyproject.toml").write_text('[tool.todoku]\napp = "shop:box"\n')
    (project / "jobs.json").write_text('["welcome"]')
    assert said_by_pytest(project)[0] == 0


def test_the_plugin_is_what_the_package_announces() -> None:
    announced = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    assert hasattr(import_module(announced["todoku"]), "todoku_box")


def test_the_example_of_the_page_passes(project: Path) -> None:
    """docs/testing.md begins with a whole test file."""
    page = (ROOT / "docs" / "testing.md").read_text("utf-8")
    (project / "pytest.ini").write_text("[pytest]\n")
    (project / "test_shop.py").write_text(page.split("```python\n")[1].split("```")[0])
    code, said = said_by_pytest(project)
    assert code == 0, said
    assert "4 passed" in said
