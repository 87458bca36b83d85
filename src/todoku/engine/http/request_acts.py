"""What programs do to HTTP requests that were listed before: replay, purge and cancel each of them.

As the acts of `operations`, but what another transaction is changing is tried again instead of passed over: a program
would take "passed over" for "does not exist".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from todoku.core.errors import DatabaseBusy
from todoku.engine.operations import BATCH
from todoku.store.acts import Acted
from todoku.store.audit import Signed
from todoku.store.deliveries import Delivery, Filter
from todoku.store.letters import Letters
from todoku.store.store import Store

_TRIES: Final = 50
_PAUSE: Final = 0.02
"""Seconds between tries: other transactions hold a delivery's lock for less."""

Act = Callable[[Letters], Acted]
"""Changes deliveries, each as it was when it had been replayed so often."""


def replay_each(store: Store, rows: Sequence[Delivery], signed: Signed) -> frozenset[int]:
    """Replays each of these dead letters of HTTP requests. Returns the ids that were replayed."""
    return _each(store, rows, _DEAD, lambda letters: store.letters.replay(letters, signed))


def purge_each(store: Store, rows: Sequence[Delivery], signed: Signed) -> frozenset[int]:
    """Removes each of these dead letters of HTTP requests for good. Returns the ids that were removed."""
    return take_each(store, rows, lambda letters: store.letters.purge(letters, signed))


def take_each(store: Store, rows: Sequence[Delivery], act: Act) -> frozenset[int]:
    """Takes each of these dead letters by an act, until it is taken or gone. Returns the ids that the act has taken."""
    return _each(store, rows, _DEAD, act)


def cancel_each(store: Store, rows: Sequence[Delivery], signed: Signed) -> frozenset[int]:
    """Cancels each of these HTTP requests that has not ended. Returns the ids that were changed."""
    return _each(store, rows, _ALIVE, lambda letters: _cancel(store, tuple(letters), signed))


_DEAD: Final = frozenset({"aborted"})
_ALIVE: Final = frozenset({"pending", "failed", "sending"})


def _cancel(store: Store, ids: tuple[int, ...], signed: Signed) -> Acted:
    return store.acts.cancel(Filter(ids=ids), signed, limit=len(ids))


def _each(store: Store, rows: Sequence[Delivery], states: frozenset[str], act: Act) -> frozenset[int]:
    """Acts on rows in these states, chunk by chunk, until each is changed or is in another state by now.

    An act passes over rows that another transaction is changing, and lanes that are being published to. An operator
    sees the count and repeats it; a program over HTTP would get the answer that its message does not exist.
    DatabaseBusy: some rows stay locked. The others are changed; repeating is harmless.
    """
    changed: set[int] = set()
    for start in range(0, len(rows), BATCH):
        changed.update(_chunk(store, rows[start : start + BATCH], states, act))
    return frozenset(changed)


def _chunk(store: Store, rows: Sequence[Delivery], states: frozenset[str], act: Act) -> set[int]:
    changed: set[int] = set()
    left = [row for row in rows if row.status in states]
    for tries in range(_TRIES):
        if tries > 0:
            time.sleep(_PAUSE)
        if left:
            changed.update(act({row.id: row.replay_count for row in left}).changed)
        left = _unchanged(store, [row for row in left if row.id not in changed], states)
        if not left:
            return changed
    raise DatabaseBusy(f"another transaction keeps {len(left)} messages locked", hint="try again")


def _unchanged(store: Store, rows: list[Delivery], states: frozenset[str]) -> list[Delivery]:
    """Those of some rows that are still in these states and were not replayed meanwhile, as they are now."""
    before = {row.id: row.replay_count for row in rows}
    now = store.deliveries.of_requests([row.message_id for row in rows if row.message_id is not None])
    return [row for row in now if before.get(row.id) == row.replay_count and row.status in states]
