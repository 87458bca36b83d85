"""Seed 002's labs 005 and 006, typed as their pages print them, and the example by its one command (S2-37)."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path

import httpx
import pytest
from projections_example.search_server import command, missing

from tests.daemon.own_server import own_server
from tests.daemon.running import until
from tests.examples.projections_at_work import EXAMPLE, IMPORTABLE, running_example
from tests.support.labs import Lab, blocks
from tests.support.ports import free_port
from tests.support.services import OpenSearchServer

LAB_5, LAB_6 = EXAMPLE / "lab-005-chronicle.md", EXAMPLE / "lab-006-search.md"
SECONDS = 600.0
needs_search = pytest.mark.skipif(
    OpenSearchServer.missing() is not None, reason="OpenSearch is not here: `make opensearch`"
)


def ports() -> dict[str, str]:
    return {"PORT": str(free_port()), "SEARCH_PORT": str(free_port()), "PYTHONPATH": IMPORTABLE}


def passed(parts: list[str]) -> list[str]:
    """The verdicts that were printed, for the record of the run."""
    found = re.findall(r"^(?:PASS|FAIL) .*$", "".join(parts), re.MULTILINE)
    print("\n".join(found))
    return found


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(SECONDS)
def test_lab_005_the_chronicle_on_sqlite(sqlite_url: str, tmp_path: Path) -> None:
    lab = Lab(5, "sqlite", sqlite_url, tmp_path, page=LAB_5, seconds=SECONDS, **ports())
    assert [one.partition(":")[0] for one in passed(lab.run())] == ["PASS chronicle"] * 4


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.postgres
@pytest.mark.timeout(SECONDS)
def test_lab_005_the_chronicle_on_postgres(tmp_path: Path) -> None:
    """Its server is stopped as a power failure stops it, and started again."""
    with own_server() as server:
        act = f"{shlex.quote(sys.executable)} -m tests.support.labs server"
        home = server._home
        lab = Lab(5, "postgres", server.url, tmp_path, page=LAB_5, seconds=SECONDS, **ports(),
                  DATABASE_STOP=f"{act} stop {home}", DATABASE_START=f"{act} start {home}")  # fmt: skip
        assert [one.partition(":")[0] for one in passed(lab.run())] == ["PASS chronicle"] * 4


@needs_search
@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.timeout(SECONDS)
def test_lab_006_search(backend: str, url: str, tmp_path: Path) -> None:
    lab = Lab(6, backend, url, tmp_path, page=LAB_6, seconds=SECONDS, **ports())
    found = [one.partition(":")[0] for one in passed(lab.run())]
    assert found.count("FAIL search") == 1, "the error that was planted"
    assert [one for one in found if one != "FAIL search"] == ["PASS chronicle", "PASS search"] * 4 + [
        "PASS chronicle", "PASS chronicle", "PASS search", "PASS chronicle", "PASS search",
    ]  # fmt: skip


@pytest.mark.parametrize(("page", "lab"), [(LAB_5, 5), (LAB_6, 6)])
@pytest.mark.parametrize("backend", ["sqlite", "postgres"])
def test_a_lab_has_six_experiments_numbers_and_an_acceptance_query(page: Path, lab: int, backend: str) -> None:
    of_this = blocks(f"lab-{lab}", backend, page)
    assert sum(block.kind == "sql" and block.promised is not None for block in of_this) >= 3
    assert sum("PASS" in (block.promised or "") for block in of_this) >= 4
    headings = " ".join(re.findall(r"^## Experiments? (.*?):", page.read_text("utf-8"), re.MULTILINE))
    assert {int(n) for n in re.findall(r"\d", headings)} >= {1, 3, 6}


# ------------------------------------------------------------------------------------------------ one command


@needs_search
@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
def test_it_comes_up_with_one_command_on_each_database(backend: str, url: str, tmp_path: Path) -> None:
    """`make example NAME=projections`, without the make."""
    given = ports() | {"TODOKU_PORT": str(free_port())} | ({"DATABASE_URL": url} if backend == "postgres" else {})
    with running_example(tmp_path, **given) as printed:
        assert f"http://127.0.0.1:{given['SEARCH_PORT']}/documents" in printed
        api = f"http://127.0.0.1:{given['PORT']}"
        made = httpx.post(f"{api}/documents", json={"title": "a river", "author": "ada"}, timeout=60).json()
        found = f"http://127.0.0.1:{given['SEARCH_PORT']}/documents/_doc/{made['id']}"
        until(lambda: httpx.get(f"{api}/documents/{made['id']}/chronicle", timeout=60).json(), "its entry")
        until(lambda: httpx.get(found, timeout=60).status_code == 200, "its document in the index")


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
def test_without_java_it_says_so_in_one_sentence_and_the_chronicle_works(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    given = ports() | {"TODOKU_PORT": str(free_port()), "PATH": str(tmp_path / "bin")}
    with running_example(tmp_path, **given) as printed:
        assert printed.startswith("There is no Java here, so no search server is started: the chronicle is the only")
        assert "SEARCH_URL=" in printed
        api = f"http://127.0.0.1:{given['PORT']}"
        made = httpx.post(f"{api}/documents", json={"title": "a river", "author": "ada"}, timeout=60).json()
        until(lambda: httpx.get(f"{api}/documents/{made['id']}/chronicle", timeout=60).json(), "its entry")
        assert httpx.get(f"{api}/search?q=river", timeout=60).json()["from"] == "database"


def test_what_cannot_be_started_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("projections_example.search_server.JARS", tmp_path)
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/java")
    assert "`make opensearch` fetches them" in (missing() or "")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert "There is no Java here" in (missing() or "")
    assert command(tmp_path / "data", 9200)[-2] == "9200"
