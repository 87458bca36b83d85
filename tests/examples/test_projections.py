"""examples/projections: documents with their events, the chronicle, and what the API answers (S2-1, S2-2, S2-34)."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from projections_example.application import Application
from projections_example.load import POISON
from projections_example.load import draft as written
from projections_example.settings import read_port, read_settings
from projections_example.verdict import judge_chronicle

import todoku
from tests.examples.projections_at_work import ask, dead_letters, draft, projections_at, rows


@pytest.fixture
def projections(url: str) -> Iterator[Application]:
    with projections_at(url) as application:
        yield application


@pytest.fixture(params=["the same database", "another database"])
def chronicle(request: pytest.FixtureRequest, url: str, tmp_path: Path) -> Iterator[Application]:
    """The entries beside the documents, or in a database with an inbox of its own."""
    other = None if request.param == "the same database" else f"sqlite:///{tmp_path}/chronicle.db"
    with projections_at(url, chronicle_database=other) as application:
        yield application


async def test_a_document_is_written_read_changed_and_deleted(projections: Application) -> None:
    created = await ask(projections, "POST", "/documents", {"title": "a river", "author": "ada"})
    assert created.status_code == 201
    path = f"/documents/{created.json()['id']}"
    changed = await ask(projections, "PUT", path, {"title": "a harbour", "author": "ada", "published_on": "2026-01-02"})
    assert (changed.status_code, changed.json()["revision"]) == (200, 2)
    assert (await ask(projections, "GET", path)).json() == changed.json()
    assert (await ask(projections, "DELETE", path)).status_code == 204
    for method in ("GET", "DELETE"):
        assert (await ask(projections, method, path)).status_code == 404
    assert (await ask(projections, "PUT", path, {"title": "again", "author": "ada"})).status_code == 404
    await projections.box.adrain()
    entries = (await ask(projections, "GET", f"{path}/chronicle")).json()
    assert [(entry["number"], entry["what"], entry["title"]) for entry in entries] == [
        (1, "created", "a river"), (2, "changed", "a harbour"), (3, "deleted", "a harbour"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "body", [{}, {"title": "x"}, {"title": "", "author": "a"}, {"title": "x", "author": "a", "colour": "red"},
             {"title": "\x00", "author": "a"}, {"title": "x" * 201, "author": "a"}, [], "text"],
)  # fmt: skip
async def test_what_is_no_document_is_refused(sqlite_url: str, body: Any) -> None:
    with projections_at(sqlite_url) as application:
        assert (await ask(application, "POST", "/documents", body)).status_code == 422
        assert rows(application, "select count(*) from documents") == [(0,)]


async def test_a_document_and_its_event_are_one_commit(projections: Application) -> None:
    """I2: where the event cannot be stored, the document is not there either."""
    rows(projections, "alter table todoku_delivery rename to away")
    assert (await ask(projections, "POST", "/documents", {"title": "x", "author": "ada"})).status_code == 503
    assert rows(projections, "select count(*) from documents") == [(0,)]
    rows(projections, "alter table away rename to todoku_delivery")
    assert (await ask(projections, "POST", "/documents", {"title": "x", "author": "ada"})).status_code == 201
    assert rows(projections, "select count(*) from todoku_message") == [(1,)]


def test_the_source_has_pages_single_documents_and_a_number(projections: Application) -> None:
    """What a rebuild and `verify` ask of it; also for nothing at all."""
    documents = sorted(projections.documents.create(draft(f"number {n}")).id for n in range(3))
    projections.documents.delete(documents[1])
    source = projections.documents
    assert [key for key, _ in source.page(None, 10)] == [documents[0], documents[2]]
    assert [key for key, _ in source.page(documents[0], 10)] == [documents[2]]
    assert source.get(documents).keys() == {documents[0], documents[2]}
    assert (source.get([]), source.count()) == ({}, 2)


async def test_without_a_search_server_a_search_asks_the_table(projections: Application) -> None:
    document = projections.documents.create(draft("a river"))
    projections.documents.create(draft("a harbour"))
    answer = (await ask(projections, "GET", "/search?q=river")).json()
    assert (answer["from"], [found["id"] for found in answer["documents"]]) == ("database", [document.id])
    assert (await ask(projections, "GET", "/search?q=")).status_code == 422


def test_each_event_is_one_entry_and_the_verdict_says_so(chronicle: Application) -> None:
    documents = [chronicle.documents.create(draft(f"number {n}")) for n in range(5)]
    for document in documents[:3]:
        chronicle.documents.change(document.id, draft("changed"))
    chronicle.documents.delete(documents[0].id)
    before = judge_chronicle(chronicle)
    assert (before.passed, before.waiting) == (False, 9)
    chronicle.box.drain()
    after = judge_chronicle(chronicle)
    assert after.line() == ("PASS chronicle: 5 documents compared, 0 differ, 0 have a dead letter, 0 events wait")


def test_a_gap_is_a_dead_letter_that_blocks_its_document_and_no_other(chronicle: Application) -> None:
    """I10, S2-11: and an audited replay, after the cause is repaired, brings everything in order."""
    broken, neighbour = chronicle.documents.create(draft("one")), chronicle.documents.create(draft("two"))
    chronicle.box.drain()
    with chronicle.chronicle.engine.begin() as tx:
        kept = tx.exec_driver_sql("select * from chronicle_entries").mappings().all()
        tx.exec_driver_sql("delete from chronicle_entries")
    chronicle.documents.change(broken.id, draft("one, changed"))
    chronicle.box.drain()
    assert dead_letters(chronicle) == [("chronicle", "GAP", "entry 2 follows entry 0")]
    with chronicle.chronicle.engine.begin() as tx:
        for entry in kept:
            if entry["document_id"] == neighbour.id:
                _put(tx, entry)
    chronicle.documents.change(broken.id, draft("one, changed again"))
    chronicle.documents.change(neighbour.id, draft("two, changed"))
    chronicle.box.drain()
    assert len(chronicle.chronicle.entries(neighbour.id)) == 2
    assert (chronicle.chronicle.entries(broken.id), judge_chronicle(chronicle).waiting) == ([], 1)
    with chronicle.chronicle.engine.begin() as tx:
        for entry in kept:
            if entry["document_id"] == broken.id:
                _put(tx, entry)
    assert chronicle.box.deliveries.replay(reason="GAP", by="ada", why="the entries are back").replayed == 1
    chronicle.box.drain()
    assert judge_chronicle(chronicle).passed


def _put(tx: Any, entry: Any) -> None:
    values = ", ".join("'" + str(value).replace("'", "''") + "'" for value in entry.values())
    tx.exec_driver_sql(f"insert into chronicle_entries ({', '.join(entry.keys())}) values ({values})")


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        ("delete from chronicle_entries where number = 2", "instead of"),
        ("update chronicle_entries set what = 'deleted' where number = 2", "instead of"),
        ("update chronicle_entries set document_id = 'nobody' where number = 1", "there is no such document"),
    ],
)
def test_the_verdict_finds_what_was_planted(projections: Application, planted: str, said: str) -> None:
    document = projections.documents.create(draft())
    projections.documents.change(document.id, draft("changed"))
    projections.box.drain()
    assert judge_chronicle(projections).passed
    rows(projections, planted)
    found = judge_chronicle(projections)
    assert not found.passed
    assert found.line().startswith("FAIL chronicle")
    assert any(said in one for one in found.differences)


def test_the_load_is_the_same_for_the_same_seed_and_has_its_poison() -> None:
    assert written(random.Random(7)) == written(random.Random(7))
    assert written(random.Random(7)) != written(random.Random(8))
    assert written(random.Random(7), poison=True)["published_on"] == POISON


def test_settings_that_cannot_be_are_refused_by_name() -> None:
    with pytest.raises(todoku.InvalidSetting, match="SEARCH_URL"):
        read_settings({"SEARCH_URL": "localhost:9200"})
    with pytest.raises(todoku.InvalidSetting, match="PORT"):
        read_port({"PORT": "http"}, "PORT", 8330)
    assert read_settings({"DATABASE_URL": "sqlite:///x.db"}).database == "sqlite:///x.db"
