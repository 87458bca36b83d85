"""How far behind: what is due and waits, what is in flight, what is stuck. Costs the number of places, not of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from todoku.store.database import Tx
from todoku.store.reading import windows
from todoku.store.values import Lag

COUNTED: Final = 10_000
"""So many are counted in each place; where there are more, the whole is estimated from a hundredth of the rows."""


def lag(tx: Tx, *, stuck_after: float, draw: Callable[[], float]) -> Lag:
    """How it stands. `draw` gives chance in [0, 1)."""
    places = [
        {"queue": queue, "destination": destination, "priority": priority}
        for queue, destination, priority in tx.rows("waiting", destinations=None)
    ]
    found: list[tuple[int, float, int]] = tx.rows("lag_due", places=places, most=COUNTED) if places else []
    found = [*found, *tx.rows("lag_apart", most=COUNTED)]
    ((sending, stuck, dead),) = tx.rows("lag_held", stuck_after=stuck_after, most=COUNTED)
    due = sum(number for number, _, _ in found)
    exact = all(looked_at < COUNTED for _, _, looked_at in found)
    if not exact or dead >= COUNTED:
        estimated_due, estimated_dead = _estimated(tx, draw)
        due = due if exact else max(due, estimated_due)
        dead = max(dead, estimated_dead) if dead >= COUNTED else dead
    return Lag(
        due=due,
        oldest=max([0.0, *(float(age) for _, age, _ in found)]),
        sending=sending,
        stuck=stuck,
        dead=dead,
        exact=exact and dead < COUNTED,
    )


def _estimated(tx: Tx, draw: Callable[[], float]) -> tuple[int, int]:
    ((_, first, last),) = tx.rows("size", most=1)
    ((due, dead),) = tx.rows("lag_sample", windows=windows(tx, first, last, draw))
    return round(due or 0), round(dead or 0)
