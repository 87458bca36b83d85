"""What an operator sees: metrics, and the commands."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Protocol

import pytest

from tests.projections.library import ACT, Library
from tests.support.command import PRELOADED, run_forked
from tests.support.pack import Forks
from tests.support.services import ROOT
from todoku.engine.observability.exposition import PROJECTION_GAUGES, read_gauges, render

APP = """
import os
from tests.projections.library import Library
box = Library(os.environ["TODOKU_DATABASE"], os.environ["SEARCH"], alias=os.environ["ALIAS"]).box
"""


class Run(Protocol):
    """Runs `todoku projection …`, and returns what it prints."""

    def __call__(self, library: Library, *words: str, status: int = 0) -> str: ...


@pytest.fixture(scope="module")
def commands() -> Iterator[Forks]:
    """A process that forks commands."""
    forks = Forks((*PRELOADED, "tests.projections.library"))
    yield forks
    forks.close()


@pytest.fixture
def run(commands: Forks, tmp_path: Path) -> Run:
    (home := tmp_path / "home").mkdir()
    (home / "app.py").write_text(APP)
    number = count()

    def todoku(library: Library, *words: str, status: int = 0) -> str:
        environ = {
            "PATH": os.environ["PATH"], "TODOKU_APP": "app:box", "TODOKU_DATABASE": library.url,
            "SEARCH": library.server, "ALIAS": library.alias, "TODOKU_BY": "ada",
        }  # fmt: skip
        files = tmp_path / f"command {next(number)}"
        done = run_forked(commands, files, ("projection", *words), cwd=home, environ=environ, stdin="")
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout

    return todoku


def test_the_metrics_of_projections_have_their_name_as_label(library: Library) -> None:
    """Metrics: lag and age, for each projection and for all; a rebuild's progress; whether it is stopped."""
    library.put("d1")
    library.put("d1")
    library.put("d2")
    gauges = read_gauges(library.box.store, stuck_after=600)
    text = render([], gauges).decode()
    assert "outbox_lag_events 3.0" in text
    assert 'outbox_lag_events{projection="documents"} 3.0' in text
    assert 'outbox_oldest_age_seconds{projection="documents"} ' in text
    assert all(f'{name}{{projection="documents"}} 0.0' in text for name in PROJECTION_GAUGES)
    library.box.store.projections.stop("documents", "a test")
    text = render([], read_gauges(library.box.store, stuck_after=600)).decode()
    assert 'projection_stopped{projection="documents"} 1.0' in text


def test_the_page_of_metrics_names_those_of_projections() -> None:
    page = (ROOT / "docs" / "observability.md").read_text("utf-8")
    assert all(f"`{name}{{projection}}`" in page for name in PROJECTION_GAUGES)


@pytest.fixture
def shelf(sqlite_url: str, server: str) -> Library:
    made = Library(sqlite_url, server).set_up()
    for number in range(3):
        made.put(f"d{number}")
    made.box.drain()
    return made


def test_the_commands(shelf: Library, run: Run) -> None:
    """CLI: list, show, verify, rebuild, switch --back, the flag, drop, purge; what differs is exit status 1."""
    (row,) = [json.loads(line) for line in run(shelf, "list", "--json").splitlines()]
    assert (row["name"], row["kind"], row["state"], row["lag_events"]) == ("documents", "search", "running", 0)
    assert "3 documents compared, 0 differ" in run(shelf, "verify", "documents")

    done = json.loads(run(shelf, "rebuild", "documents", "--why", "new mappings", "--json"))
    assert (done["copied"], done["differences"], done["switched"]) == (3, 0, True)
    shown = json.loads(run(shelf, "show", "documents", "--json"))
    assert [index["role"] for index in shown["indexes"]] == ["kept", "live"]
    first = shown["indexes"][0]["index"]
    assert f"readers see {first}" in run(shelf, "switch", "documents", "--back", "--why", "a test")
    assert "readers on" in run(shelf, "switch", "documents", "--readers", "on", "--why", "a test")
    assert shelf.documents.flag() is True

    shelf.ask("DELETE", f"/{first}/_doc/d1?refresh=true")
    assert "missing" in run(shelf, "verify", "documents", status=1)
    shelf.delete("d2")
    shelf.box.drain()
    assert "removed 2 deleted" in run(shelf, "purge", "documents", "--older-than", "0")
    assert done["index"] in run(shelf, "drop", "documents", "--index", done["index"], "--why", "a test")
    assert "would" in run(shelf, "rebuild", "documents", "--dry-run")
    assert first in run(shelf, "drop", "documents", "--all", "--why", "a test")
    assert run(shelf, "list") == "no projections\n"


def test_what_a_command_cannot_do_is_said(shelf: Library, run: Run) -> None:
    run(shelf, "show", "nobody", status=1)
    run(shelf, "switch", "documents", "--why", "nothing is ready", status=1)
    run(shelf, "drop", "documents", "--why", "neither", status=2)
    run(shelf, "switch", "documents", "--back", "--readers", "on", "--why", "both", status=2)


def test_acts_are_audited(shelf: Library) -> None:
    shelf.documents.rebuild(**ACT)
    shelf.documents.set_flag(True, **ACT)
    acts = [action for (action,) in shelf.sql("select action from todoku_audit order by id")]
    assert [act.split(" ")[0] for act in acts] == ["rebuild", "switch", "readers"]
