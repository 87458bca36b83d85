"""The store: everything todoku keeps in one database, by noun. The conformance suite defines it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Final, TypeVar
from uuid import UUID

import msgspec

from todoku.core.ending import Hook
from todoku.core.errors import SchemaError, StoreError
from todoku.store.acts import ActStore
from todoku.store.alerts import AlertStore
from todoku.store.attempts import AttemptStore
from todoku.store.audit import AuditStore
from todoku.store.batches import BatchStatus, read_status
from todoku.store.captures import CaptureStore
from todoku.store.claims import ClaimStore
from todoku.store.data_keys import DataKeyStore
from todoku.store.database import Database, Facts, Listener, Migrated, run_steps
from todoku.store.deliveries import DeliveryStore
from todoku.store.depths import DepthStore
from todoku.store.destinations import DestinationStore
from todoku.store.endings import Endings, read_hooks
from todoku.store.http_runs import HttpRunStore
from todoku.store.invariants import find_broken
from todoku.store.leases import LeaseStore
from todoku.store.ledger import LedgerStore
from todoku.store.letters import LetterStore
from todoku.store.limits import LimitStore
from todoku.store.messages import MessageStore
from todoku.store.parked_runs import ParkedRuns
from todoku.store.projections import ProjectionStore
from todoku.store.queues import QueueStore
from todoku.store.rates import RateStore
from todoku.store.request_events import RequestEventStore
from todoku.store.retention import Retention
from todoku.store.run_acts import RunActs
from todoku.store.runs import RunStore
from todoku.store.samples import SampleStore
from todoku.store.schedules import ScheduleStore
from todoku.store.search import SearchStore
from todoku.store.secrets import SecretStore
from todoku.store.sessions import SessionStore
from todoku.store.situation import Situation, read_situation
from todoku.store.sql import Steps
from todoku.store.statistics import Statistics
from todoku.store.tokens import TokenStore
from todoku.store.url_groups import UrlGroupStore
from todoku.store.users import UserStore
from todoku.store.waiters import Waiters

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
        for name in _NOUNS:
            self.__dict__.pop(name, None)
        self.database = database
        self.waiters = Waiters(database, notify=self._notify)
        """Callers that wait for the end of a delivery."""
        self._endings = Endings(database, self.waiters, notify=self._notify)
        self.claims = ClaimStore(database, self._endings, ledger_ttl=self._ledger_ttl)
        """Deliveries as workers take and settle them."""

    @cached_property
    def leases(self) -> LeaseStore:
        """The leases of workers."""
        return LeaseStore(self.database, self._endings)

    @cached_property
    def acts(self) -> ActStore:
        """What an operator may do to deliveries."""
        return ActStore(self.database, self._endings, ledger_ttl=self._ledger_ttl)

    @cached_property
    def letters(self) -> LetterStore:
        """Dead letters of HTTP requests by their own ids."""
        return LetterStore(self._endings, ledger_ttl=self._ledger_ttl)

    @cached_property
    def runs(self) -> RunStore:
        """Runs of workflows, as workers run them."""
        return RunStore(self.database, self._endings)

    @cached_property
    def run_acts(self) -> RunActs:
        """What an operator may do to runs of workflows."""
        return RunActs(self.database, self._endings)

    @cached_property
    def parked_runs(self) -> ParkedRuns:
        """How many runs of workflows wait, and for what."""
        return ParkedRuns(self.database)

    @cached_property
    def retention(self) -> Retention:
        """Expiry and pruning."""
        return Retention(self.database, self._endings)

    @cached_property
    def deliveries(self) -> DeliveryStore:
        """Deliveries as people look at them."""
        return DeliveryStore(self.database)

    @cached_property
    def search(self) -> SearchStore:
        """Searches deliveries, finished or not."""
        return SearchStore(self.database)

    @cached_property
    def messages(self) -> MessageStore:
        """Messages, and everything that happened to them."""
        return MessageStore(self.database)

    @cached_property
    def attempts(self) -> AttemptStore:
        """Failed attempts, and recent events."""
        return AttemptStore(self.database)

    @cached_property
    def audit(self) -> AuditStore:
        """The acts of operators."""
        return AuditStore(self.database)

    @cached_property
    def ledger(self) -> LedgerStore:
        """The ledger of idempotency keys."""
        return LedgerStore(self.database)

    @cached_property
    def statistics(self) -> Statistics:
        """Counts, lag, rates."""
        return Statistics(self.database)

    @cached_property
    def rates(self) -> RateStore:
        """What arrived and ended over time."""
        return RateStore(self.database)

    @cached_property
    def samples(self) -> SampleStore:
        """Samples of what ended last."""
        return SampleStore(self.database)

    @cached_property
    def depths(self) -> DepthStore:
        """How deep the queues are."""
        return DepthStore(self.database)

    @cached_property
    def limits(self) -> LimitStore:
        """Limits and breakers of queues and destinations."""
        return LimitStore(self.database)

    @cached_property
    def queues(self) -> QueueStore:
        """Queues and flow control keys."""
        return QueueStore(self.database)

    @cached_property
    def url_groups(self) -> UrlGroupStore:
        """URL groups and their endpoints."""
        return UrlGroupStore(self.database)

    @cached_property
    def http_runs(self) -> HttpRunStore:
        """Workflow runs over HTTP."""
        return HttpRunStore(self.database, notify=self._notify)

    @cached_property
    def projections(self) -> ProjectionStore:
        """Projections: their indexes, their writers and their lag."""
        return ProjectionStore(self.database)

    @cached_property
    def captures(self) -> CaptureStore:
        """Captures: their tables, their readers and their positions."""
        return CaptureStore(self.database)

    @cached_property
    def destinations(self) -> DestinationStore:
        """Destinations that workers have announced."""
        return DestinationStore(self.database)

    @cached_property
    def schedules(self) -> ScheduleStore:
        """Schedules."""
        return ScheduleStore(self.database)

    @cached_property
    def alerts(self) -> AlertStore:
        """Alerts, shared by all daemons."""
        return AlertStore(self.database)

    @cached_property
    def data_keys(self) -> DataKeyStore:
        """The wrapped keys of encrypted messages."""
        return DataKeyStore(self.database)

    @cached_property
    def secrets(self) -> SecretStore:
        """Secrets that todoku stores itself."""
        return SecretStore(self.database)

    @cached_property
    def tokens(self) -> TokenStore:
        """The tokens of the HTTP API, hashed."""
        return TokenStore(self.database)

    @cached_property
    def users(self) -> UserStore:
        """People who sign in to the dashboard with a password."""
        return UserStore(self.database)

    @cached_property
    def sessions(self) -> SessionStore:
        """Sessions of browsers that are signed in."""
        return SessionStore(self.database)

    @cached_property
    def request_events(self) -> RequestEventStore:
        """What happened to HTTP requests."""
        return RequestEventStore(self.database)

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
        self.waiters.close()
        self.database.close()

    def run(self, steps: Steps[T]) -> T:
        """Runs `steps` in one transaction: all of them are committed, or none."""
        try:
            first = next(steps)
            if not first.alone:
                return self.database.write("publish", lambda tx: run_steps(tx, steps, first))
            steps.send(self.database.write_alone("publish", lambda tx: tx.statement(first)))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        raise StoreError("a statement followed one that was said to be alone", hint="this is a bug: please report it")

    def listen(
        self, notice: Callable[[], None], limited: Callable[[], None], is_busy: Callable[[], bool] = lambda: False
    ) -> Listener:
        """Calls `notice`, from a thread, whenever there may be new work, and `limited` when a pause or a limit was
        changed. They may be called too often, and too seldom. While `is_busy`, notices may come later.
        """
        return self.database.listen(notice, awaited=self.waiters.expect, limited=limited, is_busy=is_busy)

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

    def broken(
        self,
        *,
        history_ttl: float,
        ledger_ttl: float,
        most: int = 10,
        progress: Callable[[int], None] = lambda _checked: None,
    ) -> dict[str, tuple[str, ...]]:
        """The invariants that do not hold, by name, each with a limited number of examples.

        One consistent snapshot: right also while workers run. `progress` is called with the number of those checked.
        """
        return self.database.snapshot(
            lambda tx: find_broken(tx, history_ttl=history_ttl, ledger_ttl=ledger_ttl, most=most, progress=progress)
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


_NOUNS: Final = tuple(name for name, value in vars(Store).items() if isinstance(value, cached_property))
