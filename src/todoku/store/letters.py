"""Dead letters of HTTP requests by their own ids: a delivery, and how often it was replayed before it died.

A delivery that was replayed and died once more is another dead letter. So each act compares both, under the lock of the
delivery: of two that want the same dead letter one gets it, whoever was slow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from todoku.store.acts import Act, Acted, Picked, perform, purge, replay, undoing
from todoku.store.audit import Signed
from todoku.store.database import Tx
from todoku.store.deliveries import Filter
from todoku.store.endings import Endings
from todoku.store.http_runs import RunTransaction

T = TypeVar("T")
Letters = Mapping[int, int]
"""How often each delivery was replayed before it became the dead letter that is meant."""

_REPLAYED: Final = "was replayed meanwhile"
_DEAD: Final = ("aborted",)


class LetterTransaction(RunTransaction):
    """The changes that one transaction makes to runs and their dead letters. Lock the run first, then take letters."""

    def __init__(self, tx: Tx, endings: Endings, ttl: float) -> None:
        super().__init__(tx, endings.publishing())
        self._endings, self._ttl = endings, ttl

    def take(self, letters: Letters, signed: Signed) -> Acted:
        """Removes dead letters, audited. Those it has changed are the caller's alone.

        Those that another transaction is changing are passed over: waiting for them here could be a deadlock, as that
        one may wait for the run.
        """
        return _perform(self._tx, _purging(signed, self._endings, self._ttl), letters, signed)


class LetterStore:
    """The dead letters of HTTP requests of one database."""

    def __init__(self, endings: Endings, *, ledger_ttl: float) -> None:
        self._endings, self._ttl = endings, ledger_ttl

    def replay(self, letters: Letters, signed: Signed) -> Acted:
        """Makes dead letters pending again, as `ActStore.replay`."""
        act = Act("replay", _DEAD, replay, refused=undoing)
        return self._endings.write("replay", lambda tx: _perform(tx, act, letters, signed))

    def purge(self, letters: Letters, signed: Signed) -> Acted:
        """Removes dead letters for good."""
        act = _purging(signed, self._endings, self._ttl)
        return self._endings.write("purge", lambda tx: _perform(tx, act, letters, signed))

    def write(self, work: Callable[[LetterTransaction], T]) -> T:
        """Takes dead letters, and changes runs, in one transaction. `work` is called inside it."""
        return self._endings.write("http_run", lambda tx: work(LetterTransaction(tx, self._endings, self._ttl)))


def _purging(signed: Signed, endings: Endings, ttl: float) -> Act:
    def change(tx: Tx, rows: list[Picked]) -> list[int]:
        return purge(tx, rows, signed, ttl=ttl, endings=endings)

    return Act("purge", _DEAD, change)


def _perform(tx: Tx, act: Act, letters: Letters, signed: Signed) -> Acted:
    def refused(tx: Tx, rows: list[Picked]) -> dict[int, str]:
        others = {row.id: _REPLAYED for row in rows if row.replay_count != letters[row.id]}
        return act.refused(tx, rows) | others

    named = Act(act.name, act.allowed, act.change, refused=refused)
    return perform(tx, named, Filter(ids=tuple(sorted(letters))), signed, limit=len(letters), after=0, dry_run=False)
