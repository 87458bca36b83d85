"""Rebuilds: nothing is lost while events arrive, whoever is killed, and readers never see half an index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

import todoku
from tests.projections.library import ACT, MAPPINGS, Library, Table, working
from todoku.core.errors import InvalidAct
from todoku.store.projections import IndexRow


class Killed(BaseException):
    """The process that rebuilds dies."""


class Dying(Table):
    """A source during whose reading the rebuild is killed, once."""

    def __init__(self, url: str, *, at: int) -> None:
        super().__init__(url)
        self.copied: list[str | None] = []
        self._at = at

    def page(self, after: str | None, limit: int) -> Sequence[tuple[str, Mapping[str, Any]]]:
        if limit == 10:  # the comparison reads other pages
            self.copied.append(after)
        if len(self.copied) == self._at:
            self._at = 0
            raise Killed
        return super().page(after, limit)


def fill(library: Library, number: int = 40) -> None:
    for place in range(number):
        library.put(f"d{place:03}", views=place)
    library.box.drain()


def test_a_rebuild_that_was_killed_goes_on_where_it_was(library: Library) -> None:
    """Rebuild: its position is in the database; the pages before it are not copied again."""
    fill(library)
    source = Dying(library.url, at=4)
    with pytest.raises(Killed):
        library.documents.rebuild(source, **ACT, page=10)
    building = library.row().of("building")
    assert building is not None
    assert (building.phase, building.position, building.copied) == ("filling", "d029", 30)
    library.put("d005", title="changed between the two runs")
    seen: list[IndexRow] = []
    with working(library.box):
        done = library.documents.rebuild(source, **ACT, page=10, progress=seen.append)
    assert (done.switched, done.copied) == (True, 40)
    assert source.copied == [None, "d009", "d019", "d029", "d029", "d039"]
    assert [index.phase for index in seen] == ["filling", "catching_up", "comparing", "ready"]
    library.agree()


def test_a_rebuild_before_the_first_event_loads_what_is_there(library: Library) -> None:
    """Rebuild: an application that has documents already begins with it; the way back leads to an index that exists."""
    library.sql("insert into document values ('d1', 'before todoku', 1)")
    assert library.documents.rebuild(**ACT).switched
    library.agree()
    library.put("d2")
    library.box.drain()
    library.agree()
    library.documents.switch(back=True, **ACT)
    assert sorted(library.seen()) == ["d2"]


def test_readers_see_the_old_index_until_the_new_one_is_equal(library: Library) -> None:
    """Rebuild: the alias moves in one call, after the comparison; without `switch` it stays."""
    fill(library, 5)
    before = library.ask("GET", f"/_alias/{library.alias}")
    done = library.documents.rebuild(**ACT, switch=False)
    assert not done.switched
    assert library.ask("GET", f"/_alias/{library.alias}") == before
    library.documents.switch(**ACT)
    assert list(library.ask("GET", f"/_alias/{library.alias}")) == [done.index]
    library.agree()


def test_a_new_index_that_differs_is_not_shown_to_readers(library: Library) -> None:
    """Rebuild: documents are compared, all or a sample; what differs is said, and the next run compares again."""
    fill(library, 5)

    class Losing(Table):
        """A source whose pages leave a document out that `get` and `count` know of."""

        def page(self, after: str | None, limit: int) -> Sequence[tuple[str, Mapping[str, Any]]]:
            pages = super().page(after, limit)
            return pages if library.row().of("building").phase == "comparing" else pages[1:]  # type: ignore[union-attr]

    lost = library.documents.rebuild(Losing(library.url), **ACT, sample=None)
    assert not lost.switched
    assert [(one.key, one.kind) for one in lost.differences] == [("d000", "missing")]
    assert library.documents.verify().ok
    assert library.documents.rebuild(**ACT, accept=True).switched


def test_the_kept_index_is_written_until_it_is_dropped(library: Library) -> None:
    """Rebuild: `switch --back` ends equal, however much was written since."""
    fill(library, 5)
    assert library.documents.rebuild(**ACT).switched
    library.put("d001", title="after the switch")
    library.delete("d002")
    library.put("d009")
    library.box.drain()
    library.agree()
    library.documents.switch(back=True, **ACT)
    library.agree()
    assert library.documents.verify().ok
    library.documents.switch(back=True, **ACT)
    library.agree()


def test_a_second_rebuild_needs_the_kept_index_dropped_first(library: Library) -> None:
    """Rebuild: each kept index costs a write for each event, so there is one at most."""
    fill(library, 3)
    assert library.documents.rebuild(**ACT).switched
    kept = library.row().of("kept")
    assert kept is not None
    with pytest.raises(InvalidAct, match=f"drop documents --index {kept.name}"):
        library.documents.rebuild(**ACT)
    with pytest.raises(InvalidAct, match="readers do not see"):
        library.documents.drop(library.row().of("live").name, **ACT)  # type: ignore[union-attr]
    assert library.documents.drop(kept.name, **ACT) == (kept.name,)
    assert library.documents.rebuild(**ACT).switched
    indexes = library.ask("GET", f"/{library.alias}-*")
    assert sorted(indexes) == sorted(index.name for index in library.row().indexes)


def test_of_two_rebuilds_at_once_one_stops(library: Library) -> None:
    """Rebuild: the position is compared and set; the other one says that it is not alone."""
    fill(library, 5)

    class Racing(Table):
        raced = False

        def page(self, after: str | None, limit: int) -> Sequence[tuple[str, Mapping[str, Any]]]:
            if not self.raced:
                self.raced = True
                Library(library.url, library.server, alias=library.alias).documents.rebuild(**ACT, switch=False)
            return super().page(after, limit)

    with pytest.raises(InvalidAct, match="another process rebuilds"):
        library.documents.rebuild(Racing(library.url), **ACT)
    library.documents.switch(**ACT)
    library.agree()


def test_new_mappings_that_reject_documents_keep_readers_on_the_old_index(url: str, server: str) -> None:
    """Rebuild: an event that only the new index rejects is no dead letter; the comparison finds it."""
    old = Library(url, server).set_up()
    for number in range(4):
        old.put(f"d{number}", title=f"title {number}")
    old.box.drain()
    strict = todoku.opensearch(
        old.alias, url=server, mappings={"dynamic": "strict", "properties": {"id": {"type": "keyword"}}}
    )
    new = Library(url, server, alias=old.alias, to=strict)
    done = new.documents.rebuild(**ACT)
    assert (done.switched, done.rejected) == (False, 4)
    new.put("d9", title="only the old index takes it")
    new.box.drain()
    assert new.dead() == []
    assert "d9" in old.seen()
    new.documents.drop(done.index, **ACT)
    fixed = Library(url, server, alias=old.alias, to=todoku.opensearch(old.alias, url=server, mappings=MAPPINGS))
    assert fixed.documents.rebuild(**ACT).switched
    fixed.agree()
    for one in (old, new, fixed):
        one.close()


def test_a_dropped_projection_leaves_nothing_behind(library: Library) -> None:
    """Drop: the indexes, the alias and the rows are gone."""
    fill(library, 2)
    library.documents.rebuild(**ACT)
    assert len(library.documents.drop(**ACT)) == 2
    assert library.ask("GET", f"/{library.alias}-*") == {}
    assert library.box.projections.list() == ()
