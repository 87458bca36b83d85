"""Chronicles: each event has its entries exactly once, in order, in this database or in another."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import todoku
from tests.projections.library import ACT, connecting
from todoku.core.errors import InvalidAct


class Book:
    """An App with a chronicle, and the database that has its entries."""

    def __init__(self, url: str, into: str | None = None) -> None:
        self.box = todoku.App(url)
        self.archive = None if into is None else todoku.App(into)
        self._connect = connecting(into or url)
        self._mark = "?" if (into or url).startswith("sqlite") else "%s"
        self.fails: dict[str, int] = {}
        self.history = self.box.projection(
            "history", topics=["document.created", "document.changed"], key="id", backoff=todoku.table(0.01),
            to=todoku.chronicle(self.write, into=self.archive), max_attempts=3,
        )  # fmt: skip
        self.box.migrate()
        if self.archive is not None:
            self.archive.migrate()
        with closing(self._connect()) as db:
            db.execute("create table entry (document text, number integer, message text)")
            db.commit()

    def write(self, change: todoku.Change, tx: Any) -> None:
        values = (change.key, change.payload["n"], change.message_id)
        tx.execute(f"insert into entry values ({', '.join([self._mark] * 3)})", values)
        if self.fails.get(change.key, 0) > 0:
            self.fails[change.key] -= 1
            raise RuntimeError("after its insert")

    def publish(self, key: str, number: int) -> None:
        self.box.publish("document.changed", {"id": key, "n": number}, tx=None)

    def entries(self) -> list[tuple[str, int]]:
        with closing(self._connect()) as db:
            return [tuple(row) for row in db.execute("select document, number from entry order by document, number")]

    def close(self) -> None:
        self.box.close()
        if self.archive is not None:
            self.archive.close()


@pytest.fixture(params=["here", "there"])
def book(url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Book]:
    """A chronicle in the App's own database, and one in another."""
    made = Book(url, None if request.param == "here" else f"sqlite:///{tmp_path}/archive.db")
    yield made
    made.close()


def test_each_event_has_its_entry_once_and_in_order(book: Book) -> None:
    for number in range(5):
        for key in ("a", "b"):
            book.publish(key, number)
    book.box.drain()
    assert book.entries() == [(key, number) for key in ("a", "b") for number in range(5)]
    assert book.history.lag().events == 0


def test_a_failed_attempt_leaves_no_entry(book: Book) -> None:
    """I6: what the function wrote before it raised is undone, and the next attempt writes it once."""
    book.fails["a"] = 2
    book.publish("a", 1)
    book.publish("a", 2)
    for _ in range(5):
        book.box.drain()
    assert book.entries() == [("a", 1), ("a", 2)]


def test_a_dead_letter_blocks_its_key_and_no_other(book: Book) -> None:
    """R24: the chronicle blocks, because later entries follow from earlier ones; a replay goes on in order."""
    book.fails["a"] = 3
    for number in (1, 2):
        book.publish("a", number)
        book.publish("b", number)
    for _ in range(5):
        book.box.drain()
    assert book.entries() == [("b", 1), ("b", 2)]
    assert book.history.lag().events == 1
    assert book.box.deliveries.replay(reason="INTERNAL_ERROR", **ACT).replayed == 1
    book.box.drain()
    assert book.entries() == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]


def test_an_event_that_comes_again_has_no_second_entry(url: str, tmp_path: Path) -> None:
    """I6: a crash after the other database's commit, before the settle: the inbox recognises the message."""
    book = Book(url, f"sqlite:///{tmp_path}/archive.db")
    book.publish("a", 1)
    target = book.box.registry["history"]
    assert target.call is not None

    def call_and_die(context: Any) -> Any:
        target.call(context)  # type: ignore[misc]
        raise todoku.Retry(0)

    book.box.registry._targets["history"] = type(target)(
        **{name: getattr(target, name) for name in target.__struct_fields__} | {"call": call_and_die}
    )
    book.box.drain()
    book.box.registry._targets["history"] = target
    book.box.drain()
    assert book.entries() == [("a", 1)]
    book.close()


def test_what_a_chronicle_does_not_have_is_refused_with_the_reason(book: Book) -> None:
    for act in (book.history.verify, lambda: book.history.rebuild(**ACT), lambda: book.history.switch(**ACT)):
        with pytest.raises(InvalidAct, match="chronicle"):
            act()  # type: ignore[operator]
    with pytest.raises(todoku.InvalidSetting, match="plain function"):
        todoku.chronicle(_async_write)
    with pytest.raises(todoku.InvalidSetting, match="into="):
        todoku.chronicle(book.write, into="sqlite:///other.db")


async def _async_write(_change: todoku.Change, _tx: Any) -> None: ...
