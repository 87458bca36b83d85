"""`verify` finds what was planted, says why where it can, and is not misled by events on their way."""

from __future__ import annotations

from typing import Any

import pytest

import todoku
from tests.projections.library import ACT, Library, working


@pytest.fixture
def shelf(library: Library) -> Library:
    """A library with documents in the table and in the index, of which every third was deleted."""
    for number in range(9):
        library.put(f"d{number}", views=number)
    for number in range(0, 9, 3):
        library.delete(f"d{number}")
    library.box.drain()
    assert library.documents.verify().ok
    return library


def live(library: Library) -> str:
    found = library.row().of("live")
    assert found is not None
    return found.name


def overwrite(library: Library, key: str, **document: Any) -> None:
    """Writes a document past todoku, with the version that it has and one more."""
    library.ask("PUT", f"/{live(library)}/_doc/{key}?refresh=true", {**document, "todoku": {"key": key}})


def found(library: Library, sample: int | None = None) -> list[tuple[str, str]]:
    return [(one.key, one.kind) for one in library.documents.verify(sample).differences]


@pytest.mark.parametrize("sample", [None, 1000])
def test_a_lost_write_is_found(shelf: Library, sample: int | None) -> None:
    """Verify: a document that the source has and the index has not."""
    shelf.ask("DELETE", f"/{live(shelf)}/_doc/d4?refresh=true")
    assert found(shelf, sample) == [("d4", "missing")]


@pytest.mark.parametrize("sample", [None, 1000])
def test_a_stale_version_is_found(shelf: Library, sample: int | None) -> None:
    """Verify: a document whose content is not that of the source."""
    overwrite(shelf, "d4", id="d4", title="an older title", views=4)
    assert found(shelf, sample) == [("d4", "stale")]


@pytest.mark.parametrize("sample", [None, 1000])
def test_a_resurrected_delete_is_found(shelf: Library, sample: int | None) -> None:
    """Verify: a document that readers find and the source does not have any more."""
    overwrite(shelf, "d3", id="d3", title="Hello", views=3)
    assert found(shelf, sample) == [("d3", "extra")]


def test_the_dead_letter_behind_a_difference_is_named(shelf: Library) -> None:
    """Verify: an event that was rejected explains why its document is missing."""
    shelf.put("d9", views="many")
    shelf.box.drain()
    ((number,),) = shelf.sql("select id from todoku_delivery where status = 'aborted'")
    (difference,) = shelf.documents.verify().differences
    assert (difference.key, difference.kind, difference.dead_letter) == ("d9", "missing", number)


def test_an_alias_that_was_moved_by_hand_is_found_and_mended_by_a_rebuild(shelf: Library) -> None:
    """Verify: readers see something else; writes go to the indexes themselves, and are not misled."""
    shelf.ask("PUT", f"/{shelf.alias}-other")
    moved = [{"remove": {"index": live(shelf), "alias": shelf.alias}}]
    shelf.ask(
        "POST", "/_aliases", {"actions": [*moved, {"add": {"index": f"{shelf.alias}-other", "alias": shelf.alias}}]}
    )
    shelf.put("d1", title="written meanwhile")
    shelf.box.drain()
    (problem,) = shelf.documents.verify().problems
    assert f"points to {shelf.alias}-other, not to {live(shelf)}" in problem
    assert shelf.documents.rebuild(**ACT).switched
    shelf.agree()
    assert shelf.documents.verify().ok


def test_what_changes_while_it_is_compared_is_no_difference(library: Library) -> None:
    """Verify: an event on its way is not a lost write."""
    for number in range(30):
        library.put(f"d{number}")
    changed = iter(range(1_000))

    class Moving:
        """The table, in which something changes with every look."""

        def page(self, after: str | None, limit: int) -> Any:
            library.put("d7", title=f"title {next(changed)}")
            return library.table.page(after, limit)

        def get(self, keys: Any) -> Any:
            number = next(changed)
            if number < 12:
                library.put("d8", title=f"title {number}")
            return library.table.get(keys)

        def count(self) -> int:
            return library.table.count()

    with working(library.box):
        seen = library.documents.verify(source=Moving())
    assert (seen.differences, seen.in_flight) == ((), 0)


def test_a_source_is_needed(url: str, server: str) -> None:
    """Verify: without a source there is nothing to compare with, and the error says where to give it."""
    box = todoku.App(url)
    made = box.projection("documents", topics="document.*", key="id", to=todoku.opensearch("docs", url=server))
    with pytest.raises(todoku.InvalidSetting, match="source="):
        made.verify()
    box.close()
