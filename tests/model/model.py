"""A scenario and a set of fixes together: what the steps ask about while a search goes on."""

from __future__ import annotations

from tests.model.fixes import Fixes
from tests.model.scenario import Message, Scenario
from tests.model.state import NOBODY, SUCCEEDED, UNPUBLISHED, Held, Row, State, Worker

# What of a state mentions workers, incarnations or epochs: rows, leases, workers, adrift, reopening, unflushed.
Named = tuple[
    tuple[Row, ...],
    tuple[str, ...],
    tuple[Worker, ...],
    tuple[tuple[int, str], ...],
    tuple[tuple[int, int], ...],
    tuple[tuple[int, Row], ...],
]


class Model:
    """What never changes during a search."""

    def __init__(self, scenario: Scenario, fixes: Fixes | None = None) -> None:
        self.scenario = scenario
        self.fixes = fixes or Fixes()
        self.renamed: dict[Named, Named] = {}  # of `canonical`: most steps change little
        rows = [
            (number, message, destination, late)
            for number, message in enumerate(scenario.messages)
            for late, destinations in ((False, message.destinations or ("",)), (True, message.late_destinations))
            for destination in destinations
        ]
        self.message_of: tuple[int, ...] = tuple(number for number, *_ in rows)
        self.late: tuple[bool, ...] = tuple(late for *_, late in rows)
        self.destination: tuple[str, ...] = tuple(destination for _, _, destination, _ in rows)
        self.digest: tuple[str, ...] = tuple(message.digest for _, message, *_ in rows)
        scopes = [self._effect_scope(message, destination) for _, message, destination, _ in rows]
        entries = sorted({scope for scope in scopes if scope})
        self.entries = len(entries)
        self.entry: tuple[int, ...] = tuple(entries.index(scope) if scope else NOBODY for scope in scopes)
        effects = [
            (destination, message.key, message.digest) if message.key else index
            for index, (_, message, destination, _) in enumerate(rows)
        ]
        # Deliveries that stand for one and the same effect at one destination.
        self.same_effect: tuple[tuple[int, ...], ...] = tuple(
            tuple(other for other, effect in enumerate(effects) if effect == mine) for mine in effects
        )

    def _effect_scope(self, message: Message, destination: str) -> tuple[str, ...] | None:
        if not message.key or not destination:
            return None
        return (destination, message.key) if self.fixes.effect_scope_is_destination else (message.key,)

    def message(self, delivery: int) -> Message:
        """The message that a delivery carries."""
        return self.scenario.messages[self.message_of[delivery]]

    def initial(self) -> State:
        """Nothing is published, no process is up."""
        scenario = self.scenario
        return State(
            rows=(Row(),) * len(self.entry),
            ledger=(None,) * self.entries,
            recorded=("",) * self.entries,
            messages=(UNPUBLISHED,) * len(scenario.messages),
            copies=(0,) * len(scenario.messages),
            leases=(),
            workers=(Worker(),) * scenario.workers,
            adrift=(),
            budget=scenario.budget,
        )

    def fits(self, row: Row, held: Held) -> bool:
        """The fence: (id, epoch, owner), and nothing else. A token that does not fit changes 0 rows."""
        return row.epoch == held.epoch and (row.owner == held.owner or not self.fixes.fence_has_worker)

    def done_before(self, state: State, delivery: int) -> bool:
        """The delivery's own effect entry succeeded, with the same digest."""
        entry = self.entry[delivery]
        if entry == NOBODY:
            return False
        known = state.ledger[entry]
        return known is not None and known.state == SUCCEEDED and known.digest == self.digest[delivery]
