"""Writers of the source: each runs its plan against the server, through every crash, and keeps what was committed."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field

import psycopg

from tests.capture.source_model import Change, Key, Row
from tests.capture.workload import LEDGER, STOCK, STOCKED, Plan, Statement, Transaction, shared_tables

DOWN = (psycopg.OperationalError,)
"""What a writer sees while the server is away, or was when it came back."""


@dataclass(frozen=True)
class Committed:
    """A transaction that the server has, by its number there. `counted`: what the server made of the shared row."""

    xid: str
    changes: tuple[Change, ...]
    counted: int | None = None


@dataclass
class Model:
    """What the source was at first, and what its writers committed, each in the order of its own commits."""

    initial: dict[str, dict[Key, Row]] = field(default_factory=dict)
    writers: list[list[Committed]] = field(default_factory=list)

    @property
    def transactions(self) -> int:
        return sum(len(one) for one in self.writers)


class Progress:
    """How far the writers are, and how far they may go."""

    def __init__(self, allowed: int) -> None:
        self._changed = threading.Condition()
        self._allowed = allowed
        self._done = 0
        self._stopped = False

    @property
    def done(self) -> int:
        return self._done

    def allow(self, number: int) -> None:
        with self._changed:
            self._allowed = max(self._allowed, number)
            self._changed.notify_all()

    def stop(self) -> None:
        """Writers end before their next transaction."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    @property
    def stopped(self) -> bool:
        return self._stopped

    def begin(self) -> bool:
        """Waits until one more transaction is allowed; False: end."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._done < self._allowed)
            return not self._stopped

    def end(self) -> None:
        with self._changed:
            self._done += 1
            self._changed.notify_all()

    def reach(self, number: int, seconds: float) -> None:
        """Waits until so many transactions are done."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._stopped or self._done >= number, seconds), "writers stand still"


class Writer(threading.Thread):
    """One connection, one transaction after another."""

    def __init__(self, url: str, plan: Plan, number: int, progress: Progress) -> None:
        super().__init__(daemon=True, name=f"writer {plan.writer}")
        self.plan = plan
        self.committed: list[Committed] = []
        self.error: BaseException | None = None
        self.repeated = 0
        self.rolled_back = 0
        self._url = url
        self._number = number
        self._progress = progress
        self._connection: psycopg.Connection | None = None

    def run(self) -> None:
        try:
            for _ in range(self._number):
                if not self._progress.begin():
                    return
                self._carry_out(self.plan.next())
                self._progress.end()
        except BaseException as error:
            self.error = error
            self._progress.stop()
        finally:
            if self._connection is not None:
                self._connection.close()

    def _carry_out(self, transaction: Transaction) -> None:
        """Until the server has it; a commit whose answer was lost is looked up in the ledger."""
        while not self._progress.stopped:
            done: Committed | None
            try:
                done = self._attempt(transaction)
            except DOWN:
                self._forget()
                self.repeated += 1
                done = self._looked_up(transaction)
            if done is not None:
                if transaction.commit:
                    self.committed.append(done)
                else:
                    self.rolled_back += 1
                return

    def _attempt(self, transaction: Transaction) -> Committed:
        connection = self._connected()
        counted: int | None = None
        xid = ""
        for statement in transaction.statements:
            execute(connection, statement)
        if transaction.commit:
            who = f"{self.plan.writer}.{transaction.number}"
            if transaction.stock is not None:
                sql = f"update {STOCK} set v = v + 1, who = %s where id = %s returning v"
                ((counted,),) = connection.execute(sql, (who, transaction.stock)).fetchall()
            sql = f"insert into {LEDGER} values (%s, %s, pg_current_xact_id()::text) returning xid"
            ((xid,),) = connection.execute(sql, (self.plan.writer, transaction.number)).fetchall()
            self._pending = (xid, counted)
            connection.commit()
        else:
            connection.rollback()
        return self._made(transaction, xid, counted)

    def _made(self, transaction: Transaction, xid: str, counted: int | None) -> Committed:
        changes = transaction.changes
        if counted is not None:
            key = (str(transaction.stock),)
            row = {"id": transaction.stock, "v": counted, "who": f"{self.plan.writer}.{transaction.number}"}
            changes = (*changes, Change(STOCK, "update", key, row))
        return Committed(xid, changes, counted)

    def _looked_up(self, transaction: Transaction) -> Committed | None:
        """After a lost connection: the transaction, if the server has it."""
        while not self._progress.stopped:
            try:
                sql = f"select xid from {LEDGER} where writer = %s and number = %s"
                found = self._connected().execute(sql, (self.plan.writer, transaction.number)).fetchall()
                self._connected().commit()
            except DOWN:
                self._forget()
                threading.Event().wait(0.05)
                continue
            if not found:
                return None
            xid, counted = self._pending
            assert found == [(xid,)], f"{found} in the ledger instead of {xid}"
            return self._made(transaction, xid, counted)
        return None

    def _connected(self) -> psycopg.Connection:
        if self._connection is None:
            self._connection = psycopg.connect(self._url, connect_timeout=10)
        return self._connection

    def _forget(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
            self._connection = None


def execute(connection: psycopg.Connection, statement: Statement) -> None:
    """Run one statement of a plan."""
    if statement.copied:
        with connection.cursor().copy(statement.sql) as copy:
            for row in statement.copied:
                copy.write_row(row)
        return
    try:
        connection.execute(statement.sql, statement.values)
    except psycopg.errors.UniqueViolation:
        if not statement.fails:
            raise
    else:
        assert not statement.fails, f"the server took {statement.sql}"


def set_up(url: str, plans: list[Plan]) -> Model:
    """Create and fill every table of the source."""
    model = Model()
    with psycopg.connect(url) as connection:
        for sql in shared_tables():
            connection.execute(sql)
        for plan in plans:
            for statement in plan.setup():
                execute(connection, statement)
            model.initial |= plan.initial
    model.initial[STOCK] = {(str(n),): {"id": n, "v": 0, "who": "nobody"} for n in range(STOCKED)}
    return model
