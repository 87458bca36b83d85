"""todoku in a Flask application: one commit with its rows, handlers in its context, commands of its command line."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from flask import Flask
from sqlalchemy import text

from tests.integrations.flask_project import box, create_app, queue, welcome
from tests.support.crew import until
from todoku.testing import assert_enqueued, assert_not_enqueued

ROOT = Path(__file__).resolve().parents[2]
Make = Callable[..., Flask]


@pytest.fixture
def make(url: str) -> Iterator[Make]:
    """Makes the application, with its table."""
    made: list[Flask] = []

    def make(**config: object) -> Flask:
        app = create_app(url, **config)
        made.append(app)
        box.migrate()
        with app.extensions["engine"].begin() as db:
            db.execute(text("create table users (id integer primary key, welcomed integer)"))
        return app

    yield make
    queue.stop()
    for app in made:
        app.extensions["engine"].dispose()
    box.connect("sqlite:///never-opened.db")


def welcomed(app: Flask) -> dict[int, int]:
    with app.extensions["engine"].begin() as db:
        rows = db.execute(text("select id, welcomed from users")).all()
    return {row.id: row.welcomed for row in rows}


def test_I2_the_request_and_its_job_are_one_commit_in_the_configured_database(make: Make, url: str) -> None:
    app = make()
    assert box.settings.database == url
    client = app.test_client()
    assert client.post("/users/7").status_code == 200
    assert_enqueued(welcome, user_id=7)
    assert client.post("/users/8?fail=1").status_code == 500
    assert_not_enqueued(welcome, user_id=8)
    assert list(welcomed(app)) == [7]


def test_handlers_run_in_the_applications_context(make: Make) -> None:
    app = make()
    app.test_client().post("/users/7")
    app.test_client().post("/users/8?later=1")
    assert box.drain() == 2
    assert welcomed(app) == {7: 1, 8: 10}


def test_a_worker_runs_beside_the_application_only_on_request(make: Make) -> None:
    app = make(TODOKU_WORKER=True)
    assert box.store.leases.workers() == ()
    app.test_client().post("/users/7")
    until(lambda: welcomed(app) == {7: 1}, what="the worker beside the application")
    assert len(box.store.leases.workers()) == 1
    queue.stop()
    assert box.store.leases.workers() == ()


def test_the_command_line_of_flask_has_todokus(sqlite_url: str, tmp_path: Path) -> None:
    """`run` finds the application by the name that Flask was given, as worker processes do."""

    def flask(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "flask", "--app", "tests.integrations.flask_project:create_app", *arguments],
            cwd=ROOT, env={**os.environ, "SHOP_DATABASE": sqlite_url}, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip

    assert (done := flask("todoku", "migrate")).returncode == 0, done.stderr
    with closing(sqlite3.connect(tmp_path / "todoku.db")) as db, db:
        db.execute("create table users (id integer primary key, welcomed integer)")
        db.execute("insert into users values (7, 0)")
    assert (done := flask("todoku", "enqueue", "welcome", "user_id=7")).returncode == 0, done.stderr
    assert (done := flask("todoku", "run", "--once")).returncode == 0, done.stderr
    with closing(sqlite3.connect(tmp_path / "todoku.db")) as db:
        assert db.execute("select * from users").fetchall() == [(7, 1)]
    assert flask("todoku", "list", "--nonsense").returncode == 2
