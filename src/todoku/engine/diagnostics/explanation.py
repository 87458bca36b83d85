"""Why a delivery has not run: all causes, the first one first."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import msgspec

from todoku.store.deliveries import Delivery
from todoku.store.limits import Restriction
from todoku.store.situation import GateRow, LaneRow, Situation

_FORGOTTEN: Final = 150.0
"""Seconds after which a destination counts as not registered: a live worker announces its own every minute."""


class Because(msgspec.Struct, frozen=True):
    """One cause: a code for programs, a sentence for people, and a hint, which may be empty."""

    cause: str
    text: str
    hint: str = ""


def explain(situation: Situation) -> tuple[Because, ...]:
    """Returns the causes; never empty: if nothing holds the delivery back, the cause is that it is about to run."""
    match situation.delivery.status:
        case "aborted":
            return (_dead(situation),)
        case "sending":
            return tuple(_running(situation))
        case _:
            causes = (*_times(situation), *_restrictions(situation), *_lane(situation), *_workers(situation))
            return causes or (Because("ready", "nothing holds it back: a worker claims it within its poll interval"),)


def _dead(situation: Situation) -> Because:
    row = situation.delivery
    reason = f"{row.reason or 'no reason'}" + (f" ({row.error})" if row.error else "")
    tried = f", after {row.attempts} of {row.max_attempts} attempts" if row.attempts else ""
    text = f"it has been a dead letter since {_clock(row.updated_at.timestamp())}: {reason}{tried}"
    lane = situation.lane
    if lane is not None and lane.parked and lane.head is not None and lane.blocker == row:
        return Because("aborted", f"{text}; later deliveries of its key wait for it", _free(row))
    return Because("aborted", text, _again(row) or f"todoku replay {row.id}")


def _running(situation: Situation) -> Iterator[Because]:
    row = situation.delivery
    owner = next((worker for worker in situation.workers if worker.id == row.worker), None)
    since = f" for {_span(situation.now - situation.claimed_at)}" if situation.claimed_at is not None else ""
    if owner is None:
        yield Because("orphan", f"its worker {row.worker} is gone: a reclaim frees it", "todoku release-expired")
    elif owner.expires_at.timestamp() <= situation.now:
        text = f"it is held by {owner.name}, whose lease ended {_ago(situation, owner.expires_at.timestamp())}"
        yield Because("lease_ended", text, "the next reclaim frees it, or now: todoku release-expired")
    else:
        yield Because("sending", f"{owner.name} ({row.worker}) has held it{since}")
    if row.cancel_requested:
        yield Because("cancel_requested", "cancelling was requested; its worker settles it")


def _times(situation: Situation) -> Iterator[Because]:
    row, due = situation.delivery, situation.delivery.next_run_at.timestamp()
    if situation.expires_at is not None and situation.expires_at <= situation.now:
        text = f"it expired {_ago(situation, situation.expires_at)} and will be a dead letter (EXPIRED)"
        yield Because("expired", text)
    if due > situation.now:
        tried = f" after {row.reason}" if row.status == "failed" and row.reason else ""
        what = f"attempt {row.attempts + 1} of {row.max_attempts}" if row.attempts else "it"
        hint = _MAX_ATTEMPTS.format(row.max_attempts) if row.attempts else ""
        yield Because("later", f"{what} is due in {_span(due - situation.now)}{tried}", hint)
    if row.lost:
        times = "once" if row.lost == 1 else f"{row.lost} times"
        text = f"its worker died {times}: it runs alone, when a worker holds no other delivery"
        yield Because("suspect", text)


def _restrictions(situation: Situation) -> Iterator[Because]:
    row, limits = situation.delivery, situation.limits
    queue = _find(limits.queues, row.queue)
    destination = _find(limits.destinations, row.destination)
    if queue is not None and queue.paused:
        yield Because("paused", f"the queue {row.queue} is paused", f"todoku resume {row.queue}")
    if destination is not None and destination.open_until > situation.now:
        text = (
            f"the breaker of {row.destination} is open until {_clock(destination.open_until)}, "
            f"for {_span(destination.open_until - situation.now)} more, after {destination.failures} failures"
        )
        yield Because("breaker_open", text, "it closes by itself; look at the destination")
    yield from _limited("queue", queue, situation.queue_in_flight)
    yield from _limited("destination", destination, situation.destination_in_flight)
    if situation.gate is not None:
        yield from _gate(situation.gate, situation.now)


def _limited(kind: str, limit: Restriction | None, in_flight: int) -> Iterator[Because]:
    if limit is None:
        return
    hint = f"todoku limit {limit.name} --of {kind} --off"
    if limit.concurrency is not None and in_flight >= limit.concurrency:
        text = f"the {kind} {limit.name} is at its limit: {in_flight} of {limit.concurrency} at once"
        yield Because("limit_reached", text, hint)
    if limit.rate is not None:
        yield Because("rate", f"the {kind} {limit.name} may start {limit.rate:g} a second", hint)


def _gate(gate: GateRow, now: float) -> Iterator[Because]:
    if gate.concurrency is not None and gate.running >= gate.concurrency:
        text = f"key {gate.key} is at its limit of {gate.concurrency}: {gate.running} of it run now"
        yield Because("key_limit_reached", text, "the limit is the job's own: per_key=todoku.Limit(…)")
    if gate.paced_until is not None and gate.paced_until > now:
        text = f"key {gate.key} may start {gate.rate:g} a second, the next in {_span(gate.paced_until - now)}"
        yield Because("key_rate", text, "the limit is the job's own: per_key=todoku.Limit(…)")


def _lane(situation: Situation) -> Iterator[Because]:
    lane, row = situation.lane, situation.delivery
    if row.lane is None:
        return
    if lane is None:
        yield Because("no_lane", "its lane is missing, which must not happen", "todoku verify")
    elif lane.parked:
        yield _lane_parked(lane)
    elif lane.head is not None and lane.head.id != row.id:
        yield _lane_behind(lane, situation.now)


def _lane_parked(lane: LaneRow) -> Because:
    if (dead := lane.blocker) is None:
        return Because("lane_parked", "its lane is parked, but no dead letter parks it", "todoku verify")
    text = f"its lane is parked by the dead letter {dead.id} ({dead.reason})"
    return Because("lane_parked", text, _free(dead))


def _free(dead: Delivery) -> str:
    """The two commands after which a parked lane goes on: with the dead letter first, or without it."""
    again = _again(dead) or f"todoku replay {dead.id} sends it first"
    remove = "" if "todoku clear" in again else f", todoku clear {dead.id} removes it"
    return f"{again}{remove}; then its key goes on"


def _again(dead: Delivery) -> str:
    """What to do about a dead letter that would come back if it was only replayed; empty: a replay may succeed."""
    return _AGAIN.get(dead.reason or "", "").format(dead.id, dead.destination)


def _lane_behind(lane: LaneRow, now: float) -> Because:
    head = lane.head
    assert head is not None  # noqa: S101 - checked by the caller
    if head.status == "failed":
        due = head.next_run_at.timestamp() - now
        when = f"due in {_span(due)}" if due > 0 else "due now"
        text = f"delivery {head.id} is first in its lane and fails ({head.reason}), {when}"
        return Because("lane_head_failing", text, f"todoku explain {head.id}")
    text = f"delivery {head.id} is before it in its lane ({head.status})"
    return Because("lane_behind", text, f"todoku explain {head.id}")


def _workers(situation: Situation) -> Iterator[Because]:
    destination = situation.delivery.destination
    alive = [worker for worker in situation.workers if worker.expires_at.timestamp() > situation.now]
    if not alive:
        yield Because("no_worker", "no worker is alive", _START)
        return
    seen = situation.known.seen(destination)
    if seen is None:
        yield Because("unregistered", f"no worker has ever registered the destination {destination}", _REGISTER)
    elif seen < situation.now - _FORGOTTEN:
        text = f"no live worker has registered {destination}; the last one did {_ago(situation, seen)}"
        yield Because("unregistered", text, _REGISTER)
    if all(worker.state == "draining" for worker in alive):
        yield Because("draining", "every worker that is alive is draining", _START.replace("one", "another"))


_START: Final = "start one: todoku run --app module:box"
_AGAIN: Final = {
    "NO_ROUTE": "a replay finds no route either: declare one and publish it again; todoku clear {0} removes it",
    "IDEMPOTENCY_CONFLICT": "publish it with a new idempotency key; todoku clear {0} removes it",
    "BAD_REQUEST": "it cannot be sent as it is: publish it again, corrected; todoku clear {0} removes it",
    "SHREDDED": "it cannot be read any more; todoku clear {0} removes it",
    "BAD_PAYLOAD": "correct its handler or schema, restart the workers, then: todoku replay {0}",
    "UNKNOWN_DESTINATION": "run a worker whose App declares {1}, then: todoku replay {0}",
    "SSRF_REFUSED": "allow the address for the workers, as the error says, restart them, then: todoku replay {0}",
}
"""What to do about dead letters that a replay alone would bring back, by their reason."""

_MAX_ATTEMPTS: Final = "the {} are max_attempts of its publisher or, if it gave none, of the worker that tried it"
_REGISTER: Final = "run a worker whose App declares it: todoku run --app module:box"


def _find(limits: tuple[Restriction, ...], name: str) -> Restriction | None:
    return next((limit for limit in limits if limit.name == name), None)


def _ago(situation: Situation, then: float) -> str:
    return f"{_span(situation.now - then)} ago"


def _span(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s" if seconds >= 1 else "less than a second"


def _clock(unix_seconds: float) -> str:
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
