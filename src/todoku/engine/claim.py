"""2. Claim: which slices to ask for, and from where on.

A claim starts from a remembered (next_run_at, id) per place, so that rows finished under somebody's old snapshot are
not walked again and again. Rows may appear behind the position (late commits, releases, retries of the clock), and
places may be new, so there are full scans. A busy worker, one that finds work without them, gives them at most 5 % of
its time. An idle worker scans at every poll if that is cheap, else after a notice and once a second, whatever the last
scan took (decision 9).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar
from uuid import UUID

from todoku.core.limit import Limit
from todoku.core.message import Claimed
from todoku.store.claims import Waiting
from todoku.store.database import Slice
from todoku.store.limits import UNCOUNTED, Counted, Gated
from todoku.store.store import Store

_SHARE: Final = 19
"""A full scan that took a second is followed by at least 19 without one: 5 %."""

_SOONEST: Final = 0.25
"""Two full scans are at least this far apart while positions find work."""

_IDLE: Final = 1.0
"""An idle worker scans at least once in so many seconds: it has nothing else to spend the time on."""

_PLACES: Final = 64
"""So many places are asked by one statement; and so many that had work are asked without looking whether they have."""

_SIDE_BY_SIDE: Final = 32
"""So many places share a claim: with more of them each gives too little for what it costs to ask it."""

_REMEMBERED: Final = 60.0
"""A place that had work is asked for so many seconds more: its next message, or its key that was full, does not wait
for a look."""

T = TypeVar("T")
Place = tuple[str, str, int]


Room = Callable[[str, str], int]
"""How many more of a queue and for a destination may be held: breakers and pauses say so. Limits are counted."""

UNLIMITED: Final = 1 << 30


def boundless(_queue: str, _destination: str) -> int:
    """No limit but the claim's own."""
    return UNLIMITED


class SharedLook:
    """What waits, looked at once a round for all pools of a worker: a pool without work costs the others nothing."""

    def __init__(self, store: Store, pools: Sequence[Sequence[str]]) -> None:
        self._store = store
        self._destinations = tuple(name for names in pools for name in names)
        self._found: Waiting | None = None
        self._told: set[Sequence[str]] = set()

    def begin(self) -> None:
        """A new round: what was seen before does not count any more."""
        self._found = None

    def look(self, destinations: Sequence[str]) -> Waiting:
        """What waits for these. Who asks twice in a round wants to know anew."""
        if self._found is None or destinations in self._told:
            self._found = self._store.claims.waiting(self._destinations)
            self._told = set()
        self._told.add(destinations)
        return self._found if destinations == self._destinations else self._found.only(destinations)


class Claiming:
    """What one worker remembers between its claims. Not thread-safe: a worker has one claimer."""

    def __init__(
        self,
        store: Store,
        worker: UUID,
        destinations: Sequence[str],
        *,
        monotonic: Callable[[], float],
        look: Callable[[Sequence[str]], Waiting] | None = None,
        room: Room = boundless,
        per_key: Mapping[str, Limit] | None = None,
    ) -> None:
        self._store = store
        self.worker = worker
        self._destinations = tuple(destinations)
        self._monotonic = monotonic
        self._look_at = look or store.claims.waiting
        self._room = room
        self._per_key = per_key or {}
        self._gates: dict[tuple[str, str], float] = {}
        self.next_gate = float("inf")
        """When a key may start something again, by the clock of this worker."""
        self._waiting = Waiting((), (), ())
        self._seen: dict[Place, float] = {}
        self._positions: dict[Place, tuple[float, int]] = {}
        self._next_scan = self._next_idle_scan = 0.0
        self._noticed = False
        self._turn = self._round = 0

    @property
    def sees_suspects(self) -> bool:
        """Whether deliveries wait whose owner died."""
        return bool(self._waiting.suspects)

    @property
    def sees_lanes(self) -> bool:
        """Whether lanes have work."""
        return bool(self._waiting.lanes)

    @property
    def sees_others(self) -> bool:
        """Whether there is, or was, work that is neither in a lane nor at a gate."""
        return bool(self._seen)

    @property
    def sees_gates(self) -> bool:
        """Whether keys with a limit have work, or had it a moment ago."""
        return bool(self._gates)

    def claim(self, limit: int, *, counted: Counted = UNCOUNTED, busy: bool = False) -> list[Claimed]:
        """Up to `limit` due deliveries: from the positions, or by a full scan if that is due.

        `busy`: there is other work than this, which a look that finds nothing would cost its time.
        """
        if self._monotonic() < self._next_scan:
            if found := self._ask(limit, counted):
                return found
            if busy or not (self._noticed or self._monotonic() >= self._next_idle_scan):
                return []
        return self._scan(limit, counted)

    def look_everywhere(self) -> None:
        """A publisher gave notice: the next claim that finds nothing at its positions scans, unless it is busy."""
        self._noticed = True

    def claim_counted(self, limit: int, *, counted: Counted) -> list[Claimed]:
        """Up to `limit` due deliveries of places that have a limit, and of no others."""
        return self._ask(limit, counted, only=counted)

    def claim_gates(self, *, gates: int, limit: int, counted: Counted = UNCOUNTED) -> list[Claimed]:
        """Up to `limit` deliveries of up to `gates` keys that have a limit, of each as many as it leaves."""
        for places, room in self._by_room(list(self._gates)):
            gated, most = [self._gated(*place) for place in places], min(limit, room)
            found = self._store.claims.take_gates(
                self.worker, gated, number=min(gates, room), limit=most, counted=counted
            )
            if found:
                return found
        return []

    def _gated(self, queue: str, destination: str) -> Gated:
        limit = self._per_key.get(destination)
        if limit is None:  # it has none any more
            return Gated(queue, destination)
        return Gated(queue, destination, limit.concurrency, limit.rate)

    def claim_lanes(self, *, lanes: int, limit: int, counted: Counted = UNCOUNTED) -> list[Claimed]:
        """Up to `limit` deliveries of up to `lanes` lanes; each lane's rows in order."""
        if not self._waiting.lanes:
            self._look()
        groups = self._by_room(self._waiting.lanes)
        for places, room in groups:
            found = self._store.claims.take_lanes(
                self.worker, places, lanes=min(lanes, room), limit=min(limit, room), counted=counted
            )
            if found:
                return found
        if groups:
            self._look()
        return []

    def claim_suspect(self, *, counted: Counted = UNCOUNTED) -> list[Claimed]:
        """One delivery whose owner died before. Where there is none, what waits was looked at by this."""
        known = bool(self._waiting.suspects)
        if not known:
            self._look()
        places = [place for places, _ in self._by_room(self._waiting.suspects) for place in places]
        found = self._store.claims.take_suspect(self.worker, places, counted=counted) if places else []
        if not found and (known or places):
            self._look()
        return found

    def _by_room(self, places: Sequence[tuple[str, str]]) -> list[tuple[list[tuple[str, str]], int]]:
        """Places with room, together those that have as much: one with little keeps no other back. In turn."""
        groups: dict[int, list[tuple[str, str]]] = {}
        for place in places:
            if (room := self._room(*place)) > 0:
                groups.setdefault(room, []).append(place)
        self._round += 1
        return _turned([(some, room) for room, some in groups.items()], self._round)

    def _scan(self, limit: int, counted: Counted) -> list[Claimed]:
        self._noticed = False
        spent = self._store.claims.seconds
        self._positions.clear()
        self._look()
        found = self._ask(limit, counted)
        # Not the time by the clock: a wait for a lock or a connection says nothing about the next scan.
        wait = _SHARE * (self._store.claims.seconds - spent)
        now = self._monotonic()
        self._next_scan = now + max(_SOONEST, wait)
        self._next_idle_scan = now if wait < _SOONEST else now + min(_IDLE, wait)
        return found

    def _look(self) -> None:
        self._waiting = self._look_at(self._destinations)
        now = self._monotonic()
        # A place that had work will have it again: the last ones that had are asked beside those that have it now.
        for place in self._waiting.groups:
            self._seen.pop(place, None)
        had = [item for item in self._seen.items() if item[1] > now][-_PLACES:]
        self._seen = dict(had) | dict.fromkeys(self._waiting.groups, now + _REMEMBERED)
        self._gates.update({(queue, name): now + _REMEMBERED for queue, name, _ in self._waiting.gates})
        self._gates = {place: until for place, until in self._gates.items() if until > now}
        self.next_gate = now + min((seconds for *_, seconds in self._waiting.gates), default=float("inf"))

    def _ask(self, limit: int, counted: Counted, *, only: Counted | None = None) -> list[Claimed]:
        places = [place for place in self._in_turn() if only is None or only.has(*place[:2])]
        rooms = [(place, room) for place in places if (room := self._room(*place[:2])) > 0]
        # Places that are bounded share a claim: all of them are served side by side, over few connections each.
        share = -(-limit // max(1, min(len(rooms), len(self._waiting.groups), _SIDE_BY_SIDE)))
        slices = [self._slice(place, limit if room >= UNLIMITED else min(share, room)) for place, room in rooms]
        for first in range(0, len(slices), _PLACES):  # some at a time, until there is something
            some = slices[first : first + _PLACES]
            if found := self._store.claims.take(self.worker, some, limit=limit, counted=counted):
                # Rows of one place come in order, so its last one is the position.
                for claim in found[-1:] if len(some) == 1 else found:
                    self._positions[claim.queue, claim.destination, claim.priority] = (claim.next_run_at, claim.id)
                last = (found[-1].queue, found[-1].destination, found[-1].priority)
                self._turn += places.index(last)  # the next claim goes on behind it
                return found
        return []

    def _slice(self, place: Place, most: int) -> Slice:
        return Slice(*place, *self._positions.get(place, (0.0, 0)), most)

    def _in_turn(self) -> list[Place]:
        """Places by priority, larger first; those of one priority take turns at being first."""
        self._turn += 1
        return sorted(_turned(list(self._seen), self._turn), key=lambda place: -place[2])


def _turned(some: list[T], turn: int) -> list[T]:
    """The same, beginning with another one each turn."""
    first = turn % len(some) if some else 0
    return some[first:] + some[:first]
