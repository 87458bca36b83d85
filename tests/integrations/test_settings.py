"""Where a Django project's App lives: the URL that Django's own settings come to. And what the others refuse."""

from __future__ import annotations

from typing import Any

import psycopg.conninfo
import pytest

import todoku
from todoku.integrations.django.project import postgresql_url
from todoku.integrations.flask import Todoku


@pytest.mark.parametrize(
    ("given", "means"),
    [
        ({"NAME": "shop"}, {"dbname": "shop"}),
        (
            {"NAME": "my shop", "USER": "ada", "PASSWORD": "p@ss:w/rd?", "HOST": "db.local", "PORT": 5433},
            {"dbname": "my shop", "user": "ada", "password": "p@ss:w/rd?", "host": "db.local", "port": "5433"},
        ),
        (
            {"NAME": "shop", "USER": "ada", "HOST": "/run/postgresql", "PORT": "5433"},
            {"dbname": "shop", "user": "ada", "host": "/run/postgresql", "port": "5433"},
        ),
        (
            {"NAME": "shop", "HOST": "db", "OPTIONS": {"sslmode": "require", "connect_timeout": 5, "pool": True}},
            {"dbname": "shop", "host": "db", "sslmode": "require", "connect_timeout": "5"},
        ),
        ({"NAME": "", "OPTIONS": {"service": "shop"}}, {"service": "shop"}),
    ],
)
def test_djangos_settings_become_a_url_that_means_the_same(given: dict[str, Any], means: dict[str, str]) -> None:
    understood = psycopg.conninfo.conninfo_to_dict(postgresql_url(given))
    assert {name: str(value) for name, value in understood.items()} == means


def test_a_job_of_flask_that_runs_before_init_app_says_so(tmp_path: Any) -> None:
    box = todoku.App(f"sqlite:///{tmp_path}/shop.db")

    @box.job(max_attempts=1)
    def early() -> None: ...

    Todoku(box=box)
    box.migrate()
    handle = early.enqueue()
    box.drain()
    (found,) = box.store.messages.story(handle.id).deliveries  # type: ignore[union-attr]
    assert "call init_app(app)" in (found.error or "")
    box.close()
