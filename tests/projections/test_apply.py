"""Events become documents: in order, once, each with an outcome of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import pytest

import todoku
from tests.projections.library import ACT, MAPPINGS, Library
from tests.projections.proxy import Proxy
from todoku.core.projection import GENERATION
from todoku.engine.projections import bulk


def test_what_is_published_is_what_readers_find(library: Library) -> None:
    """Projections: created, changed and deleted documents, after any number of batches."""
    for number in range(30):
        library.put(f"d{number}", views=number)
    library.box.drain()
    library.agree()
    for number in range(0, 30, 3):
        library.delete(f"d{number}")
        library.put(f"d{number + 1}", title="changed")
    library.box.drain()
    library.agree()
    assert len(library.seen()) == 20
    assert library.documents.lag().events == 0


def test_a_deleted_document_stays_behind_the_filter_of_the_alias(library: Library) -> None:
    """Projections: the server forgets a delete after a minute; a document that is marked as deleted stays."""
    library.put("d1")
    library.delete("d1")
    library.box.drain()
    live = library.row().of("live")
    assert live is not None
    assert library.seen() == {}
    assert library.ask("GET", f"/{live.name}/_doc/d1")["_source"]["todoku"]["deleted"] is True


def test_the_version_is_the_generation_and_the_number_of_the_message(library: Library) -> None:
    """R21: version = generation · 2^48 + the number that was drawn under the lock of the key."""
    library.put("d1")
    library.put("d1", title="again")
    library.box.drain()
    ((newest,),) = library.sql("select max(seq) from todoku_message")
    assert library.version("d1") == GENERATION + newest


def test_a_poison_document_is_a_dead_letter_with_its_field_and_its_neighbours_arrive(library: Library) -> None:
    """Projections: a mapping error names the field; I13: the others of the batch lose nothing."""
    for number in range(10):
        library.put(f"d{number}", views="many" if number == 4 else number)
    library.box.drain()
    ((reason, error),) = library.dead()
    assert reason == "SEARCH_REJECTED"
    assert error.startswith("field views: ")
    assert sorted(library.seen()) == [f"d{number}" for number in range(10) if number != 4]


def test_a_dead_letter_does_not_block_the_later_documents_of_its_key(library: Library) -> None:
    """R24: search skips dead letters, because a later document is whole."""
    library.put("d1", views="many")
    library.put("d1", title="good", views=2)
    library.box.drain()
    assert len(library.dead()) == 1
    library.agree()


def test_a_message_without_a_key_is_refused_when_it_is_published(library: Library) -> None:
    """Projections: without a key there is no order; the error says what to do."""
    with pytest.raises(todoku.InvalidMessage, match=r"needs a key.*'id'"):
        library.box.publish("document.changed", {"title": "nobody's"}, tx=None)
    assert library.sql("select count(*) from todoku_message") == [(0,)]


def test_a_message_that_was_published_without_order_is_refused_with_the_reason(library: Library) -> None:
    """Projections: a message without a lane has a number that orders nothing: a dead letter, not a document."""
    library.put("d1")
    library.sql("update todoku_delivery set lane = null")
    library.box.drain()
    ((reason, error),) = library.dead()
    assert (reason, "order" in error) == ("UNORDERED", True)


def test_a_key_that_is_no_id_is_a_dead_letter(library: Library) -> None:
    """Projections: an id has 512 bytes at most, and the server refuses the whole request for one that is longer."""
    library.put("界" * 200)
    library.put("d1")
    library.box.drain()
    assert [reason for reason, _ in library.dead()] == ["TOO_LARGE"]
    assert list(library.seen()) == ["d1"]


def test_a_function_makes_the_document(url: str, server: str) -> None:
    """Projections: `document=` makes a document of an event, or deletes it with None; what it raises is its outcome."""

    def document(change: todoku.Change) -> Mapping[str, Any] | None:
        if change.payload["title"] == "broken":
            raise ValueError("no such title")
        return None if change.payload["views"] < 0 else {"title": change.payload["title"].upper(), "key": change.key}

    library = Library(url, server, document=document, max_attempts=1).set_up()
    library.put("d1", title="loud")
    library.put("d2", title="gone", views=-1)
    library.put("d3", title="broken")
    library.box.drain()
    assert library.seen() == {"d1": {"title": "LOUD", "key": "d1"}}
    assert "no such title" in library.dead()[0][1]
    library.close()


def test_a_busy_server_gets_smaller_requests(url: str, server: str) -> None:
    """Projections: 429 halves the batch, and everything arrives without a failed attempt."""
    with Proxy(server, most_documents=8) as proxy:
        to = todoku.opensearch(f"busy{uuid4().hex[:8]}", url=proxy.url, mappings=MAPPINGS)
        library = Library(url, server, to=to, alias=to.alias).set_up()
        for number in range(100):
            library.put(f"d{number}")
        library.box.drain()
        library.agree()
        assert proxy.refused > 0
        assert max(proxy.sizes) > 8
        assert library.sql("select count(*) from todoku_attempt") == [(0,)]
        library.close()


def test_a_storm_of_429_is_waited_out(url: str, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Projections: while the server takes nothing, events wait in the database, and are no dead letters."""
    monkeypatch.setattr(bulk, "_PAUSE", 0.002)  # between two requests of an attempt: none of them is taken
    with Proxy(server, most_documents=0) as proxy:
        to = todoku.opensearch(f"storm{uuid4().hex[:8]}", url=proxy.url, mappings=MAPPINGS)
        library = Library(url, server, to=to, alias=to.alias, backoff=todoku.table(0.01)).set_up()
        for number in range(5):
            library.put(f"d{number}")
        library.box.drain()
        assert library.dead() == []
        assert library.documents.lag().events == 5
        proxy.most_documents = None
        _close_breaker(library)
        library.box.drain()
        library.agree()
        library.close()


def test_a_full_disk_is_waited_out(library: Library) -> None:
    """Projections: a server whose disk is full makes its indexes read-only; nothing is lost or rejected."""
    library.put("d0")
    library.box.drain()
    live = library.row().of("live")
    assert live is not None
    library.ask("PUT", f"/{live.name}/_settings", {"index.blocks.read_only_allow_delete": True})
    library.put("d1")
    library.box.drain()
    assert library.sql("select status, reason from todoku_delivery") == [("failed", "SEARCH_BLOCKED")]
    library.ask("PUT", f"/{live.name}/_settings", {"index.blocks.read_only_allow_delete": None})
    library.sql("update todoku_delivery set next_run_at = updated_at")
    library.sql("update todoku_lane set ready_at = (select next_run_at from todoku_delivery)")
    library.box.drain()
    library.agree()


def test_an_index_that_was_deleted_by_hand_is_not_made_anew_by_a_write(library: Library) -> None:
    """Projections: the write alias is required, so a write is refused (404, transient), and a rebuild mends it."""
    library.put("d0")
    library.box.drain()
    live = library.row().of("live")
    assert live is not None
    library.ask("DELETE", f"/{live.name}")
    library.put("d1")
    library.box.drain()
    assert library.sql("select status, reason from todoku_delivery") == [("failed", "SEARCH_MISSING")]
    found = library.documents.verify()
    assert any("deleted by hand" in problem for problem in found.problems)


def _close_breaker(library: Library) -> None:
    past = "0" if library.url.startswith("sqlite") else "'-infinity'"
    library.sql(f"update todoku_destination set open_until = {past}, failures = 0")
    library.sql("update todoku_delivery set next_run_at = updated_at")
    library.sql("update todoku_lane set ready_at = (select min(next_run_at) from todoku_delivery)")


def test_the_flag_tells_readers_and_is_audited(library: Library) -> None:
    """Projections: a feature flag for readers, off at first, set by an operator."""
    assert library.documents.flag() is False
    library.documents.set_flag(True, **ACT)
    assert library.documents.flag() is True
    assert Library(library.url, library.server).documents.flag() is True
    assert ("ada", "readers on", "projection:documents") in library.sql("select by, action, target from todoku_audit")


def test_an_event_of_a_projection_does_not_run_again_as_a_new_one(library: Library) -> None:
    """Projections: a success that ran again would be the newest event of its key, with an old document."""
    library.put("d1", title="old")
    library.put("d1", title="new")
    library.box.drain()
    ids = [id for (id,) in library.sql("select delivery_id from todoku_history order by delivery_id")]
    done = library.box.deliveries.replay(ids[0], again=True, **ACT)
    assert done.replayed == 0
    assert any("projection" in why for why in done.skipped)


def test_wrong_mappings_cost_no_event(url: str, server: str) -> None:
    """Projections: an index that cannot be created is the declaration's fault; a deploy mends it, and events wait."""
    alias = f"wrong{uuid4().hex[:8]}"
    to = todoku.opensearch(alias, url=server, mappings={"properties": {"views": {"type": "no such type"}}})
    library = Library(url, server, to=to, alias=alias, backoff=todoku.table(0.01)).set_up()
    library.put("d1")
    library.box.drain(limit=1)
    assert library.sql("select status, reason from todoku_delivery") == [("failed", "SEARCH_SETUP")]
    library.close()
    mended = Library(url, server, alias=alias)
    _close_breaker(mended)
    mended.box.drain()
    mended.agree()
    mended.close()


def test_a_projection_that_was_never_migrated_is_declared_by_the_worker(url: str, server: str) -> None:
    """Projections: a deploy that adds one needs no `migrate`; one that was dropped and is still declared comes back."""
    library = Library(url, server).set_up()
    library.sql("delete from todoku_projection_index")
    library.sql("delete from todoku_projection")
    library.put("d1")
    library.box.drain()
    library.agree()
    library.documents.drop(**ACT)
    library.put("d2")
    library.box.drain()
    assert sorted(library.seen()) == ["d2"]
    library.close()
