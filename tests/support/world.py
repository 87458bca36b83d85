"""A world to act in: one store on one database, with a clock that tests move.

The clock of SQLite is an argument; the clock of PostgreSQL is the function todoku_now(), which is replaced in the
test's own database.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal
from uuid import UUID, uuid4

import psycopg

from todoku.app import new_id
from todoku.core.decision import SUCCEEDED, Settlement
from todoku.core.limit import Limit
from todoku.core.message import Claimed, Draft, Message
from todoku.core.settings import Settings, read_settings
from todoku.core.status import Status
from todoku.core.topic_pattern import Route
from todoku.engine.publish import MessageOptions, draft
from todoku.store.audit import Signed
from todoku.store.claim_lists import Listing
from todoku.store.claims import SettleReport
from todoku.store.database import Database, Slice
from todoku.store.deliveries import Delivery, Filter
from todoku.store.limits import UNCOUNTED, Counted, Gated
from todoku.store.postgres.database import PostgresDatabase
from todoku.store.publish import Publishing, publish
from todoku.store.sqlite.database import SqliteDatabase, file_path, wall_clock
from todoku.store.store import Store

Backend = Literal["sqlite", "postgres"]
SOMEBODY = Signed("somebody", "a test")


class World:
    """A store and what tests do with it."""

    def __init__(self, backend: Backend, url: str, **settings: object) -> None:
        self.backend = backend
        self.url = url
        self._given = settings
        self._skew = 0
        self._stores: list[Store] = []
        self.store = self.another_store()

    # ------------------------------------------------------------------------------------------ stores

    def settings(self, **more: object) -> Settings:
        patient = {"lock_timeout_sec": 60.0} if self.backend == "sqlite" else {}  # the machine may be busy
        return read_settings({}, None, database=self.url, **(patient | self._given | more))

    def another_store(self, **more: object) -> Store:
        """A second store on the same database with connections of its own: as another process would have."""
        settings = self.settings(**more)
        sqlite = self.backend == "sqlite"
        database: Database = SqliteDatabase(settings, clock=self._now) if sqlite else PostgresDatabase(settings)
        store = Store(database, ledger_ttl=settings.ledger_ttl)
        self._stores.append(store)
        return store

    def close(self) -> None:
        for store in self._stores:
            store.close()

    # -------------------------------------------------------------------------------------------- time

    def _now(self) -> int:
        return wall_clock() + self._skew

    def advance(self, seconds: float) -> None:
        """Let the database's clock go on."""
        self._skew += round(seconds * 1e6)
        if self.backend == "postgres":
            self.sql(
                "create or replace function todoku_now() returns timestamptz language sql stable parallel safe"
                f" as $$ select statement_timestamp() + interval '{self._skew} microseconds' $$"
            )

    def reset_clock(self) -> None:
        """Let the database's clock be right again."""
        self.advance(-self._skew / 1e6)

    # --------------------------------------------------------------------------------------- the line

    def drafts(
        self,
        number: int = 1,
        *,
        topic: str = "order.created",
        to: Sequence[str] = ("warehouse",),
        queue: str | None = None,
        ordered: bool = False,
        per_key: Limit | None = None,
        max_attempts: int = 6,
        payload: Callable[[int], object] = lambda place: {"n": place},
        **options: Any,
    ) -> list[Draft]:
        """Drafts to destinations `to`, each in the queue of its own name or in `queue`."""
        routes = [
            Route(
                pattern="**",
                destination=name,
                queue=queue or name,
                ordered=ordered,
                per_key=per_key,
                max_attempts=max_attempts,
            )
            for name in to
        ]
        return [
            draft(new_id(), topic, payload(place), MessageOptions(**options), routes, max_payload_bytes=1 << 20)
            for place in range(number)
        ]

    def steps(self, drafts: list[Draft]) -> Any:
        """The publish statements of drafts, for whatever connection."""
        database = self.store.database
        return publish(Publishing(database.dialect, database.queries, database.now()), drafts, whole=True)

    def publish(self, number: int = 1, **options: Any) -> list[Message]:
        """Publish in a transaction of its own. Options as `drafts`."""
        return self.store.run(self.steps(self.drafts(number, **options)))

    def worker(self, *, lease: float = 60.0, name: str = "test") -> UUID:
        """Register a new worker."""
        worker = uuid4()
        self.store.leases.register(worker, name=name, lease=lease)
        return worker

    def claim(
        self,
        worker: UUID,
        limit: int = 100,
        destinations: Sequence[str] | None = None,
        store: Store | None = None,
        counted: Counted = UNCOUNTED,
    ) -> list[Claimed]:
        """Claim by a full scan: everything that waits, larger priorities first."""
        store = store or self.store
        places = sorted(store.claims.waiting(destinations).groups, key=lambda place: -place[2])
        slices = [Slice(*place[:3], most=limit) for place in places]
        return store.claims.take(worker, slices, limit=limit, counted=counted) if slices else []

    def claim_lanes(
        self,
        worker: UUID,
        lanes: int = 100,
        limit: int = 100,
        counted: Counted = UNCOUNTED,
        listing: Listing | None = None,
    ) -> list[Claimed]:
        """Claim lanes, whatever waits in them."""
        claims, places = self.store.claims, self.store.claims.waiting(None).lanes
        if not places:
            return []
        return claims.take_lanes(worker, places, lanes=lanes, limit=limit, counted=counted, listing=listing)

    def claim_gates(
        self,
        worker: UUID,
        per_key: Limit | None,
        limit: int = 100,
        store: Store | None = None,
        counted: Counted = UNCOUNTED,
    ) -> list[Claimed]:
        """Claim of every key what its limit leaves."""
        store = store or self.store
        most = (None, None) if per_key is None else (per_key.concurrency, per_key.rate)
        places = [Gated(queue, destination, *most) for queue, destination, _ in store.claims.waiting(None).gates]
        return store.claims.take_gates(worker, places, number=100, limit=limit, counted=counted) if places else []

    def claim_suspect(self, worker: UUID, counted: Counted = UNCOUNTED) -> list[Claimed]:
        """Claim one delivery whose owner died."""
        places = self.store.claims.waiting(None).suspects
        return self.store.claims.take_suspect(worker, places, counted=counted) if places else []

    def settle(self, claims: Sequence[Claimed], settlement: Settlement = SUCCEEDED) -> SettleReport:
        """Settle all of them the same way."""
        return self.store.claims.settle([(claim, settlement) for claim in claims])

    # ------------------------------------------------------------------------------------------ looking

    def deliveries(self, **which: Any) -> list[Delivery]:
        """Unfinished deliveries and dead letters, oldest first."""
        return sorted(self.store.deliveries.find(Filter(**which), limit=10_000).items, key=lambda found: found.id)

    def delivery(self, id: int) -> Delivery | None:
        """One delivery, wherever it is now."""
        for status in (None, "succeeded"):
            for found in self.store.deliveries.find(Filter(ids=(id,), status=status)).items:
                return found
        return None

    def history(self) -> list[Delivery]:
        """Succeeded deliveries."""
        return sorted(
            self.store.deliveries.find(Filter(status="succeeded"), limit=100_000).items, key=lambda found: found.id
        )

    def connect(self) -> Any:
        """A connection as user code has one: sqlite3's, or psycopg's (not in autocommit)."""
        if self.backend == "sqlite":
            return sqlite3.connect(file_path(self.url), timeout=60)
        return psycopg.connect(self.url)

    def sql(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Run a statement of the test's own and commit it. Parameters are `?` on both databases."""
        connection = self.connect()
        try:
            with connection:
                text = statement if self.backend == "sqlite" else statement.replace("?", "%s")
                cursor = connection.execute(text, values) if values else connection.execute(text)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    def until_blocked(self, number: int = 1) -> None:
        """PostgreSQL: come back once so many connections to this database wait for somebody's lock."""
        waiting = (
            "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
        )
        deadline = time.monotonic() + 60
        with psycopg.connect(self.url, autocommit=True) as watching:
            while watching.execute(waiting).fetchall() < [(number,)]:
                assert time.monotonic() < deadline, f"{number} connections were to wait for a lock, and do not"
                time.sleep(0.005)


def failed(reason: str = "TIMEOUT", *, delay: float = 0.0) -> Settlement:
    """An attempt that failed and will be made again after `delay`."""
    return Settlement(status=Status.FAILED, reason=reason, error=f"{reason} in a test", delay=delay)


def aborted(reason: str = "REFUSED") -> Settlement:
    """An attempt that failed for good."""
    return Settlement(status=Status.ABORTED, reason=reason, error=f"{reason} in a test")


def snoozed(delay: float = 0.0) -> Settlement:
    """An attempt that asked to be made later."""
    return Settlement(status=Status.PENDING, delay=delay, snoozed=True)
