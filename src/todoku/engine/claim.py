"""2. Claim: which slices of the deliveries to claim from, and from which position on.

A place is a (queue, destination, priority). A claim starts from a remembered (next_run_at, id) per place, so that
finished rows, which an old snapshot keeps from being vacuumed, are not read again and again. Rows may appear behind the
position (late commits, releases, clock changes), and places may be new, so there are full scans. A busy worker, which
finds work without them, spends at most 5 % of its time on scans; so does a pool beside one that holds enough. An idle
worker scans at every poll if that is cheap, else after a notice and once a second, however long the last scan took
(decision 9).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeVar
from uuid import UUID

from todoku.core.limit import Limit
from todoku.core.message import Claimed
from todoku.store.claim_lists import Listing
from todoku.store.claims import Waiting
from todoku.store.database import Slice
from todoku.store.limits import UNCOUNTED, Counted, Gated
from todoku.store.store import Store

_IDLE_PER_SCAN: Final = 19
"""A full scan that took a second is followed by at least 19 seconds without one: 5 %."""

_SOONEST: Final = 0.25
"""Seconds between two full scans, at least, while positions find work."""

_IDLE: Final = 1.0
"""Seconds between two full scans of an idle worker, at most."""

_PLACES: Final = 64
"""Places in one claim statement, and bounded places that share its rows; also the places without known work that are
still tried because they had some."""

_REMEMBERED: Final = 60.0
"""Seconds for which a place that had work is still tried, so that its next message does not wait for a scan."""

_LANE_SHARE_MOST: Final = 8
"""A claim takes at most so many times the lanes asked for, and at most half as many as it may take rows. Each lane that
ends empty costs a settle one lock of PostgreSQL's small lock table."""

FEWEST = 100
"""Deliveries that are worth a list: a worker that wants so many, and whose last claim found so many or all it wanted,
has a backlog of short ones. To claim a lone message the statement without lists takes the server a third less."""

_SHORT_LISTS: Final = 2
"""Claims by list in a row that find too little before the backlog counts as drained. Another worker that listed the
same deliveries at the same moment leaves nothing of them, once; the next claim sees its list and begins behind it."""

T = TypeVar("T")
Place = tuple[str, str, int]


Room = Callable[[str, str], int]
"""(queue, destination) -> how many more may be held, by breakers, pauses and the bulkhead. Claims count the limits."""

UNLIMITED: Final = 1 << 30


def unlimited_room(_queue: str, _destination: str) -> int:
    """Returns UNLIMITED: only the limit of the claim itself applies."""
    return UNLIMITED


class SharedWaiting:
    """The waiting work, read once per round for all pools of a worker, so that idle pools cost no extra query."""

    def __init__(self, store: Store, pools: Sequence[Sequence[str]], *, serves_runs: bool = False) -> None:
        self._store = store
        self._destinations = tuple(name for names in pools for name in names)
        self._serves_runs = serves_runs
        self._found: Waiting | None = None
        self._served: set[Sequence[str]] = set()
        self.seconds = 0.0
        """How long the database took for the last look: it costs every pool that shares it as much."""

    def invalidate(self) -> None:
        """Begins a new round: the next `read` reads the database."""
        self._found = None

    def read(self, destinations: Sequence[str]) -> Waiting:
        """Returns what waits for these destinations. A second call in one round reads the database again."""
        if self._found is None or destinations in self._served:
            if self._serves_runs:
                self._store.runs.heed_calls()  # what was sent to runs that wait makes them due
            spent = self._store.claims.seconds
            self._found = self._store.claims.waiting(self._destinations)
            self.seconds = self._store.claims.seconds - spent
            self._served = set()
        self._served.add(destinations)
        return self._found if destinations == self._destinations else self._found.only(destinations)


class ClaimCursor:
    """Claims for the destinations of one pool, from remembered positions. Not thread-safe: a worker has one claimer."""

    def __init__(
        self,
        store: Store,
        worker: UUID,
        destinations: Sequence[str],
        *,
        monotonic: Callable[[], float],
        shared: SharedWaiting | None = None,
        room: Room = unlimited_room,
        per_key: Mapping[str, Limit] | None = None,
        listable: Collection[str] = (),
    ) -> None:
        self._store = store
        self.worker = worker
        self._destinations = tuple(destinations)
        self._monotonic = monotonic
        self._shared = shared or SharedWaiting(store, [self._destinations])
        self._room = room
        self._per_key = per_key or {}
        self._listable = tuple(listable)
        self._gates: dict[tuple[str, str], float] = {}
        self.next_gate = float("inf")
        """When the next gate may start a delivery, by this worker's monotonic clock."""
        self._waiting = Waiting((), (), ())
        self._seen: dict[Place, float] = {}
        self._positions: dict[Place, tuple[float, int]] = {}
        self._next_scan = self._next_idle_scan = self._next_working_scan = 0.0
        self._noticed = self._finds_work = self._is_emptied = False
        self._backlog = self._lane_backlog = 0
        """How many claims that find too little may still be by list."""
        self._turn = self._round = 0
        self._lane_share = 1
        """By how much more lanes are claimed at once than asked for, because the last ones were short."""

    @property
    def has_suspects(self) -> bool:
        """Whether suspects wait: deliveries whose owner died."""
        return bool(self._waiting.suspects)

    @property
    def has_lanes(self) -> bool:
        """Whether lanes have work."""
        return bool(self._waiting.lanes)

    @property
    def has_other_work(self) -> bool:
        """Whether there is, or was lately, work that is neither in a lane nor at a gate."""
        return bool(self._seen)

    @property
    def has_gates(self) -> bool:
        """Whether gates (limits of one key) have work, or had some lately."""
        return bool(self._gates)

    def claim(
        self, limit: int, *, counted: Counted = UNCOUNTED, busy: bool = False, working: bool = False
    ) -> list[Claimed]:
        """Claims up to `limit` due deliveries, from the positions, or by a full scan if one is due.

        `busy`: the worker has found other work in this round, which a fruitless scan would delay. `working`: another
        of its pools holds work that waits, so scans must leave the processor to it (5 %).
        """
        now = self._monotonic()
        # What was noticed is usually at a known place: a scan that has just become due would delay its start by a trip.
        late = _SOONEST if self._noticed and not busy else 0.0
        if now < self._next_scan + late:
            is_cheap = not busy and now >= (self._next_working_scan if working else self._next_idle_scan)
            # An idle worker that nobody has told of work only asks what waits: one read, and no claim if it is nothing.
            asks = self._is_emptied and self._noticed and not busy
            if not asks and (self._noticed or self._finds_work or not is_cheap):
                if found := self._claim_at_positions(limit, counted):
                    return found
                if busy or not (self._noticed or is_cheap):
                    return []
        return self._scan(limit, counted)

    def request_scan(self) -> None:
        """Makes the next claim that finds nothing at its positions scan, unless busy. Called after a notice."""
        self._noticed, self._is_emptied = True, False

    def look_next(self) -> None:
        """Makes a scan that is still wanted after a notice begin by asking what waits, unless another notice comes.

        Called when a claim has found something and there is no backlog: its places are empty now, most likely.
        """
        self._is_emptied = True

    def claim_counted(self, limit: int, *, counted: Counted) -> list[Claimed]:
        """Claims up to `limit` due deliveries, only of queues and destinations that have a limit."""
        return self._claim_at_positions(limit, counted, only=counted)

    def claim_gates(self, *, gates: int, limit: int, counted: Counted = UNCOUNTED) -> list[Claimed]:
        """Claims up to `limit` deliveries of up to `gates` gates, of each as many as its limit allows."""
        for places, room in self._by_room(list(self._gates)):
            gated, most = [self._gate_of(*place) for place in places], min(limit, room)
            found = self._store.claims.take_gates(
                self.worker, gated, number=min(gates, room), limit=most, counted=counted
            )
            if found:
                return found
        return []

    def _gate_of(self, queue: str, destination: str) -> Gated:
        limit = self._per_key.get(destination)
        if limit is None:  # the limit was removed from the code
            return Gated(queue, destination)
        return Gated(queue, destination, limit.concurrency, limit.rate)

    def claim_lanes(self, *, lanes: int, limit: int, counted: Counted = UNCOUNTED) -> list[Claimed]:
        """Claims up to `limit` deliveries of about `lanes` lanes, more if they are short; each lane's rows in order."""
        if not self._waiting.lanes:
            self._read_waiting()
        groups = self._by_room(self._waiting.lanes)
        for places, room in groups:
            most = min(limit, room)
            wanted = min(max(lanes, min(lanes * self._lane_share, most // 2)), room)
            listing = self._listing(most, self._lane_backlog)
            found = self._store.claims.take_lanes(
                self.worker, places, lanes=wanted, limit=most, counted=counted, listing=listing
            )
            self._lane_backlog = _backlog_after(self._lane_backlog, len(found), most)
            if found:
                self._learn_lanes(len({claim.lane for claim in found}), len(found), wanted, most)
                return found
        if groups:
            self._read_waiting()
        return []

    def _learn_lanes(self, found: int, rows: int, wanted: int, most: int) -> None:
        """Widens the next claim if these lanes were too short to fill half of it, and narrows it after a full one.

        At least two rows of each lane are asked for, so that a claim shows whether lanes have more than one.
        """
        if found == wanted and rows < most // 2:
            self._lane_share = min(self._lane_share * 2, _LANE_SHARE_MOST)
        elif rows > most - found:
            self._lane_share = max(self._lane_share // 2, 1)

    def claim_suspect(self, *, counted: Counted = UNCOUNTED) -> list[Claimed]:
        """Claims one suspect. If there is none, reads again what waits."""
        known = bool(self._waiting.suspects)
        if not known:
            self._read_waiting()
        places = [place for places, _ in self._by_room(self._waiting.suspects) for place in places]
        found = self._store.claims.take_suspect(self.worker, places, counted=counted) if places else []
        if not found and (known or places):
            self._read_waiting()
        return found

    def _by_room(self, places: Sequence[tuple[str, str]]) -> list[tuple[list[tuple[str, str]], int]]:
        """Groups places by their room, so that one with little room does not hold back the others.

        Each call begins with another group.
        """
        groups: dict[int, list[tuple[str, str]]] = {}
        for place in places:
            if (room := self._room(*place)) > 0:
                groups.setdefault(room, []).append(place)
        self._round += 1
        return _rotate([(some, room) for room, some in groups.items()], self._round)

    def _scan(self, limit: int, counted: Counted) -> list[Claimed]:
        self._noticed = False
        self._read_waiting()
        spent = self._store.claims.seconds - self._shared.seconds  # the look counts, whichever pool has made it
        # What was committed before the scan is in `groups`; without any, a claim would find nothing.
        self._positions = {(queue, name, priority): (at, 0) for queue, name, priority, at in self._waiting.groups}
        found = self._claim_at_positions(limit, counted) if self._waiting.groups else []
        # Where nothing was claimed, the next delivery may be due before the one that was the first.
        self._positions = {place: position for place, position in self._positions.items() if position[1]}
        # Only the time spent in queries: waits for a lock or a connection say nothing about the next scan.
        wait = _IDLE_PER_SCAN * (self._store.claims.seconds - spent)
        now = self._monotonic()
        self._next_scan = now + max(_SOONEST, wait)
        self._next_working_scan = now + min(_IDLE, wait)
        self._next_idle_scan = now if wait < _SOONEST else self._next_working_scan
        return found

    def _read_waiting(self) -> None:
        self._waiting = self._shared.read(self._destinations)
        now = self._monotonic()
        # A place that had work will have it again: the latest such places are tried beside those that have work now.
        places = [group[:3] for group in self._waiting.groups]
        for place in places:
            self._seen.pop(place, None)
        had = [item for item in self._seen.items() if item[1] > now][-_PLACES:]
        self._seen = dict(had) | dict.fromkeys(places, now + _REMEMBERED)
        self._gates.update({(queue, name): now + _REMEMBERED for queue, name, _ in self._waiting.gates})
        self._gates = {place: until for place, until in self._gates.items() if until > now}
        self.next_gate = now + min((seconds for *_, seconds in self._waiting.gates), default=float("inf"))

    def _claim_at_positions(self, limit: int, counted: Counted, *, only: Counted | None = None) -> list[Claimed]:
        self._finds_work = False
        places = [place for place in self._places_in_turn() if only is None or only.has(*place[:2])]
        rooms = [(place, room) for place in places if (room := self._room(*place[:2])) > 0]
        # Bounded places (hosts) share a claim: all of them are served in parallel, over few connections each.
        share = -(-limit // max(1, min(len(rooms), len(self._waiting.groups), _PLACES)))
        slices = [self._slice(place, limit if room >= UNLIMITED else min(share, room)) for place, room in rooms]
        for first in range(0, len(slices), _PLACES):  # until one statement finds something
            some = slices[first : first + _PLACES]
            found = self._take(some, limit, counted)
            if found:
                self._finds_work = True
                # The rows of one place are in order, so its last row is the new position.
                for claim in found[-1:] if len(some) == 1 else found:
                    self._positions[claim.queue, claim.destination, claim.priority] = (claim.next_run_at, claim.id)
                last = (found[-1].queue, found[-1].destination, found[-1].priority)
                self._turn += places.index(last)  # the next claim begins behind this place
                return found
        return []

    def _take(self, slices: Sequence[Slice], limit: int, counted: Counted) -> list[Claimed]:
        """Claims from these slices. By list it tries again at once if it finds nothing, see `_SHORT_LISTS`."""
        while True:
            listing = self._listing(limit, self._backlog)
            found = self._store.claims.take(self.worker, slices, limit=limit, counted=counted, listing=listing)
            self._backlog = _backlog_after(self._backlog, len(found), limit)
            if found or listing is None or not self._backlog:
                return found

    def _listing(self, limit: int, backlog: int) -> Listing | None:
        """What may be claimed by list: a worker that wants so many, and finds them, drains a backlog of short ones."""
        return Listing(self._listable, FEWEST) if self._listable and backlog and limit >= FEWEST else None

    def _slice(self, place: Place, most: int) -> Slice:
        return Slice(*place, *self._positions.get(place, (0.0, 0)), most)

    def _places_in_turn(self) -> list[Place]:
        """Returns the places, larger priorities first; places of one priority take turns at being first."""
        self._turn += 1
        return sorted(_rotate(list(self._seen), self._turn), key=lambda place: -place[2])


def _backlog_after(backlog: int, found: int, limit: int) -> int:
    """How many claims that find too little may still be by list, after one that found so many of `limit`."""
    return _SHORT_LISTS if found >= min(limit, FEWEST) else max(0, backlog - 1)


def _rotate(some: list[T], turn: int) -> list[T]:
    """Returns the list, beginning with another element each turn."""
    first = turn % len(some) if some else 0
    return some[first:] + some[:first]
