"""`python -m projections_example.verdict`: are the projections equal to the documents? PASS or FAIL, with numbers.

It reads the table, the chronicle's table and the index by itself, without todoku: document by document, entry by entry.
Documents that have a dead letter are expected to be missing, and counted.
"""

from __future__ import annotations

import os
import sys

import msgspec
from sqlalchemy import text

from projections_example.application import CHRONICLE, SEARCH, Application, opened
from projections_example.search import Index
from projections_example.settings import read_settings

DEAD = text(
    "select distinct m.key from todoku_delivery d join todoku_message m on m.seq = d.message_seq"
    " where d.destination = :name and d.status = 'aborted'"
)
WAITING = text("select count(*) from todoku_delivery where destination = :name and status <> 'aborted'")


class Verdict(msgspec.Struct, frozen=True):
    """What came of one projection."""

    name: str
    compared: int
    dead: int
    """Documents that a dead letter keeps from being equal."""
    waiting: int
    """Events that are not applied yet."""
    differences: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether everything is as it must be."""
        return self.waiting == 0 and not self.differences

    def line(self) -> str:
        """One line to print."""
        shown = "".join(f"\n  {one}" for one in self.differences[:10])
        return (
            f"{'PASS' if self.passed else 'FAIL'} {self.name}: {self.compared} documents compared,"
            f" {len(self.differences)} differ, {self.dead} have a dead letter, {self.waiting} events wait{shown}"
        )


def judge_chronicle(application: Application) -> Verdict:
    """Each document has its entries 1, 2, 3, …, each once: created, changed, and deleted at the end if it is."""
    dead, waiting = _letters(application, CHRONICLE)
    lives, entries = application.documents.lives(), application.chronicle.numbers()
    differences = [f"{id}: there is no such document" for id in entries.keys() - lives.keys()]
    for id in lives.keys() - dead:
        revision, deleted = lives[id]
        what = ["created", *["changed"] * (revision - 1)]
        if deleted:
            what[-1] = "deleted"
        if entries.get(id, []) != list(enumerate(what, 1)):
            differences.append(f"{id}: {entries.get(id)} instead of {what}")
    return Verdict(CHRONICLE, len(lives.keys() - dead), len(dead), waiting, tuple(sorted(differences)))


def judge_search(application: Application, index: Index) -> Verdict:
    """The index has every document of the table as it is there, and no other."""
    dead, waiting = _letters(application, SEARCH)
    source = {id: dict(document) for id, document in _pages(application)}
    found = index.everything()
    differences = [
        f"{id}: {'missing' if id not in found else 'extra' if id not in source else 'stale'}"
        for id in sorted((source.keys() | found.keys()) - dead)
        if source.get(id) != found.get(id)
    ]
    return Verdict(SEARCH, len(source.keys() - dead), len(dead), waiting, tuple(differences))


def _pages(application: Application) -> list[tuple[str, object]]:
    found: list[tuple[str, object]] = []
    while page := application.documents.page(found[-1][0] if found else None, 1000):
        found += page
    return found


def _letters(application: Application, name: str) -> tuple[set[str], int]:
    """The documents that have a dead letter in a projection, and how many of its events wait."""
    with application.documents.engine.connect() as tx:
        dead = {key for (key,) in tx.execute(DEAD, {"name": name})}
        return dead, int(tx.execute(WAITING, {"name": name}).scalar_one())


def main() -> int:
    """Returns 0 if all is equal, else 1."""
    with opened(read_settings(os.environ)) as application:
        verdicts = [judge_chronicle(application)]
        if application.index is not None:
            verdicts.append(judge_search(application, application.index))
    for verdict in verdicts:
        sys.stdout.write(f"{verdict.line()}\n")
    return 0 if all(verdict.passed for verdict in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
