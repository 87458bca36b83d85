"""The store: everything todoku keeps in one database, by noun. The conformance suite defines it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar
from uuid import UUID

import msgspec

from todoku.core.ending import Hook
from todoku.core.errors import SchemaError
from todoku.store.acts import ActStore
from todoku.store.alerts import AlertStore
from todoku.store.attempts import AttemptStore
from todoku.store.audit import AuditStore
from todoku.store.batches import BatchStatus, read_status
from todoku.store.claims import ClaimStore
from todoku.store.data_keys import DataKeyStore
from todoku.store.database import Database, Facts, Listener, Migrated, run_steps
from todoku.store.deliveries import DeliveryStore
from todoku.store.destinations import DestinationStore
from todoku.store.endings import Endings, read_hooks
from todoku.store.invariants import find_broken
from todoku.store.leases import LeaseStore
from todoku.store.ledger import LedgerStore
from todoku.store.limits import LimitStore
from todoku.store.messages import MessageStore
from todoku.store.queues import QueueStore
from todoku.store.request_events import RequestEventStore
from todoku.store.retention import Retention
from todoku.store.schedules import ScheduleStore
from todoku.store.secrets import SecretStore
from todoku.store.situation import Situation, read_situation
from todoku.store.statements import Steps
from todoku.store.statistics import Statistics
from todoku.store.tokens import TokenStore
from todoku.store.url_groups import UrlGroupStore

T = TypeVar("T")


class Store:
    """Messages, deliveries, leases, the ledger and the rest, in one database.

    Calls block and may come from any thread. Any call may raise DatabaseUnavailable: its outcome is unknown then, and
    it may be repeated.
    """

    def __init__(self, database: Database, *, ledger_ttl: float, notify: bool = True) -> None:
        self._ledger_ttl = ledger_ttl
        self._notify = notify
        self.connect(database)

    def connect(self, database: Database) -> None:
        """Uses another database from now on. The old one is the caller's to close."""
        self.database = database
        endings = self._endings = Endings(database, notify=self._notify)
        self.claims = ClaimStore(database, endings, ledger_ttl=self._ledger_ttl)
        self.leases = LeaseStore(database, endings)
        self.acts = ActStore(database, endings, ledger_ttl=self._ledger_ttl)
        self.retention = Retention(database, endings)
        self.deliveries = DeliveryStore(database)
        self.messages = MessageStore(database)
        self.attempts = AttemptStore(database)
        self.audit = AuditStore(database)
        self.ledger = LedgerStore(database)
        self.statistics = Statistics(database)
        self.limits = LimitStore(database)
        self.queues = QueueStore(database)
        self.url_groups = UrlGroupStore(database)
        self.destinations = DestinationStore(database)
        self.schedules = ScheduleStore(database)
        self.alerts = AlertStore(database)
        self.data_keys = DataKeyStore(database)
        self.secrets = SecretStore(database)
        self.tokens = TokenStore(database)
        self.request_events = RequestEventStore(database)

    def migrate(self) -> Migrated:
        """Brings the schema to this program's version, once, even if several processes try at the same time.

        A newer schema, or a migration whose text changed after it was applied, raises SchemaError.
        """
        return self.database.migrate()

    def ping(self) -> float:
        """The database's clock, in unix seconds; raises DatabaseUnavailable if the database does not answer."""
        return float(self.database.read(lambda tx: tx.rows("clock"))[0][0])

    def close(self) -> None:
        """Closes every connection. The store cannot be used afterwards."""
        self.database.close()

    def run(self, steps: Steps[T]) -> T:
        """Runs `steps` in one transaction: all of them are committed, or none."""
        return self.database.write("publish", lambda tx: run_steps(tx, steps))

    def listen(self, notice: Callable[[], None]) -> Listener:
        """Calls `notice`, from a thread, whenever there may be new work. It may be called too often, and too seldom."""
        return self.database.listen(notice)

    # ------------------------------------------------------------------------------- hooks and batches

    def announce_hooks(self, hooks: Sequence[Hook]) -> None:
        """Records that a worker serves these hooks: from now on each gets a message for every end that it matches.

        The message commits with the end itself, so it is neither lost nor doubled. A hook that no worker announces for
        a day is dropped. Other processes notice a new hook within a second.
        """
        self._endings.announce(hooks)

    def hooks(self) -> tuple[Hook, ...]:
        """The hooks that get messages now."""
        return self.database.read(read_hooks)

    def batch(self, id: UUID) -> BatchStatus | None:
        """The progress of a batch. None: there is no such batch, or its retention has passed."""
        return self.database.read(lambda tx: read_status(tx, str(id)))

    def follow_batches(self) -> int:
        """Publishes what follows complete batches where that could not commit with the end of their last member
        (its lane was being published to): once, even if several workers call it. Returns how many it published."""
        return self._endings.catch_up(all=True)

    # -------------------------------------------------------------------------------------- diagnostics

    def situation(self, delivery_id: int) -> Situation | None:
        """Everything that decides when a delivery runs, in one snapshot. None: it does not exist, or it succeeded."""
        return self.database.snapshot(lambda tx: read_situation(tx, delivery_id))

    def broken(self, *, history_ttl: float, ledger_ttl: float, most: int = 10) -> dict[str, tuple[str, ...]]:
        """The invariants that do not hold, by name, each with a limited number of examples.

        One consistent snapshot: right also while workers run.
        """
        return self.database.snapshot(
            lambda tx: find_broken(tx, history_ttl=history_ttl, ledger_ttl=ledger_ttl, most=most)
        )

    def facts(self) -> Facts:
        """What this database is and how it is set up."""
        facts = self.database.facts()
        try:
            version = self.database.read(lambda tx: tx.rows("schema_version"))[0][0]
            stray = self.database.read(lambda tx: tx.rows("stray_history"))[0][0]
        except SchemaError:
            return facts
        return msgspec.structs.replace(facts, version=version, stray=stray)
