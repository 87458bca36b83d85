"""What the store promises, as a small pure model: dictionaries of frozen values, no database, no clock, no chance.

Time is counted in whole units; within a unit, `turn` says what came first. The state machine makes each step on a real
store and here, and compares.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final
from uuid import UUID

import msgspec

WAITING: Final = ("pending", "failed")

Key = tuple[str, str]
Token = tuple[int, int, UUID]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery that is not succeeded."""

    destination: str
    key: str | None
    digest: str | None
    priority: int
    due: tuple[int, int]
    expires: int | None
    status: str = "pending"
    attempts: int = 0
    lost: int = 0
    snoozes: int = 0
    replays: int = 0
    epoch: int = 0
    worker: UUID | None = None
    asked: bool = False
    reason: str | None = None

    def to(self, status: str, **changes: Any) -> Row:
        """The row in another state: nobody's, and a token older (I4)."""
        return msgspec.structs.replace(self, status=status, epoch=self.epoch + 1, worker=None, asked=False, **changes)


class Done(msgspec.Struct, frozen=True):
    """A delivery that succeeded; without a worker, a person said so."""

    destination: str
    key: str | None
    digest: str | None
    attempts: int
    replays: int
    epoch: int
    worker: UUID | None


class Entry(msgspec.Struct, frozen=True):
    """A ledger entry."""

    digest: str
    state: str


class Tried(msgspec.Struct, frozen=True):
    """A failed attempt; without a worker, its owner was lost."""

    id: int
    replay: int
    number: int
    epoch: int
    reason: str
    worker: UUID | None


class Ending(msgspec.Struct, frozen=True):
    """What an attempt came to, in units: Done, Retry, Abort or Snooze."""

    status: str
    delay: int = 0
    reason: str | None = None
    snoozed: bool = False
    result: str | None = None


def effect(destination: str, key: str) -> Key:
    """The ledger key of an effect entry."""
    return f"effect:{destination}", key


class Reference:
    """The model: state, and the calls of the port that change it. Each returns what the store must answer."""

    def __init__(self) -> None:
        self.now = 0
        self.turn = 0
        self.rows: dict[int, Row] = {}
        self.done: dict[int, Done] = {}
        self.purged: set[int] = set()
        self.messages: dict[UUID, tuple[int, ...]] = {}
        self.reserved: dict[Key, tuple[str, UUID]] = {}
        self.effects: dict[Key, Entry] = {}
        self.results: dict[int, str] = {}
        self.tried: set[Tried] = set()
        self.audit: list[tuple[str, int]] = []
        self.leases: dict[UUID, int] = {}
        self.paused: set[str] = set()
        self.open_until: dict[str, int] = {}

    def _at(self, delay: int = 0) -> tuple[int, int]:
        return self.now + delay, self.turn

    # ---------------------------------------------------------------------------------------- publish

    def publish(self, message: UUID, rows: dict[int, Row], reserves: Key | None, digest: str | None) -> None:
        """A fresh message with its deliveries, and its publish entry."""
        self.rows |= rows
        self.messages[message] = tuple(rows)
        if reserves is not None and digest is not None:
            self.reserved[reserves] = (digest, message)

    # ---------------------------------------------------------------------------------------- the lease

    def live(self, worker: UUID) -> bool:
        return self.leases.get(worker, self.now) > self.now

    def renew(self, worker: UUID, lease: int) -> bool:
        if self.live(worker):
            self.leases[worker] = self.now + lease
            return True
        return False

    def reclaim(self, *, max_lost: int) -> tuple[int, int, int]:
        """Workers buried, deliveries freed, deliveries given up."""
        ended = [worker for worker in self.leases if not self.live(worker)]
        for worker in ended:
            del self.leases[worker]
        orphans = [id for id, row in self.rows.items() if row.worker is not None and row.worker not in self.leases]
        return len(ended), *self._free(orphans, max_lost, died=True)

    def bury(self, worker: UUID, *, died: bool, max_lost: int) -> tuple[int, int, int]:
        """As reclaim, for one worker, at once."""
        buried = self.leases.pop(worker, None) is not None
        owned = [id for id, row in self.rows.items() if row.worker == worker]
        return int(buried), *self._free(owned, max_lost, died=died)

    def _free(self, ids: list[int], max_lost: int, *, died: bool) -> tuple[int, int]:
        aborted = 0
        for id in ids:
            row = self.rows[id]
            if died:
                self.tried.add(Tried(id, row.replays, row.attempts, row.epoch, "WORKER_LOST", None))
            self.rows[id] = freed = self._freed(row, max_lost, died=died)
            aborted += freed.status == "aborted"
        return len(ids) - aborted, aborted

    def _freed(self, row: Row, max_lost: int, *, died: bool) -> Row:
        given_back = {"attempts": row.attempts - 1, "lost": row.lost + died, "due": self._at()}
        if row.asked and not self.succeeded(row):
            return row.to("aborted", reason="CANCELLED", **given_back)
        if died and row.lost + 1 >= max_lost and not self.succeeded(row):
            return row.to("aborted", reason="WORKER_LOST", **given_back)
        return row.to("pending", reason=None, **given_back)

    def succeeded(self, row: Row) -> bool:
        """Whether the ledger knows that the row's own effect has happened."""
        if row.key is None or row.digest is None:
            return False
        return self.effects.get(effect(row.destination, row.key)) == Entry(row.digest, "succeeded")

    # ----------------------------------------------------------------------------------------- the line

    def claimable(self, worker: UUID, *, suspects: bool) -> list[int]:
        """What a claim may take, in the order of a full scan: larger priority, place, time."""
        if not self.live(worker):
            return []
        due = [
            id
            for id, row in self.rows.items()
            if row.status in WAITING
            and (row.lost > 0) is suspects
            and row.due[0] <= self.now
            and (row.expires is None or row.expires > self.now)
            and row.destination not in self.paused
            and self.open_until.get(row.destination, 0) <= self.now
        ]

        def place(id: int) -> tuple[int, str, tuple[int, int], int]:
            row = self.rows[id]
            return -row.priority, row.destination, row.due, id

        return sorted(due, key=place)

    def take(self, worker: UUID, ids: Iterable[int]) -> None:
        """A claim of just these."""
        for id in ids:
            row = self.rows[id]
            self.rows[id] = msgspec.structs.replace(
                row, status="sending", worker=worker, attempts=row.attempts + 1, epoch=row.epoch + 1
            )

    def owned(self, token: Token) -> bool:
        """Whether a token still works (I3)."""
        id, epoch, worker = token
        row = self.rows.get(id)
        return row is not None and (row.epoch, row.worker) == (epoch, worker)

    def settled_before(self, token: Token) -> bool:
        """Whether this very token has been settled, other than by a snooze, which leaves no record."""
        id, epoch, worker = token
        done = self.done.get(id)
        return (done is not None and (done.epoch, done.worker) == (epoch, worker)) or any(
            (tried.id, tried.epoch, tried.worker) == token for tried in self.tried
        )

    def settle(self, token: Token, row: Row, ending: Ending) -> bool:
        """`row`: what was claimed. True: lost."""
        id, _, worker = token
        ours = self.owned(token)
        if ending.status == "succeeded":
            self._record(row, "succeeded")  # a true success stays true, whoever owns the row now (I7)
        elif ending.status == "aborted" and ours and ending.reason != "IDEMPOTENCY_CONFLICT":
            self._record(row, "failed")
        if not ours:
            return not self.settled_before(token)
        ending = self._as_recorded(row, ending)
        row = self.rows[id]
        if ending.status == "succeeded":
            self._finish(id, worker)
            if ending.result is not None:
                self.results[id] = ending.result
            return False
        if ending.reason is not None:
            self.tried.add(Tried(id, row.replays, row.attempts, row.epoch, ending.reason, worker))
        heard = row.asked and ending.status != "aborted"  # a cancellation outlives an owner that did not see it (H22)
        self.rows[id] = row.to(
            "aborted" if heard else ending.status,
            reason="CANCELLED" if heard else ending.reason,
            attempts=row.attempts - ending.snoozed,
            snoozes=row.snoozes + ending.snoozed,
            due=self._at(ending.delay),
        )
        return False

    def _as_recorded(self, row: Row, ending: Ending) -> Ending:
        """The ledger is right, whatever this attempt came to (I5)."""
        entry = None if row.key is None else self.effects.get(effect(row.destination, row.key))
        if entry is None or entry.state != "succeeded":
            return ending
        if entry.digest != row.digest:
            return Ending("aborted", 0, "IDEMPOTENCY_CONFLICT") if ending.status == "succeeded" else ending
        return ending if ending.status == "succeeded" else Ending("succeeded")

    def _record(self, row: Row, state: str) -> None:
        """The first success stays (I5). A success overwrites whatever is none; a failure only its own digest's."""
        if row.key is None or row.digest is None:
            return
        key = effect(row.destination, row.key)
        entry = self.effects.get(key)
        if entry is None or (entry.state != "succeeded" and (state == "succeeded" or entry.digest == row.digest)):
            self.effects[key] = Entry(row.digest, state)

    def _finish(self, id: int, worker: UUID | None) -> None:
        row = self.rows.pop(id)
        self.done[id] = Done(row.destination, row.key, row.digest, row.attempts, row.replays, row.epoch, worker)

    def release(self, token: Token, delay: int) -> bool:
        """True: not owned any more."""
        if not self.owned(token):
            return True
        row = self.rows[token[0]]
        back = {"attempts": row.attempts - 1, "due": self._at(delay) if delay else row.due}
        self.rows[token[0]] = row.to("aborted", reason="CANCELLED", **back) if row.asked else row.to("pending", **back)
        return False

    # ------------------------------------------------------------------------------- what a person does

    def replay(self, ids: Sequence[int]) -> set[int]:
        changed = self._in(ids, "aborted")
        for id in changed:
            row = self.rows[id]
            key = effect(row.destination, row.key) if row.key is not None else None
            if key is not None and self.effects.get(key) == Entry(row.digest or "", "failed"):
                self.effects[key] = Entry(row.digest or "", "accepted")
            self.rows[id] = row.to(
                "pending", attempts=0, lost=min(row.lost, 1), snoozes=0, replays=row.replays + 1, reason=None,
                due=self._at(), expires=None,
            )  # fmt: skip
        return self._audited("replay", changed)

    def cancel(self, ids: Sequence[int]) -> set[int]:
        changed = self._in(ids, *WAITING, "sending")
        for id in changed:
            row = self.rows[id]
            if row.status == "sending":
                self.rows[id] = msgspec.structs.replace(row, asked=True)
            else:
                self.rows[id] = row.to("aborted", reason="CANCELLED")
        return self._audited("cancel", changed)

    def settle_by_hand(self, ids: Sequence[int], *, succeeded: bool) -> set[int]:
        changed = self._in(ids, *WAITING, "aborted") if succeeded else self._in(ids, *WAITING)
        for id in changed:
            self._record(self.rows[id], "succeeded" if succeeded else "failed")
            if succeeded:
                self._finish(id, None)
            else:
                self.rows[id] = self.rows[id].to("aborted", reason="BY_HAND")
        return self._audited("settle as succeeded" if succeeded else "settle as aborted", changed)

    def purge(self, ids: Sequence[int]) -> set[int]:
        changed = self._in(ids, "aborted")
        for id in changed:
            del self.rows[id]
        self.purged |= changed
        return self._audited("purge", changed)

    def expire(self) -> int:
        late = [
            id
            for id, row in self.rows.items()
            if row.status in WAITING and row.expires is not None and row.expires <= self.now
        ]
        for id in late:
            self.rows[id] = self.rows[id].to("aborted", reason="EXPIRED")
        return len(late)

    def _in(self, ids: Sequence[int], *statuses: str) -> set[int]:
        return {id for id in ids if id in self.rows and self.rows[id].status in statuses}

    def _audited(self, action: str, ids: set[int]) -> set[int]:
        self.audit += [(action, id) for id in sorted(ids)]
        return ids
