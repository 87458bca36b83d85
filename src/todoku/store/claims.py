"""Claims: what workers do to deliveries: take, settle, release. Each row goes to one worker (I3).

A claim is a token (id, epoch, worker). It works once: every later write proves that the worker still owns the row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from enum import Enum
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from todoku.core.decision import Settlement
from todoku.core.errors import DatabaseBusy, DatabaseUnavailable
from todoku.core.http_request import served_as
from todoku.core.message import Claimed
from todoku.core.outcome import Done, Outcome
from todoku.core.status import Status
from todoku.store import claim_lists, gates, settlement
from todoku.store.claim_lists import Listing
from todoku.store.database import Database, Slice, Tx
from todoku.store.endings import Endings
from todoku.store.lanes import claim as claim_lanes
from todoku.store.lanes import claim_list as claim_lane_list
from todoku.store.leases import Held
from todoku.store.limits import UNCOUNTED, Counted, Gated, P, Place, claim_by_place, place_documents

T = TypeVar("T")
Token = TypeVar("Token", Claimed, Held)


class Waiting(msgspec.Struct, frozen=True):
    """Where deliveries wait, due or not: (queue, destination) of each kind, and what else is known of some."""

    groups: tuple[tuple[str, str, int, float], ...]
    """Also the priority, and the time from which on the first delivery there may run."""
    suspects: tuple[tuple[str, str], ...]
    lanes: tuple[tuple[str, str], ...]
    gates: tuple[tuple[str, str, float], ...] = ()
    """Places where a key may start a delivery, with the seconds until the first gate is due."""

    def only(self, destinations: Collection[str]) -> Waiting:
        """The part that waits for these destinations; one that is a URL scheme stands for every host."""

        def served(place: tuple[str, str] | tuple[str, str, float] | tuple[str, str, int, float]) -> bool:
            return place[1] in destinations or served_as(place[1]) in destinations

        return Waiting(
            tuple(filter(served, self.groups)), tuple(filter(served, self.suspects)), tuple(filter(served, self.lanes)),
            tuple(filter(served, self.gates)),
        )  # fmt: skip


class SettleReport(msgspec.Struct, frozen=True):
    """Claims that did not settle. `lost`: not owned any more, drop them. `stuck`: a row was locked, settle again."""

    lost: tuple[Claimed, ...] = ()
    stuck: tuple[Claimed, ...] = ()


class Transacted(Enum):
    """How a transactional handler's commit ended: settled with it, or rolled back because the row was not owned."""

    SETTLED = "settled"
    LOST = "lost"


class ClaimStore:
    """Deliveries as workers take and settle them."""

    def __init__(self, database: Database, endings: Endings, *, ledger_ttl: float) -> None:
        self._database = database
        self._endings = endings
        self._ledger_ttl = ledger_ttl
        self._lists = claim_lists.OpenLists()
        self.seconds = 0.0
        """Seconds that `waiting` and the takes have worked so far, without what they waited for: a connection, the
        write lock of SQLite, the lock of a limit."""

    def waiting(self, destinations: Sequence[str] | None) -> Waiting:
        """Where work waits for these destinations (None: all), due or not. Cost: the number of places, not rows."""
        return self._database.read_alone(lambda tx: self._timed(lambda: read_waiting(tx, destinations)))

    # --------------------------------------------------------------------------------------------- take

    def take(
        self,
        worker: UUID,
        slices: Sequence[Slice],
        *,
        limit: int,
        counted: Counted = UNCOUNTED,
        listing: Listing | None = None,
    ) -> list[Claimed]:
        """Takes up to `limit` due deliveries, slice by slice, each slice in time order.

        `attempt` and `epoch` of each rise. A worker whose lease ended gets nothing. Paused queues, open breakers,
        expired and future rows, lanes, gates and suspects are passed over.

        Of the names in `counted`, here and in the other takes, no more is taken than their limits leave: exactly, even
        if other workers claim at the same moment. Places at their limit are passed over, and not waited for.

        `listing`: what may be claimed by one list, on PostgreSQL and without limits.
        """

        if listing is not None and not counted and self._database.dialect == "postgresql":
            return self._take_list(worker, slices, limit, listing)

        def take(tx: Tx, some: Sequence[Slice], most: int) -> list[Any]:
            return self._database.claim(tx, worker, some, most)

        return self._take("claim", worker, slices, counted, limit, take)

    def _take_list(self, worker: UUID, slices: Sequence[Slice], limit: int, listing: Listing) -> list[Claimed]:
        def work(tx: Tx) -> list[Any]:
            return self._timed(lambda: claim_lists.claim(tx, worker, slices, limit, listing))

        claims = claim_lists.build(self._database.write_alone("claim", work), slices, worker)
        self._lists.add(claims)
        return claims

    def _take_lane_list(
        self, worker: UUID, places: Sequence[tuple[str, str]], lanes: int, limit: int, listing: Listing
    ) -> list[Claimed]:
        def work(tx: Tx) -> list[Claimed]:
            return self._timed(lambda: claim_lane_list(tx, worker, places, lanes, limit, listing))

        claims = self._database.write("claim_lanes", work)
        self._lists.add(claims)
        return claims

    def take_suspect(
        self, worker: UUID, places: Sequence[tuple[str, str]], *, counted: Counted = UNCOUNTED
    ) -> list[Claimed]:
        """Takes one due delivery whose owner died before, if there is one; not past the limit of its key."""

        def take(tx: Tx, some: Sequence[Place], _most: int) -> list[Any]:
            return gates.claim_suspect(tx, worker, place_documents(some))

        return self._take("claim_suspect", worker, [Place(*place) for place in places], counted, 1, take)

    def take_lanes(
        self,
        worker: UUID,
        places: Sequence[tuple[str, str]],
        *,
        lanes: int,
        limit: int,
        counted: Counted = UNCOUNTED,
        listing: Listing | None = None,
    ) -> list[Claimed]:
        """Takes up to `lanes` lanes and the first rows of each, in order: one if its head has failed before.

        Rows of a lane must be run in turn (I10). A head that may not run yet blocks its lane. A row whose owner died
        comes alone (H6). `listing`: as for `take`.
        """
        if listing is not None and not counted and self._database.dialect == "postgresql":
            return self._take_lane_list(worker, places, lanes, limit, listing)

        def take(tx: Tx, some: Sequence[Place], most: int) -> list[Any]:
            # Rows that wait behind the head of a lane would count as running: of a place with a limit take only heads.
            return claim_lanes(tx, worker, some, lanes, most, heads_only=counted.has(*some[0]))

        return self._take("claim_lanes", worker, [Place(*place) for place in places], counted, limit, take)

    def take_gates(
        self, worker: UUID, places: Sequence[Gated], *, number: int, limit: int, counted: Counted = UNCOUNTED
    ) -> list[Claimed]:
        """Takes up to `limit` due deliveries of up to `number` gates: of each key as many as its limit leaves.

        The limits of a key hold exactly, over all workers. Larger priorities first, and gates
        take turns. Rows behind a full gate are not read. The limit of the last claim is the gate's.
        """

        def take(tx: Tx, some: Sequence[Gated], most: int) -> list[Any]:
            return gates.claim(tx, worker, some, number, most)

        return self._take("claim_gates", worker, places, counted, limit, take)

    def _take(
        self,
        operation: str,
        worker: UUID,
        places: Sequence[P],
        counted: Counted,
        limit: int,
        take: Callable[[Tx, Sequence[P], int], list[Any]],
    ) -> list[Claimed]:
        def timed(tx: Tx, some: Sequence[P], most: int) -> list[Any]:
            return self._timed(lambda: take(tx, some, most))

        def work(tx: Tx) -> list[Any]:
            return claim_by_place(tx, places, counted, limit, partial(timed, tx))

        # A plain claim is one statement. What is counted, and what lanes and gates take, is several.
        write = self._database.write_alone if operation == "claim" and not counted else self._database.write
        try:
            rows = write(operation, work)
        except DatabaseBusy:  # another connection holds the lock of a limit: claim the places without one
            free = [place for place in places if not counted.has(place.queue, place.destination)]
            if not free or len(free) == len(places):
                raise
            rows = self._database.write(operation, lambda tx: timed(tx, free, limit))
        build: Callable[..., Claimed] = Claimed
        return [build(*row, worker) for row in rows]

    def _timed(self, work: Callable[[], T]) -> T:
        """Counts `work` in `seconds`. Called in a transaction that has its locks."""
        began = time.monotonic()
        result = work()
        self.seconds += time.monotonic() - began
        return result

    # ------------------------------------------------------------------------------------------- settle

    def effects(self, claims: Sequence[Claimed]) -> dict[int, tuple[str, str]]:
        """The ledger entries of these claims, as (state, digest) by delivery id, as far as there are any."""
        return self._database.read(lambda tx: settlement.read_effects(tx, claims))

    def settle(
        self, settled: Sequence[tuple[Claimed, Settlement]], run_ms: settlement.RunTimes = settlement.UNTIMED
    ) -> SettleReport:
        """Writes what attempts came to: ledger, delivery, history, in one transaction (I5), and how long they ran.

        Claims that are not owned any more change nothing and are reported `lost`. Claims that this worker has settled
        before count as settled, so repeating after a lost reply is harmless (a repeated snooze is reported `lost`: it
        leaves no record, and nothing to lose). Rows that another connection keeps locked do not hold up the others:
        they are reported `stuck`.
        """
        if not settled:
            return SettleReport()
        worker = settled[0][0].worker
        first = {pair[0].id: pair for pair in reversed(settled)}
        if len(first) < len(settled):  # an old token beside a new one of the same delivery: each separately
            rest = [pair for pair in settled if first[pair[0].id] is not pair]
            one, other = self.settle(list(first.values()), run_ms), self.settle(rest, run_ms)
            return SettleReport(one.lost + other.lost, one.stuck + other.stuck)
        try:
            lost = self._endings.write("settle", lambda tx: self._settle(tx, worker, settled, run_ms))
        except DatabaseBusy:
            # Another connection holds one of these rows. Halve until it is alone, so that the others settle (H11).
            # SQLite has one lock for all of them: smaller parts would only wait for it again and again.
            if len(settled) == 1 or self._database.dialect == "sqlite":
                return SettleReport(stuck=tuple(claim for claim, _ in settled))
            middle = len(settled) // 2
            one, other = self.settle(settled[:middle], run_ms), self.settle(settled[middle:], run_ms)
            return SettleReport(one.lost + other.lost, one.stuck + other.stuck)
        self._lists.end(claim for claim, _ in settled)
        return SettleReport(
            lost=self._lost(worker, [claim for claim, _ in settled if claim.id in lost] if lost else [])
        )

    def transact(self, claim: Claimed, work: Callable[[Any], Outcome], *, limit: float) -> Outcome | Transacted:
        """Runs `work` with an open transaction; its writes, the inbox mark and the settle commit together (I6).

        Only Done commits; another outcome is returned, with everything rolled back. A row that is not owned any more
        rolls back, too. The database ends a transaction that takes longer than `limit` seconds.
        """
        try:
            result = self._transact(claim, work, limit)
        except DatabaseUnavailable:
            if self._lost(claim.worker, [claim]):  # raises in its turn without a database: then it stays unknown
                raise
            result = Transacted.SETTLED  # the commit had happened, only its reply was lost
        self._endings.after_commit()
        return result

    def _transact(self, claim: Claimed, work: Callable[[Any], Outcome], limit: float) -> Outcome | Transacted:
        with self._database.open_transaction(limit) as opened:
            began = time.monotonic()
            outcome = work(opened.connection)
            run_ms = {claim.id: int((time.monotonic() - began) * 1000)}
            if not isinstance(outcome, Done):
                return outcome
            opened.check()
            opened.tx.rows("mark_inbox", consumer=claim.destination, message_id=claim.message_id)
            done = Settlement(status=Status.SUCCEEDED, result=outcome.result)
            if self._settle(opened.tx, claim.worker, [(claim, done)], run_ms):
                return Transacted.LOST
            opened.commit()
            return Transacted.SETTLED

    def _settle(
        self, tx: Tx, worker: UUID, settled: Sequence[settlement.Settled], run_ms: settlement.RunTimes
    ) -> set[int]:
        return settlement.settle(
            tx, worker, settled, run_ms=run_ms, ledger_ttl=self._ledger_ttl, endings=self._endings, lists=self._lists
        )

    def _lost(self, worker: UUID, claims: list[Claimed]) -> tuple[Claimed, ...]:
        if not claims:
            return ()
        before = self._database.read(lambda tx: settlement.settled_before(tx, worker, claims))
        return tuple(claim for claim in claims if (claim.id, claim.epoch) not in before)

    # ------------------------------------------------------------------------------------------ release

    def release(self, claims: Sequence[Token], *, delay: float = 0.0) -> tuple[Token, ...]:
        """Gives back deliveries whose attempt never started. Returns the claims that were not owned any more.

        Rows of `LeaseStore.owned` may be released, too: a worker need not know more of a delivery than that (H3).
        """
        if not claims:
            return ()
        worker = claims[0].worker
        first = {claim.id: claim for claim in reversed(claims)}
        if len(first) < len(claims):  # as in settle
            rest = [claim for claim in claims if first[claim.id] is not claim]
            return self.release(list(first.values()), delay=delay) + self.release(rest, delay=delay)

        def work(tx: Tx) -> set[int]:
            return settlement.release(tx, worker, claims, delay, endings=self._endings)

        ours = self._endings.write("release", work)
        released: Sequence[Claimed | Held] = claims
        self._lists.end(claim for claim in released if isinstance(claim, Claimed))
        return tuple(claim for claim in claims if claim.id not in ours)


def read_waiting(tx: Tx, destinations: Sequence[str] | None) -> Waiting:
    """As `ClaimStore.waiting`, in an open transaction: walks over the set of places, never over rows."""
    found: dict[str, list[tuple[str, str, int, float]]] = {"group": [], "suspect": [], "lane": [], "gate": []}
    for kind, queue, name, priority, number in tx.rows("waiting_work", destinations=destinations):
        found[kind].append((queue, name, priority, float(number)))
    return Waiting(
        tuple(found["group"]),
        tuple((queue, name) for queue, name, *_ in found["suspect"]),
        tuple((queue, name) for queue, name, *_ in found["lane"]),
        gates.soonest([(queue, name, seconds) for queue, name, _, seconds in found["gate"]]),
    )
