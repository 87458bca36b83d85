"""One run of the crash tests: a database, a pack of processes on it, a receiver, and the verdict at the end."""

from __future__ import annotations

import random
import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from uuid import UUID

import msgspec
import psycopg

from tests.crash.app import EFFECTS, TRANSACTIONAL
from tests.support.checker import Evidence, Failed, Fault, Problem, Row, explained_duplicates, problems
from tests.support.lines import line_problems
from tests.support.pack import Forks, Member, Pack, until
from tests.support.receiver import Acknowledged, Began, Ended, Notes, Refused
from tests.support.world import World
from todoku.core.errors import DatabaseBusy, DatabaseUnavailable
from todoku.engine.diagnostics.verification import verify
from todoku.store.sqlite.database import file_path

_ROWS = """
select d.id, m.id, d.destination, d.status, d.epoch, d.attempts, d.max_attempts, d.reason
  from todoku_delivery d join todoku_message m on m.seq = d.message_seq
union all
select h.delivery_id, m.id, h.destination, 'succeeded', h.epoch, h.attempts, 1000000, null
  from todoku_history h join todoku_message m on m.seq = h.message_seq"""


class Verdict(msgspec.Struct, frozen=True):
    """What a run came to."""

    problems: tuple[Problem | str, ...]
    kills: int
    faults: int
    """Stops, cuts and outages."""
    published: int
    arrivals: int
    duplicates: int
    """Repeated arrivals, each explained by a fault."""
    settled_lines: int


class Run:
    """Settings are for every process of the run; `lease` is theirs too."""

    def __init__(
        self, forks: Forks, home: Path, world: World, *, lease: float = 10.0, url: str | None = None, **settings: str
    ) -> None:
        self.world = world
        self.lease = lease
        self.chance = random.Random(20_240_601)
        self._log = home / "receiver.log"
        self.notes = Notes(self._log)
        self.environ = {
            "TODOKU_DATABASE": url or world.url,
            "TODOKU_TEST_RECEIVER": str(self._log),
            "TODOKU_LEASE_SEC": str(lease),
            "TODOKU_POLL_INTERVAL_SEC": "0.05",
            "TODOKU_RECLAIM_INTERVAL_SEC": "0.25",
            "TODOKU_MAX_LOST": "1000",  # what kills workers here is us, and not the message
            "TODOKU_BATCH": "8",
            "TODOKU_DRAIN_GRACE_SEC": "20",
            **settings,
        }
        self.pack = Pack(forks, home, self.environ)
        world.sql(EFFECTS)

    # --------------------------------------------------------------------------------------------- processes

    def worker(self, **environ: str) -> Member:
        return self.pack.start("tests.crash.roles:worker", **environ)

    def publisher(self, first: int, number: int | None = None, **environ: str) -> Member:
        if number is not None:
            environ["TODOKU_TEST_NUMBER"] = str(number)
        return self.pack.start("tests.crash.roles:publisher", TODOKU_TEST_FIRST=str(first), **environ)

    def publish(self, first: int, number: int) -> None:
        """Publish so many messages, and come back when they are acknowledged."""
        assert self.pack.code(self.publisher(first, number, TODOKU_TEST_PAUSE="0")) == 0

    def bury(self, member: Member) -> None:
        """What a supervisor does when it sees its child die: end its lease at once."""
        for worker in self.notes.workers_of(member.pid):
            until(lambda: self._buried(UUID(worker)), "the lease to end")  # noqa: B023 - at once

    def _buried(self, worker: UUID) -> bool:
        with suppress(DatabaseUnavailable, DatabaseBusy):
            self.world.store.leases.end(worker, lost=True, max_lost=1000)
            return True
        return False

    def stop(self, member: Member) -> None:
        """SIGSTOP, at a moment when the process has no lock of SQLite, without which nobody could go on."""
        self.pack.stop(member)
        while self.world.backend == "sqlite" and not self._can_write():
            self.pack.resume(member)
            self.pack.faults.pop()  # too short to count
            time.sleep(self.chance.uniform(0.001, 0.02))
            self.pack.stop(member)

    def stopped_at(self, failpoint: str, **environ: str) -> Member:
        """A worker that has stopped itself there, with no lock of SQLite in its hands: one that has is killed."""
        while True:
            worker = self.worker(TODOKU_TEST_ARM=f"{failpoint}=stop", **environ)
            self.pack.until_stopped(worker)
            if self.world.backend == "postgres" or self._can_write():
                return worker
            self.pack.kill(worker)
            self.bury(worker)

    def until_stopped(self, member: Member) -> None:
        """It stops itself at a failpoint. On SQLite it may have a lock in its hands, and then everybody is hit."""
        self.pack.until_stopped(member)
        if self.world.backend == "sqlite" and not self._can_write():
            self.pack.faults.append(Fault("outage", None, self.pack.faults[-1].since, float("inf")))

    def _can_write(self) -> bool:
        connection = sqlite3.connect(file_path(self.world.url), timeout=0.2)
        try:
            connection.execute("begin exclusive")
        except sqlite3.OperationalError:
            return False
        finally:
            connection.close()
        return True

    def leave_suspects(self) -> None:
        """Kill a worker while attempts run, so that what it held waits as suspects (H6)."""
        worker = self.worker(TODOKU_TEST_WORK="30")
        self.until_begun(worker)
        self.pack.kill(worker)
        self.bury(worker)

    # ----------------------------------------------------------------------------------------------- looking

    def until_begun(self, member: Member, number: int = 1) -> None:
        """Come back when so many attempts have begun in this process."""
        until(lambda: self.begun(member.pid) >= number, f"{number} attempts to begin in {member.pid}")

    def begun(self, pid: int | None = None) -> int:
        """How many attempts have begun, in one process or in all."""
        return sum(isinstance(note, Began) and pid in (None, note.pid) for note in self.notes.read())

    def until_returned(self, member: Member) -> None:
        """Come back when every attempt that began in this process has returned."""
        until(lambda: self.begun(member.pid) == self._returned(member.pid), f"the attempts in {member.pid} to return")

    def _returned(self, pid: int) -> int:
        return sum(isinstance(note, Ended) and note.pid == pid for note in self.notes.read())

    def acknowledged(self) -> int:
        return sum(isinstance(note, Acknowledged) for note in self.notes.read())

    def refused(self) -> list[Refused]:
        return [note for note in self.notes.read() if isinstance(note, Refused)]

    def unfinished(self) -> int | None:
        """How many deliveries wait or are in flight; None: the database does not say."""
        try:
            ((number,),) = self.world.sql("select count(*) from todoku_delivery where status <> 'aborted'")
        except (psycopg.OperationalError, sqlite3.OperationalError):
            return None
        return int(number)

    def until_finished(self, *, seconds: float = 120.0) -> None:
        """Come back when nothing waits and nothing is in flight."""
        deadline = time.monotonic() + seconds
        while (left := self.unfinished()) != 0:
            if time.monotonic() > deadline:
                counts = Counter(self.world.sql("select destination, status, lost > 0 from todoku_delivery"))
                raise AssertionError(f"after {seconds:g} s {left} deliveries are unfinished: {counts}")
            time.sleep(0.02)

    # ----------------------------------------------------------------------------------------------- the end

    def finish(self, *, workers: int = 1, seconds: float = 120.0) -> Verdict:
        """Let living workers (or, if none lives, `workers` fresh ones) finish, drain them, and judge."""
        living = self.pack.living or [self.worker() for _ in range(workers)]
        self.until_finished(seconds=seconds)
        self.pack.drain(*living)
        return self.verdict()

    def verdict(self, *, errors: frozenset[str] = frozenset(), also: Sequence[Path] = ()) -> Verdict:
        """Every process has ended: what is true now? `errors`, `also`: events to expect in the log, and other logs."""
        assert not self.pack.living
        evidence = Evidence(
            notes=self.notes.read(),
            faults=self.pack.faults,
            rows=[
                Row(id=id, message=str(message), destination=to, status=status, epoch=epoch, attempts=attempts,
                    max_attempts=most, reason=reason)
                for id, message, to, status, epoch, attempts, most, reason in self.world.sql(_ROWS)
            ],
            failed=[
                Failed(delivery=delivery, epoch=epoch, reason=reason)
                for delivery, epoch, reason in self.world.sql("select delivery_id, epoch, reason from todoku_attempt")
            ],
            effects=[(message, to) for message, to in self.world.sql("select message, destination from crash_effect")],
            transactional=TRANSACTIONAL,
            lease=self.lease,
        )  # fmt: skip
        killed = {fault.pid for fault in self.pack.faults if fault.kind == "kill"}
        failed = Counter(one.delivery for one in evidence.failed if one.reason != "WORKER_LOST")
        files = [*((one.stderr, one.pid in killed) for one in self.pack.members), *((log, False) for log in also)]
        lines, wrong = line_problems(files, errors, failed, unsure=_unsure(evidence))
        return Verdict(
            problems=(*problems(evidence), *self._broken(), *wrong),
            kills=self.pack.kills,
            faults=len(self.pack.faults) - self.pack.kills,
            published=len(evidence.acknowledged),
            arrivals=sum(map(len, evidence.arrivals.values())),
            duplicates=explained_duplicates(evidence),
            settled_lines=lines,
        )

    def _broken(self) -> list[str]:
        """What `todoku verify` finds. What a reclaim heals is healed first: no worker is left to do it."""
        self.world.store.leases.reclaim(max_lost=1000)
        settings = self.world.settings()
        found = verify(self.world.store, history_ttl=settings.history_ttl, ledger_ttl=settings.ledger_ttl, patience=0.0)
        return [f"{one.check.invariant}: not so: {one.check.sentence}: {one.examples}" for one in found if one.examples]


def _unsure(evidence: Evidence) -> set[int]:
    """Transactional deliveries of a run with an outage: a worker that cannot ask takes a lost reply for a failure."""
    outage = any(fault.kind == "outage" for fault in evidence.faults)
    return {row.id for row in evidence.rows if outage and row.destination in evidence.transactional}
