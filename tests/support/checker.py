"""The checker: reads what the receiver noted, what is in the database and what was done to the processes, and names
every invariant that does not hold. It knows nothing of how todoku works, only what it promises (DESIGN §3).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Literal

import msgspec

from tests.support.receiver import Acknowledged, Began, Ended, Note

STATES = frozenset({"pending", "sending", "succeeded", "failed", "aborted"})
Delivery = tuple[str, str]
"""(message, destination)"""


class Fault(msgspec.Struct, frozen=True):
    """Something that was done to a process, or (pid None) to all of them."""

    kind: Literal["kill", "stop", "cut", "outage"]
    pid: int | None
    since: float
    until: float


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery as it is in the database, unfinished or in history."""

    id: int
    message: str
    destination: str
    status: str
    epoch: int = 1
    attempts: int = 1
    max_attempts: int = 6
    reason: str | None = None


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """A failed attempt on record."""

    delivery: int
    epoch: int
    reason: str


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a handler; `ended` is None if it never returned."""

    message: str
    destination: str
    attempt: int
    epoch: int | None
    pid: int
    began: float
    ended: float | None = None
    outcome: str | None = None

    @property
    def delivery(self) -> Delivery:
        return self.message, self.destination


class Evidence(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Everything there is to know about a run that is over."""

    notes: Sequence[Note]
    faults: Sequence[Fault]
    rows: Sequence[Row]
    failed: Sequence[Failed] = ()
    effects: Sequence[Delivery] = ()
    transactional: frozenset[str] = frozenset()
    planned: frozenset[str] = frozenset({"PLANNED"})
    """Reasons for which handlers failed on purpose."""
    lease: float = 10.0
    dead_for: frozenset[str] = frozenset()
    """Reasons of dead letters that this run may leave behind."""

    @cached_property
    def arrivals(self) -> dict[Delivery, list[Arrival]]:
        """By delivery, in the order they began."""
        ends = {(note.pid, note.call): note for note in self.notes if isinstance(note, Ended)}
        found: dict[Delivery, list[Arrival]] = defaultdict(list)
        for note in self.notes:
            if isinstance(note, Began):
                found[note.message, note.destination].append(_arrival(note, ends.get((note.pid, note.call))))
        for arrivals in found.values():
            arrivals.sort(key=lambda arrival: arrival.began)
        return found

    @cached_property
    def acknowledged(self) -> list[Acknowledged]:
        return [note for note in self.notes if isinstance(note, Acknowledged)]

    @cached_property
    def by_delivery(self) -> dict[Delivery, list[Row]]:
        found: dict[Delivery, list[Row]] = defaultdict(list)
        for row in self.rows:
            found[row.message, row.destination].append(row)
        return found

    def hit(self, pid: int) -> Iterator[Fault]:
        """What was done to a process."""
        return (fault for fault in self.faults if fault.pid in (None, pid))


def _arrival(began: Began, end: Ended | None) -> Arrival:
    return Arrival(
        message=began.message,
        destination=began.destination,
        attempt=began.attempt,
        epoch=began.epoch,
        pid=began.pid,
        began=began.at,
        ended=None if end is None else end.at,
        outcome=None if end is None else end.outcome,
    )


class Problem(msgspec.Struct, frozen=True):
    """An invariant that does not hold, and where."""

    invariant: str
    sentence: str
    delivery: Delivery | int | str


def problems(evidence: Evidence) -> list[Problem]:
    """Every promise that was broken; nothing, if all were kept."""
    return [
        *_lost(evidence),
        *_not_arrived(evidence),
        *_published_twice(evidence),
        *_two_owners(evidence),
        *_unexplained(evidence),
        *_effects(evidence),
        *_burnt(evidence),
    ]


def explained_duplicates(evidence: Evidence) -> int:
    """How many arrivals were repetitions, each explained by a fault."""
    return sum(
        _planned(evidence, before) is False and _explained(evidence, before, after)
        for arrivals in evidence.arrivals.values()
        for before, after in pairwise(arrivals)
    )


# -------------------------------------------------------------------------------------------------------- I1


def _lost(evidence: Evidence) -> Iterator[Problem]:
    for publish in evidence.acknowledged:
        for destination in publish.destinations:
            delivery = (publish.message, destination)
            rows = evidence.by_delivery.get(delivery, [])
            if not rows:
                yield Problem("I1", "was acknowledged and is lost", delivery)
            elif len(rows) > 1:
                yield Problem("I1", f"is in {len(rows)} states at once: {[row.status for row in rows]}", delivery)
    for row in evidence.rows:
        if row.status not in STATES:
            yield Problem("I1", f"is in no state there is: {row.status}", row.id)


def _not_arrived(evidence: Evidence) -> Iterator[Problem]:
    """A run is over when nothing waits, so each delivery has arrived, or is a dead letter for a reason."""
    for row in evidence.rows:
        delivery = (row.message, row.destination)
        if row.status == "sending":
            yield Problem("I1", "is left in `sending`", delivery)
        elif row.status == "aborted" and row.reason not in evidence.dead_for:
            yield Problem("I1", f"is a dead letter, reason {row.reason}", delivery)
        elif row.status in ("pending", "failed"):
            yield Problem("I1", f"was never run: it is {row.status}", delivery)
        elif row.status == "succeeded" and not any(
            arrival.outcome == "done" for arrival in evidence.arrivals.get(delivery, ())
        ):
            yield Problem("I1", "succeeded, and the receiver never saw it done", delivery)
    for delivery in evidence.arrivals.keys() - evidence.by_delivery.keys():
        yield Problem("I1", "arrived, and the database does not know it", delivery)


def _published_twice(evidence: Evidence) -> Iterator[Problem]:
    messages: dict[str, set[str]] = defaultdict(set)
    for publish in evidence.acknowledged:
        if publish.key is not None:
            messages[publish.key].add(publish.message)
    for key, found in messages.items():
        if len(found) > 1:
            yield Problem("I5", f"one key was published as {len(found)} messages", key)


# -------------------------------------------------------------------------------------------------------- I3, I4


def _two_owners(evidence: Evidence) -> Iterator[Problem]:
    for delivery, arrivals in evidence.arrivals.items():
        for epoch, number in Counter(one.epoch for one in arrivals if one.epoch is not None).items():
            if number > 1:
                yield Problem("I3", f"ran {number} times by the same token, epoch {epoch}", delivery)
        for before, after in pairwise(arrivals):
            if _end(evidence, before) > after.began and not _zombie(evidence, before, after):
                yield Problem("I3", f"ran in {before.pid} and {after.pid} at the same time", delivery)
            if (after.epoch or 0) < (before.epoch or 0) and not _was_stopped(evidence, after):
                yield Problem("I4", f"epoch {after.epoch} began after epoch {before.epoch}", delivery)
        yield from _row_epoch(evidence, delivery, arrivals)


def _was_stopped(evidence: Evidence, arrival: Arrival) -> bool:
    """Whether its process was stopped at some time: then what it was about to begin may have begun late."""
    return any(fault.kind == "stop" for fault in evidence.hit(arrival.pid))


def _row_epoch(evidence: Evidence, delivery: Delivery, arrivals: Sequence[Arrival]) -> Iterator[Problem]:
    for row in evidence.by_delivery.get(delivery, ()):
        highest = max((one.epoch for one in arrivals if one.epoch is not None), default=0)
        if row.epoch < highest:
            yield Problem("I4", f"its epoch {row.epoch} is below {highest}, by which it ran", delivery)


def _end(evidence: Evidence, arrival: Arrival) -> float:
    """When an attempt was over: when it returned, or when its process was killed."""
    if arrival.ended is not None:
        return arrival.ended
    deaths = [fault.since for fault in evidence.hit(arrival.pid) if fault.kind == "kill" and fault.pid == arrival.pid]
    return max(min(deaths, default=float("inf")), arrival.began)


def _zombie(evidence: Evidence, before: Arrival, after: Arrival) -> bool:
    """Whether `before` was cut off from the database, or stopped, long enough to lose its lease."""
    faults = (fault for fault in evidence.hit(before.pid) if fault.kind != "kill")
    return any(_hits(fault, before, after, evidence.lease) for fault in faults)


# -------------------------------------------------------------------------------------------------------- I13


def _unexplained(evidence: Evidence) -> Iterator[Problem]:
    for delivery, arrivals in evidence.arrivals.items():
        for before, after in pairwise(arrivals):
            if not _planned(evidence, before) and not _explained(evidence, before, after):
                what = f"arrived again in {after.pid} after {before.pid} had it ({before.outcome or 'never returned'})"
                yield Problem("I13", f"{what}, and no fault explains it", delivery)


def _planned(evidence: Evidence, arrival: Arrival) -> bool:
    """Whether the handler itself asked for another attempt, and that is on record."""
    ids = [row.id for row in evidence.by_delivery.get(arrival.delivery, ())]
    return arrival.outcome == "Retry" and any(
        failed.delivery in ids and failed.epoch == arrival.epoch and failed.reason in evidence.planned
        for failed in evidence.failed
    )


def _explained(evidence: Evidence, before: Arrival, after: Arrival) -> bool:
    return any(_hits(fault, before, after, evidence.lease) for fault in evidence.hit(before.pid))


def _hits(fault: Fault, before: Arrival, after: Arrival, lease: float) -> bool:
    """Whether a fault came in between: after `before` began, and before its delivery was given to `after`."""
    if fault.since > after.began or fault.until < before.began:
        return False
    return fault.kind != "stop" or fault.until - fault.since >= lease / 2


# -------------------------------------------------------------------------------------------------------- I6


def _effects(evidence: Evidence) -> Iterator[Problem]:
    effects = Counter(evidence.effects)
    for delivery, number in effects.items():
        if number > 1:
            yield Problem("I6", f"took effect {number} times", delivery)
        if not any(row.status == "succeeded" for row in evidence.by_delivery.get(delivery, ())):
            yield Problem("I6", "took effect and has not succeeded", delivery)
    for row in evidence.rows:
        delivery = (row.message, row.destination)
        if row.destination in evidence.transactional and row.status == "succeeded" and not effects[delivery]:
            yield Problem("I6", "succeeded without its effect", delivery)


# ------------------------------------------------------------------------------------------------- attempts, I4 I13


def _burnt(evidence: Evidence) -> Iterator[Problem]:
    failed: dict[int, list[Failed]] = defaultdict(list)
    for one in evidence.failed:
        failed[one.delivery].append(one)
    for row in evidence.rows:
        delivery = (row.message, row.destination)
        counted = [one for one in failed[row.id] if one.reason != "WORKER_LOST"]
        if row.attempts > row.max_attempts:
            yield Problem("I4", f"had {row.attempts} attempts of {row.max_attempts}", delivery)
        if row.status == "succeeded" and row.attempts != len(counted) + 1:
            yield Problem("I4", f"counts {row.attempts} attempts; {len(counted)} failed and one succeeded", delivery)
        if len({one.epoch for one in failed[row.id]}) < len(failed[row.id]):
            yield Problem("I4", "a token was settled twice", delivery)
        for one in failed[row.id]:
            if not _accounted(evidence, delivery, one):
                yield Problem("I13", f"burnt an attempt as {one.reason}, and no fault explains it", delivery)


def _accounted(evidence: Evidence, delivery: Delivery, failed: Failed) -> bool:
    """Whether a failed attempt was asked for by the handler, or comes from what was done to its process."""
    if failed.reason in evidence.planned:
        return True
    began: Iterable[Arrival] = (one for one in evidence.arrivals.get(delivery, ()) if one.epoch == failed.epoch)
    arrival = next(iter(began), None)
    if arrival is None:  # claimed and never started, or a destination that is not told its epoch: whoever had it
        return any(fault.kind != "cut" or failed.reason != "WORKER_LOST" for fault in evidence.faults)
    return any(fault.until >= arrival.began for fault in evidence.hit(arrival.pid))
