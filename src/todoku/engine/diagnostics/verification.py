"""Checks the invariants of docs/glossary.md in a live database: which hold, and what breaks the others.

I6, I7, I8, I11 and I13 concern effects outside the database, or sequences of states: tests and the model prove them, a
check of the tables cannot.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import msgspec

from todoku.store.store import Store


class Invariant(msgspec.Struct, frozen=True):
    """An invariant. `heals`: maintenance repairs a violation within seconds, so only a lasting one counts."""

    name: str
    invariant: str
    sentence: str
    heals: bool = False


CHECKS: Final = (
    Invariant("acknowledged", "I1", "every message has a delivery, unless a person purged it"),
    Invariant("message", "I1", "every delivery has a message"),
    Invariant("one_state", "I1", "no delivery is both unfinished and succeeded"),
    Invariant("finished_once", "I1", "every delivery succeeded at most once"),
    Invariant("reserved", "I2", "a key in use was committed with its message"),
    Invariant("owner", "I3", "every delivery that is sending has an owner, and no other has"),
    Invariant("orphan", "I3", "no delivery is owned by a worker without a lease", heals=True),
    Invariant("lane_owner", "I3", "what is sending, or claimed by list, has the owner of its lane", heals=True),
    Invariant("epoch", "I4", "the epoch is larger than that of every stored attempt"),
    Invariant("attempts", "I4", "no delivery was tried more often than allowed"),
    Invariant("token", "I4", "no token was used twice"),
    Invariant("ledger", "I5", "every delivery that succeeded with a key is in the ledger"),
    Invariant("replays", "I9", "every replay has an audit entry"),
    Invariant("lane", "I10", "every delivery that waits in a lane has its lane row"),
    Invariant("parked", "I10", "a parked lane has the dead letter that parks it"),
    Invariant("lane_time", "I10", "a lane is ready when its first delivery is due", heals=True),
    Invariant("gate", "I1", "every delivery that waits at the limit of its key has its gate"),
    Invariant("gate_running", "I3", "a gate counts its running deliveries correctly"),
    Invariant("gate_time", "I1", "a gate is ready when its first delivery is due", heals=True),
    Invariant("batch", "I3", "every member of a batch is counted once"),
    Invariant("batch_due", "I1", "the completion job of a complete batch is published", heals=True),
    Invariant("tried", "I4", "an attempt belongs to the message of its delivery"),
    Invariant("endpoint", "I2", "an endpoint of a group was committed with its group"),
    Invariant("clock", "I12", "no row was changed in the future"),
    Invariant("step", "I1", "every step and every signal of a run belongs to a message"),
    Invariant("signal", "I3", "a signal that was delivered is with one wait, which has it"),
    Invariant("woken", "I1", "a parked run is woken by what it waits for"),
    Invariant("undone", "I9", "a run whose undo has begun is never run again"),
)


class Verdict(msgspec.Struct, frozen=True):
    """A check, and examples of rows that break it; none if it holds."""

    check: Invariant
    examples: tuple[str, ...]


def verify(
    store: Store,
    *,
    history_ttl: float,
    ledger_ttl: float,
    patience: float = 15.0,
    sleep: Callable[[float], None] = time.sleep,
    progress: Callable[[int], None] = lambda _checked: None,
) -> tuple[Verdict, ...]:
    """Runs every check. Those that maintenance heals are repeated for up to `patience` seconds while they fail."""
    broken = _read_broken(store, history_ttl, ledger_ttl, progress)
    waited = 0.0
    while waited < patience and any(check.heals and check.name in broken for check in CHECKS):
        sleep(_INTERVAL)
        waited += _INTERVAL
        now = _read_broken(store, history_ttl, ledger_ttl, progress)
        for check in CHECKS:
            if check.heals and check.name in broken:
                broken[check.name] = tuple(one for one in broken[check.name] if one in now.get(check.name, ()))
        broken = {name: examples for name, examples in broken.items() if examples}
    return tuple(Verdict(check, broken.get(check.name, ())) for check in CHECKS)


_INTERVAL: Final = 1.0


def _read_broken(
    store: Store, history_ttl: float, ledger_ttl: float, progress: Callable[[int], None]
) -> dict[str, tuple[str, ...]]:
    # Entries are pruned ledger_ttl after their success: one that is nearly as old may just have been pruned.
    return store.broken(history_ttl=history_ttl, ledger_ttl=ledger_ttl * 0.9, most=_EXAMPLES, progress=progress)


_EXAMPLES: Final = 10
