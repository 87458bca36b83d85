"""The checker of lanes (I10): what was committed, what was sent, and whether the one followed from the other."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Container, Sequence
from typing import Literal

import msgspec

Outcome = Literal["done", "again", "skipped", "died"]
"""How a sending ended: for good, to be made again, given up and passed over, or with its worker."""


class Sent(msgspec.Struct, frozen=True):
    """One sending of a message."""

    key: str
    name: str
    outcome: Outcome


class Commits:
    """What was committed, key by key, in that order. Written by many threads."""

    def __init__(self) -> None:
        self.by_key: dict[str, list[str]] = {}
        self._writing = threading.Lock()

    def add(self, rows: Sequence[tuple[str, str]]) -> None:
        """(key, name), to be called while the transaction that is about to commit has the lanes: none overtakes it."""
        with self._writing:
            for key, name in rows:
                self.by_key.setdefault(key, []).append(name)

    def names(self) -> list[str]:
        """All of them, of whatever key."""
        with self._writing:
            return [name for names in self.by_key.values() for name in names]


def order_problems(committed: dict[str, list[str]], sent: Sequence[Sent], explained: Container[str] = ()) -> list[str]:
    """Everything that is wrong with what was sent, in the order in which the sendings began.

    Message n+1 of a key is not sent before n has come to its end, and what is sent never goes back, but to what is
    `explained`; and the order of first successes is the order of commits, but for what was skipped.
    """
    found = [f"{one.name} was sent and never committed" for one in sent if one.name not in committed.get(one.key, ())]
    for key, names in committed.items():
        lane = [one for one in sent if one.key == key and one.name in names]
        settled: set[str] = set()
        for one in lane:
            before = names[: names.index(one.name)]
            found += [f"{one.name} was sent before {name} was settled" for name in before if name not in settled]
            if one.outcome in ("done", "skipped"):
                settled.add(one.name)
        places = [names.index(one.name) for one in lane]
        back = [(before, after) for before, after in itertools.pairwise(places) if after < before]
        found += [
            f"{names[after]} was sent after {names[before]}" for before, after in back if names[after] not in explained
        ]
        skipped = {one.name for one in lane if one.outcome == "skipped"}
        first = list(dict.fromkeys(one.name for one in lane if one.outcome == "done"))
        if first != (wanted := [name for name in names if name not in skipped]):
            found.append(f"{key} had the effects {first} instead of {wanted}")
    return found
