"""`python -m projections_example.load`: documents are created, changed and deleted through the API, as fast as it goes.

The same `--seed` makes the same changes. At the end it prints what it did; with `--poison N`, N documents that the
index cannot take are among them.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import httpx

from projections_example.settings import PORT, read_port

WORDS = [
    "river",
    "letter",
    "garden",
    "winter",
    "harbour",
    "engine",
    "paper",
    "silver",
    "market",
    "window",
    "story",
    "machine",
]
AUTHORS = ("ada", "basho", "chinua", "doris")
POISON = "soon"
"""What one document says about its day of publication; the index takes days."""


class Load:
    """A number of clients that write until the plan is done. Each client has documents of its own."""

    def __init__(self, url: str, documents: int, poison: int, seed: int) -> None:
        self._url = url
        self._seed = seed
        self._plan = iter([True] * poison + [False] * documents)
        self._lock = threading.Lock()
        self.done: Counter[str] = Counter()

    def run(self, clients: int) -> float:
        """Write everything; returns the seconds it took."""
        began = time.monotonic()
        threads = [threading.Thread(target=self._write, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.monotonic() - began

    def _planned(self) -> Iterator[bool]:
        while True:
            with self._lock:
                poison = next(self._plan, None)
            if poison is None:
                return
            yield poison

    def _write(self, number: int) -> None:
        """Each document is created, changed up to twice, and every fifth one is deleted."""
        chance = random.Random(f"{self._seed} {number}")  # noqa: S311 - not for secrets
        with httpx.Client(base_url=self._url, timeout=60) as client:
            for poison in self._planned():
                created = self._ask(client, "POST", "/documents", draft(chance, poison=poison))
                path = f"/documents/{created['id']}"
                for _ in range(0 if poison else chance.randrange(3)):
                    self._ask(client, "PUT", path, draft(chance))
                if not poison and chance.random() < 0.2:
                    self._ask(client, "DELETE", path)

    def _ask(self, client: httpx.Client, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        """Ask until the API answers: it may be away, and a refusal in between has changed nothing."""
        while True:
            try:
                answer = client.request(method, path, json=body)
            except httpx.TransportError:
                self._count("not answered")
                time.sleep(0.1)
                continue
            self._count(f"{method} {answer.status_code}")
            if answer.status_code < 500:
                return answer.json() if answer.content else None
            time.sleep(0.1)

    def _count(self, what: str) -> None:
        with self._lock:
            self.done[what] += 1


def draft(chance: random.Random, *, poison: bool = False) -> dict[str, Any]:
    """A document by chance."""
    return {
        "title": " ".join(chance.choices(WORDS, k=3)),
        "body": " ".join(chance.choices(WORDS, k=40)),
        "author": chance.choice(AUTHORS),
        "published_on": POISON if poison else f"20{chance.randrange(10, 26)}-0{chance.randrange(1, 10)}-01",
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m projections_example.load", description=__doc__)
    parser.add_argument("--url", default=f"http://127.0.0.1:{read_port(os.environ, 'PORT', PORT)}")
    parser.add_argument("--documents", type=int, default=1000)
    parser.add_argument("--poison", type=int, default=0, help="documents that the index cannot take, beside them")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    load = Load(given.url, given.documents, given.poison, given.seed)
    seconds = load.run(given.clients)
    writes = sum(number for what, number in load.done.items() if what.split()[-1].startswith("2"))
    sys.stdout.write(f"{writes} writes of {given.documents + given.poison} documents in {seconds:.1f} s,")
    sys.stdout.write(f" {writes / seconds:.0f} a second: {dict(sorted(load.done.items()))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
