"""What an operator sees: metrics, and the commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.projections.library import ACT, Library
from tests.support.services import ROOT
from todoku.engine.observability.exposition import PROJECTION_GAUGES, read_gauges, render

APP = """
import os
from tests.projections.library import Library
box = Library(os.environ["TODOKU_DATABASE"], os.environ["SEARCH"], alias=os.environ["ALIAS"]).box
"""


def run(library: Library, home: Path, *words: str, status: int = 0) -> str:
    """What `todoku projection …` prints."""
    (home / "app.py").write_text(APP)
    environ = {
        "PATH": os.environ["PATH"], "PYTHONPATH": f"{ROOT}/src:{ROOT}:{home}", "TODOKU_APP": "app:box",
        "TODOKU_DATABASE": library.url, "SEARCH": library.server, "ALIAS": library.alias, "TODOKU_BY": "ada",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "todoku", "projection", *words],
        cwd=home, env=environ, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


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


def test_the_commands(shelf: Library, tmp_path: Path) -> None:
    """CLI: list, show, verify, rebuild, switch --back, the flag, drop, purge; what differs is exit status 1."""
    (row,) = [json.loads(line) for line in run(shelf, tmp_path, "list", "--json").splitlines()]
    assert (row["name"], row["kind"], row["state"], row["lag_events"]) == ("documents", "search", "running", 0)
    assert "3 documents compared, 0 differ" in run(shelf, tmp_path, "verify", "documents")

    done = json.loads(run(shelf, tmp_path, "rebuild", "documents", "--why", "new mappings", "--json"))
    assert (done["copied"], done["differences"], done["switched"]) == (3, 0, True)
    shown = json.loads(run(shelf, tmp_path, "show", "documents", "--json"))
    assert [index["role"] for index in shown["indexes"]] == ["kept", "live"]
    first = shown["indexes"][0]["index"]
    assert f"readers see {first}" in run(shelf, tmp_path, "switch", "documents", "--back", "--why", "a test")
    assert "readers on" in run(shelf, tmp_path, "switch", "documents", "--readers", "on", "--why", "a test")
    assert shelf.documents.flag() is True

    shelf.ask("DELETE", f"/{first}/_doc/d1?refresh=true")
    assert "missing" in run(shelf, tmp_path, "verify", "documents", status=1)
    shelf.delete("d2")
    shelf.box.drain()
    assert "removed 2 deleted" in run(shelf, tmp_path, "purge", "documents", "--older-than", "0")
    assert done["index"] in run(shelf, tmp_path, "drop", "documents", "--index", done["index"], "--why", "a test")
    assert "would" in run(shelf, tmp_path, "rebuild", "documents", "--dry-run")
    assert first in run(shelf, tmp_path, "drop", "documents", "--all", "--why", "a test")
    assert run(shelf, tmp_path, "list") == "no projections\n"


def test_what_a_command_cannot_do_is_said(shelf: Library, tmp_path: Path) -> None:
    run(shelf, tmp_path, "show", "nobody", status=1)
    run(shelf, tmp_path, "switch", "documents", "--why", "nothing is ready", status=1)
    run(shelf, tmp_path, "drop", "documents", "--why", "neither", status=2)
    run(shelf, tmp_path, "switch", "documents", "--back", "--readers", "on", "--why", "both", status=2)


def test_acts_are_audited(shelf: Library) -> None:
    shelf.documents.rebuild(**ACT)
    shelf.documents.set_flag(True, **ACT)
    acts = [action for (action,) in shelf.sql("select action from todoku_audit order by id")]
    assert [act.split(" ")[0] for act in acts] == ["rebuild", "switch", "readers"]
