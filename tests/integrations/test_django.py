"""todoku in a Django project: its own tests, run by manage.py in Django's test database, and its commands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.world import Backend

PROJECT = Path(__file__).parent / "django_project"


@pytest.fixture
def environment(backend: Backend, request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """Where the project finds its database."""
    if backend == "sqlite":
        return {"SQLITE_NAME": str(tmp_path / "shop.sqlite3")}
    url = urlsplit(request.getfixturevalue("postgres_url"))
    return {"POSTGRES_NAME": url.path.removeprefix("/"), "POSTGRES_HOST": parse_qs(url.query)["host"][0]}


def manage(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=PROJECT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.slow
def test_the_projects_own_tests_pass(environment: dict[str, str]) -> None:
    """Jobs and tasks join atomic(), the admin acts signed, migrations are complete: see shop/tests.py."""
    done = manage(environment, "test", "--noinput")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Ran 29 tests" in done.stderr, done.stderr


@pytest.mark.postgres
def test_the_projects_own_tests_pass_in_a_schema(request: pytest.FixtureRequest) -> None:
    url = urlsplit(request.getfixturevalue("postgres_url"))
    environment = {"POSTGRES_NAME": url.path.removeprefix("/"), "POSTGRES_HOST": parse_qs(url.query)["host"][0]}
    some = ["shop.tests.Admin.test_I9_a_dead_letter_is_replayed_signed", "shop.tests.Commands"]
    done = manage({**environment, "TODOKU_TEST_SCHEMA": "elsewhere"}, "test", "--noinput", *some)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_manage_py_migrates_runs_once_and_looks(tmp_path: Path) -> None:
    environment = {"SQLITE_NAME": str(tmp_path / "shop.sqlite3")}
    assert (done := manage(environment, "migrate")).returncode == 0, done.stderr
    enqueue = "from shop.tasks import greet; print(greet.enqueue('ada').id)"
    id = manage(environment, "shell", "-c", enqueue).stdout.split()[-1]
    assert (done := manage(environment, "todoku", "run", "--once")).returncode == 0, done.stderr
    shown = manage(environment, "todoku", "show", id, "--json")
    assert '"succeeded"' in shown.stdout, shown.stdout + shown.stderr
    assert manage(environment, "todoku", "show", "--nonsense").returncode == 2


def test_a_worker_process_finds_the_projects_jobs_without_manage_py(tmp_path: Path) -> None:
    """It imports the App by name before anybody has set up Django."""
    listed = (
        "from todoku.daemon.app_loader import load_app; print(sorted(load_app('todoku.integrations.django:box').jobs))"
    )
    done = subprocess.run(
        [sys.executable, "-c", listed], cwd=PROJECT, capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "SQLITE_NAME": str(tmp_path / "shop.sqlite3"), "DJANGO_SETTINGS_MODULE": "project"},
    )  # fmt: skip
    assert done.stdout.strip() == "['django.tasks', 'refused', 'welcome', 'welcome_later']", done.stderr


def test_a_database_in_memory_is_refused_with_the_way_out() -> None:
    done = manage({"SQLITE_NAME": ":memory:"}, "check")
    assert done.returncode != 0
    assert 'set DATABASES["default"]["TEST"]' in done.stderr
