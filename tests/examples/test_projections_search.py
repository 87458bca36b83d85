"""examples/projections with a real search server: poison and neighbours, the readers' flag, what the verdict finds."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from projections_example.application import Application
from projections_example.search import Index
from projections_example.verdict import judge_search

from tests.examples.projections_at_work import ask, dead_letters, draft, projections_at
from tests.support.services import OpenSearchServer, Service, running

pytestmark = pytest.mark.xdist_group("opensearch of the example")


@pytest.fixture(scope="module")
def search_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A real OpenSearch node."""
    with running(OpenSearchServer, tmp_path_factory.mktemp("opensearch")) as service:
        yield service


@pytest.fixture
def search(url: str, search_service: Service) -> Iterator[Application]:
    """The example on each database, with an index of its own."""
    with projections_at(url, search_url=search_service.url, index=f"documents-{uuid4().hex[:8]}") as application:
        yield application


def index_of(application: Application) -> Index:
    assert application.index is not None
    return application.index


def test_a_poison_document_is_a_dead_letter_with_its_field_and_its_neighbours_arrive(search: Application) -> None:
    """S2-11 … S2-13, S2-34: one attempt, a reason to count by, the field in the text; the chronicle has it as well."""
    before = search.documents.create(draft("before", published_on="2026-01-02"))
    poison = search.documents.create(draft("poison", published_on="soon"))
    after = search.documents.create(draft("after"))
    search.box.drain()
    ((destination, reason, error),) = dead_letters(search)
    assert (destination, reason) == ("search", "SEARCH_REJECTED")
    assert "field published_on" in error
    assert index_of(search).everything().keys() == {before.id, after.id}
    assert len(search.chronicle.entries(poison.id)) == 1
    verdict = judge_search(search, index_of(search))
    assert (verdict.passed, verdict.compared, verdict.dead) == (True, 2, 1)


def test_a_later_revision_of_a_poison_document_arrives(search: Application) -> None:
    """R24: a dead letter does not block its key, because a later document is whole."""
    poison = search.documents.create(draft("poison", published_on="soon"))
    search.documents.change(poison.id, draft("mended", published_on="2026-01-02"))
    search.box.drain()
    assert index_of(search).everything()[poison.id]["title"] == "mended"


async def test_readers_use_the_index_when_the_flag_says_so_and_the_table_when_it_does_not(search: Application) -> None:
    assert search.search is not None
    river = search.documents.create(draft("a river"))
    gone = search.documents.create(draft("another river"))
    search.documents.delete(gone.id)
    await search.box.adrain()
    index_of(search).everything()  # refreshed
    for on, source in ((False, "database"), (True, "index"), (False, "database")):
        await search.search.aset_flag(on, by="ada", why="a test")
        answer = (await ask(search, "GET", "/search?q=river")).json()
        assert (answer["from"], [found["id"] for found in answer["documents"]]) == (source, [river.id])


async def test_while_the_search_server_is_silent_readers_are_answered_from_the_table(
    search: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert search.search is not None
    search.documents.create(draft("a river"))
    await search.box.adrain()
    await search.search.aset_flag(True, by="ada", why="a test")
    monkeypatch.setattr(search, "index", Index("http://127.0.0.1:9", "documents"))
    answer = (await ask(search, "GET", "/search?q=river")).json()
    assert (answer["from"], len(answer["documents"])) == ("database", 1)


def test_the_verdict_finds_a_lost_a_stale_and_an_extra_document(search: Application) -> None:
    documents = [search.documents.create(draft(f"number {n}")) for n in range(4)]
    search.box.drain()
    assert judge_search(search, index_of(search)).passed
    index_of(search).forget(documents[0].id)
    with search.documents.engine.begin() as tx:
        tx.exec_driver_sql(f"update documents set title = 'another' where id = '{documents[1].id}'")
        tx.exec_driver_sql(f"delete from documents where id = '{documents[2].id}'")
    found = judge_search(search, index_of(search))
    assert not found.passed
    assert set(found.differences) == {
        f"{documents[0].id}: missing", f"{documents[1].id}: stale", f"{documents[2].id}: extra",
    }  # fmt: skip


def test_a_rebuild_reads_the_table_and_repairs_what_was_lost(search: Application) -> None:
    assert search.search is not None
    documents = [search.documents.create(draft(f"number {n}")) for n in range(3)]
    search.documents.delete(documents[2].id)
    search.box.drain()
    index_of(search).forget(documents[0].id)
    assert not judge_search(search, index_of(search)).passed
    done = search.search.rebuild(by="ada", why="a document was lost")
    assert (done.switched, done.copied) == (True, 2)
    assert judge_search(search, index_of(search)).passed
    assert search.search.verify().ok
