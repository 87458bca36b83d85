"""The four holes that were found on paper: R21 to R24."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

import pytest

import todoku
from tests.projections.library import ACT, Library, Table, working
from todoku.core.errors import InvalidAct
from todoku.core.outcome import Outcome
from todoku.core.projection import GENERATION, SUPERSEDED
from todoku.engine.projections import document_writer
from todoku.store.audit import Signed


def event(key: str, sequence: int, worker: UUID, **document: Any) -> todoku.Outgoing:
    """A message as a worker hands it to the projection."""
    return todoku.Outgoing(
        message_id=str(uuid4()), idempotency_key="", topic="document.changed", key=key,
        payload=json.dumps({"id": key, **document}).encode(),
        content_type="application/json", headers={}, attempt=1, created_at=0.0, sequence=sequence, worker=worker,
    )  # fmt: skip


def apply(library: Library, *events: todoku.Outgoing) -> list[Outcome]:
    """Applies events as a worker would, and closes the connection of this event loop."""

    async def run() -> list[Outcome]:
        try:
            return await library.documents.apply(events)
        finally:
            await library.box.registry["documents"].sender.aclose()  # type: ignore[union-attr]

    return asyncio.run(run())


def go_back(library: Library, seq: int) -> None:
    """What a restore does to the numbers of messages: those above `seq` were never drawn."""
    library.sql(f"delete from todoku_history where message_seq > {seq}")
    library.sql(f"delete from todoku_message where seq > {seq}")
    if library.url.startswith("sqlite"):
        library.sql(f"update sqlite_sequence set seq = {seq} where name = 'todoku_message'")
    else:
        library.sql(f"select setval(pg_get_serial_sequence('todoku_message', 'seq'), {seq})")


# -------------------------------------------------------------------------------------------------------------- R21


def test_r21_a_restored_database_stops_the_projection_before_anything_is_written(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R21: versions above everything that was drawn; "409 = success" would lose every new event."""
    # The event that finds it out is tried again half a minute later, for which the rebuild would wait.
    monkeypatch.setattr(document_writer, "_STOPPED", todoku.Snooze(1.0))
    for number in range(5):
        library.put(f"d{number}")
    library.box.drain()
    go_back(library, 2)
    library.put("d4", title="after the restore")
    library.box.drain()
    row = library.row()
    assert (row.state, "restored" in (row.why or "")) == ("stopped", True)
    assert library.documents.lag().events == 1
    assert library.dead() == []
    assert library.box.queues.list()[0].paused is True

    with working(library.box):
        rebuilt = library.documents.rebuild(**ACT)
    assert rebuilt.switched
    assert library.row().state == "running"
    library.agree()
    assert library.version("d4") > 2 * GENERATION
    with pytest.raises(InvalidAct, match="not written"):
        library.documents.switch(back=True, **ACT)


def test_r21_a_conflict_with_a_version_that_was_never_drawn_stops_the_projection(library: Library) -> None:
    """R21: also if the database goes back under a worker that has looked already."""
    worker = uuid4()
    library.put("other")
    library.put("other")
    assert apply(library, event("d1", 2, worker, title="second")) == [todoku.Done()]
    go_back(library, 1)
    (outcome,) = apply(library, event("d1", 1, worker, title="first again"))
    assert isinstance(outcome, todoku.Snooze)
    assert library.row().state == "stopped"


def test_r21_a_repetition_of_the_same_event_is_a_success(library: Library) -> None:
    """R21: 409 for this very version, or a later one, is what a crash between write and settle leads to."""
    worker = uuid4()
    library.put("other")
    library.put("other")
    assert apply(library, event("d1", 2, worker, title="second")) == [todoku.Done()]
    assert apply(library, event("d1", 2, worker, title="second")) == [todoku.Done()]
    assert apply(library, event("d1", 1, worker, title="first")) == [SUPERSEDED]
    assert library.seen() == {"d1": {"id": "d1", "title": "second"}}
    assert library.row().state == "running"


# -------------------------------------------------------------------------------------------------------------- R22


def test_r22_the_back_fill_waits_until_every_live_worker_has_acknowledged_the_new_index(library: Library) -> None:
    """R22: a worker that writes by the old revision holds the rebuild up; one without a lease does not."""
    library.put("d1")
    library.box.drain()
    slow, dead, store = uuid4(), uuid4(), library.box.store
    store.leases.register(slow, name="slow:1", lease=600)
    store.projections.admit("documents", slow)
    store.projections.admit("documents", dead)
    with pytest.raises(InvalidAct, match="slow:1"):
        library.documents.rebuild(**ACT, patience=0.3)
    building = library.row().of("building")
    assert building is not None
    assert (building.phase, building.copied) == ("waiting", 0)
    store.projections.acknowledge("documents", slow, library.row().revision)
    assert library.documents.rebuild(**ACT).switched
    library.agree()


def test_r22_a_write_under_the_old_revision_delays_the_acknowledgement(library: Library) -> None:
    """R22: a worker says that it writes both only when no write to one alone is under way."""
    worker, store = uuid4(), library.box.store
    store.leases.register(worker, name="busy:1", lease=600)
    library.put("d1")
    sender: Any = library.box.registry["documents"].sender
    writers = sender._writer.writers

    async def run() -> None:
        row = await writers.enter([worker])
        raised = store.projections.begin_rebuild(
            "documents", lambda _: f"{library.alias}-next", Signed("ada", "a test")
        )
        await asyncio.to_thread(writers.acknowledge)
        assert store.projections.late_writers("documents", raised.revision) == ("busy:1",)
        later = await writers.enter([worker])
        assert [index.role for index in later.written] == ["live", "building"]
        await writers.leave(row)
        assert store.projections.late_writers("documents", raised.revision) == ()
        await writers.leave(later)
        await sender.aclose()

    asyncio.run(run())


class Interrupted(Table):
    """A source that does something between the reading of a page and its return."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.before_return: Any = lambda: None

    def page(self, after: str | None, limit: int) -> Sequence[tuple[str, Mapping[str, Any]]]:
        page = super().page(after, limit)
        self.before_return()
        return page


def test_r22_what_is_written_during_a_rebuild_is_in_both_indexes(library: Library) -> None:
    """R22: the destination itself writes both, from the first second of the new index."""
    for number in range(20):
        library.put(f"d{number:02}")
    library.box.drain()
    source = Interrupted(library.url)
    count = iter(range(100))

    def change() -> None:
        number = next(count)
        library.put(f"new{number}", title="came during the rebuild")
        library.delete(f"d{number:02}")
        library.put(f"d{number + 10:02}", title="changed during the rebuild")

    source.before_return = change
    with working(library.box):
        done = library.documents.rebuild(source, **ACT, page=5, sample=None)
        assert (done.switched, done.differences) == (True, ())
        library.agree()
        library.documents.switch(back=True, **ACT)
        library.agree()


# -------------------------------------------------------------------------------------------------------------- R23


def test_r23_a_page_that_was_read_before_an_event_does_not_overwrite_it(library: Library) -> None:
    """R23: the back-fill writes version 1, and any event wins, also a delete."""
    library.put("d1", title="old")
    library.put("d2", title="old")
    library.box.drain()
    source, once = Interrupted(library.url), iter([1])

    def change() -> None:
        if next(once, None):
            library.put("d1", title="new")
            library.delete("d2")
            library.box.drain()

    source.before_return = change
    assert library.documents.rebuild(source, **ACT).switched
    assert library.seen() == {"d1": {"id": "d1", "title": "new", "views": 0}}


# -------------------------------------------------------------------------------------------------------------- R24


def test_r24_a_replayed_older_event_ends_superseded(library: Library) -> None:
    """R24: its document is older than the one that the index has."""
    library.put("d1", views="many")
    library.put("d1", title="newer", views=1)
    library.box.drain()
    library.sql('update todoku_message set payload = \'{"id": "d1", "title": "older", "views": 0}\' where seq = 1')
    assert library.box.deliveries.replay(reason="SEARCH_REJECTED", **ACT).replayed == 1
    library.box.drain()
    library.agree()
    assert library.sql("select cast(result as text) from todoku_result") == [('"superseded"',)]


@pytest.mark.parametrize("deleted", [True, False])
def test_r24_a_dead_letter_that_is_replayed_after_a_rebuild_undoes_nothing(library: Library, deleted: bool) -> None:
    """R24: the new index does not have the later event, but a version that the dead letter loses to."""
    library.put("d1", views="many")
    library.put("d1", title="newer", views=1)
    if deleted:
        library.delete("d1")
    library.box.drain()
    assert library.documents.rebuild(**ACT).switched
    library.sql('update todoku_message set payload = \'{"id": "d1", "title": "older", "views": 0}\' where seq = 1')
    assert library.box.deliveries.replay(reason="SEARCH_REJECTED", **ACT).replayed == 1
    library.box.drain()
    assert library.dead() == []
    library.agree()


def test_r24_deleted_documents_are_purged_unless_an_older_event_may_come(library: Library) -> None:
    """R24: an unfinished delivery, or a dead letter, of the key could bring the document back."""
    library.put("d1")
    library.put("d2", views="many")
    for key in ("d1", "d2"):
        library.delete(key)
    library.box.drain()
    assert library.documents.purge(older_than=3600) == 0
    assert library.documents.purge(older_than=0) == 1
    live = library.row().of("live")
    assert live is not None
    kept = library.ask("POST", f"/{live.name}/_mget", {"ids": ["d1", "d2"]})["docs"]
    assert [one["found"] for one in kept] == [False, True]


def test_r24_two_events_of_a_key_in_one_batch_are_one_write(library: Library) -> None:
    """R24: the last one is written; the others are superseded."""
    worker = uuid4()
    for _ in range(3):
        library.put("other")
    outcomes = apply(
        library, event("d1", 1, worker, title="a"), event("d1", 3, worker, title="c"),
        event("d1", 2, worker, title="b"),
    )  # fmt: skip
    assert outcomes == [SUPERSEDED, todoku.Done(), SUPERSEDED]
    assert library.seen()["d1"]["title"] == "c"
