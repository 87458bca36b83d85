"""Limits of queues and destinations, exact over all workers: a claim counts what is in flight under their locks.

Places without a limit cost nothing. Places with one are claimed one after the other, each for as many rows as its
limits leave. A limit that leaves nothing is only read and not locked, so a full queue delays no worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, Final, Literal, NamedTuple, TypeVar
from uuid import UUID

import msgspec

from todoku.store.audit import Signed
from todoku.store.database import Database, Slice, Tx

UNLIMITED: Final = 1 << 30


class Counted(msgspec.Struct, frozen=True):
    """The queues and destinations whose limits a claim must count; it takes at most `most` rows of all of them."""

    queues: frozenset[str] = frozenset()
    destinations: frozenset[str] = frozenset()
    most: int = UNLIMITED

    def __bool__(self) -> bool:
        return bool(self.queues or self.destinations)

    def has(self, queue: str, destination: str) -> bool:
        """Whether a limit applies to this place."""
        return queue in self.queues or destination in self.destinations


UNCOUNTED: Final = Counted()


class Restriction(msgspec.Struct, frozen=True):
    """What holds a queue or destination back: a pause, a number at once, a rate a second, or an open breaker.

    `concurrency` and `rate` hold for all workers together. `open_until` is unix seconds, 0 where no breaker is open.
    """

    name: str
    paused: bool
    concurrency: int | None
    rate: float | None
    open_until: float
    failures: int


class WorkerRequest(msgspec.Struct, frozen=True):
    """What operators ask of a worker: to claim nothing, and the number of the last request for its stacks (0: none)."""

    drain: bool = False
    stacks: int = 0


NO_REQUEST: Final = WorkerRequest()


class Limits(msgspec.Struct, frozen=True):
    """Every restriction in force, the ids of live leases, sorted, and what operators ask of their workers."""

    queues: tuple[Restriction, ...]
    destinations: tuple[Restriction, ...]
    workers: tuple[UUID, ...]
    requests: dict[UUID, WorkerRequest] = {}

    def request_of(self, worker: UUID) -> WorkerRequest:
        """What operators ask of this worker."""
        return self.requests.get(worker, NO_REQUEST)


class LimitStore:
    """The limits and breakers of queues and destinations."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def read(self) -> Limits:
        """Every limit, pause and breaker in force, and the live leases: one cheap read, made about once a second."""
        return self._database.read_alone(read_limits)

    def set(
        self,
        name: str,
        signed: Signed,
        *,
        of: Literal["queue", "destination"],
        concurrency: int | None,
        rate: float | None,
        lasts: float | None = None,
    ) -> None:
        """Lets all workers together run at most `concurrency` at once and start `rate` a second; None: no such limit.

        With `lasts`, both expire after that many seconds. Workers read the limits and then claim no more than
        is left: exactly, while workers come and go.
        """

        def work(tx: Tx) -> None:
            if of == "queue":
                tx.rows("limit_queue", name=name, concurrency=concurrency, rate=rate, lasts=lasts)
            else:
                tx.rows("limit_destination", name=name, concurrency=concurrency, rate=rate, lasts=lasts)
            both = {f"{concurrency} at once": concurrency, f"{rate or 0:g}/s": rate}
            words = [text for text, value in both.items() if value is not None]
            span = f" for {lasts:g} s" if lasts is not None else ""
            action = f"limit to {' and '.join(words)}{span}" if words else "limit off"
            tx.rows("audit", by=signed.by, why=signed.why, action=action, targets=[f"{of}:{name}"])
            self._database.announce_limits(tx)

        self._database.write("set_limit", work)

    def set_breaker(self, destination: str, *, open_for: float, failures: int = 0) -> None:
        """Keeps every worker from claiming for a destination for a number of seconds (0: closes the breaker)."""
        self._database.write(
            "set_breaker",
            lambda tx: tx.rows("set_breaker", name=destination, open_for=open_for, failures=failures),
        )


def read_limits(tx: Tx) -> Limits:
    """As `LimitStore.read`, in an open transaction."""
    found: dict[str, list[Restriction]] = {"queue": [], "destination": []}
    alive: list[UUID] = []
    requests: dict[UUID, WorkerRequest] = {}
    for kind, name, paused, concurrency, rate, open_until, failures in tx.rows("limits"):
        if kind == "worker":
            alive.append(UUID(name))
            if paused or failures:
                requests[alive[-1]] = WorkerRequest(bool(paused), failures)
        else:
            found[kind].append(Restriction(name, bool(paused), concurrency, rate, float(open_until), failures))
    return Limits(tuple(found["queue"]), tuple(found["destination"]), tuple(sorted(alive)), requests)


# ------------------------------------------------------------------------------------- counted by a claim


class Place(NamedTuple):
    """A queue and a destination."""

    queue: str
    destination: str


class Gated(msgspec.Struct, frozen=True):
    """A place whose keys have a limit each, at once and per second; None: no limit."""

    queue: str
    destination: str
    concurrency: int | None = None
    rate: float | None = None


def place_documents(places: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    """Places as a document for a query."""
    return [{"queue": queue, "destination": destination} for queue, destination in places]


P = TypeVar("P", Place, Slice, Gated)
Take = Callable[[Sequence[P], int], list[Any]]
"""Claims rows of some places, up to a limit."""


def claim_by_place(tx: Tx, places: Sequence[P], counted: Counted, limit: int, take: Take[P]) -> list[Any]:
    """The rows that `take` claims of the places, in their order: at most `limit`, and never more than is left."""
    if not counted:
        return take(places, limit)
    rooms = Rooms(tx, counted)
    rows: list[Any] = []
    for is_counted, some in groupby(places, key=lambda place: counted.has(place.queue, place.destination)):
        for part in [[place] for place in some] if is_counted else [list(some)]:
            most = min(limit - len(rows), rooms.left(part[0])) if is_counted else limit - len(rows)
            if most > 0:
                found = take(part, most)
                rows += found
                if is_counted:
                    rooms.use(part[0], len(found))
    rooms.spend()
    return rows


class Rooms:
    """How many more deliveries may start, counted by this transaction, which keeps the locks until its end."""

    def __init__(self, tx: Tx, counted: Counted) -> None:
        self._tx = tx
        self._most = counted.most
        self._used: Counter[tuple[str, str]] = Counter()
        self._rooms: dict[tuple[str, str], int] = {}
        self._rated: set[tuple[str, str]] = set()
        found = self._look(counted.queues, counted.destinations)
        open_ones = {name for name in found if found[name] > 0}
        if open_ones and self._most > 0:
            queues = frozenset(name for kind, name in open_ones if kind == "queue")
            destinations = frozenset(name for kind, name in open_ones if kind == "destination")
            tx.rows("lock_limits", queues=sorted(queues), destinations=sorted(destinations))
            found |= self._look(queues, destinations)
        self._rooms = found

    def _look(self, queues: frozenset[str], destinations: frozenset[str]) -> dict[tuple[str, str], int]:
        rooms: dict[tuple[str, str], int] = {}
        rows = self._tx.rows("rooms", queues=sorted(queues), destinations=sorted(destinations))
        for kind, name, allowed, free in rows:
            rooms[kind, name] = min(room for room in (allowed, free, UNLIMITED) if room is not None)
            if allowed is not None:
                self._rated.add((kind, name))
        return rooms

    def left(self, place: Place | Slice | Gated) -> int:
        """How many more may start in this place."""
        return min(self._most, *(self._rooms.get(name, UNLIMITED) for name in _names(place)))

    def use(self, place: Place | Slice | Gated, number: int) -> None:
        """Counts rows that were claimed of this place."""
        self._most -= number
        for name in _names(place):
            self._used[name] += number
            if name in self._rooms:
                self._rooms[name] -= number

    def spend(self) -> None:
        """Writes what counts against rates."""
        spent = {name: number for name, number in self._used.items() if number and name in self._rated}
        if spent:
            self._tx.rows(
                "spend_rates",
                queues={name: number for (kind, name), number in spent.items() if kind == "queue"},
                destinations={name: number for (kind, name), number in spent.items() if kind == "destination"},
            )


def _names(place: Place | Slice | Gated) -> tuple[tuple[str, str], tuple[str, str]]:
    return ("queue", place.queue), ("destination", place.destination)
