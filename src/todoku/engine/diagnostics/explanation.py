"""Why a delivery has not run: all causes, the first one first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from todoku.store.deliveries import Delivery
from todoku.store.limits import Restriction
from todoku.store.situation import GateRow, LaneRow, RunWait, Situation

_FORGOTTEN: Final = 150.0
"""Seconds after which a destination counts as not registered: a live worker announces its own every minute."""


class Sentence(msgspec.Struct, frozen=True):
    """An English template with {names}, which is the key of its translations, and the values of the names."""

    template: str
    values: dict[str, str] = {}

    def __str__(self) -> str:
        return self.template.format_map(self.values)


class Because(msgspec.Struct, frozen=True):
    """One cause: a code for programs, a sentence for people, and a hint, which may be empty.

    `parts` and `advice` are what `text` and `hint` were joined of, for translations.
    """

    cause: str
    text: str
    hint: str = ""
    parts: tuple[Sentence, ...] = ()
    advice: tuple[Sentence, ...] = ()


def _because(cause: str, template: str, *advice: Sentence, **values: object) -> Because:
    return _joined(cause, [_sentence(template, **values)], *advice)


def _joined(cause: str, parts: Sequence[Sentence], *advice: Sentence) -> Because:
    return Because(cause, "".join(map(str, parts)), "".join(map(str, advice)), tuple(parts), advice)


def _sentence(template: str, **values: object) -> Sentence:
    return Sentence(template, {name: str(value) for name, value in values.items()})


def explain(situation: Situation) -> tuple[Because, ...]:
    """Returns the causes; never empty: if nothing holds the delivery back, the cause is that it is about to run."""
    match situation.delivery.status:
        case "aborted":
            return (_dead(situation),)
        case "sending":
            return tuple(_running(situation))
        case _:
            causes = (*_times(situation), *_restrictions(situation), *_lane(situation), *_workers(situation))
            return causes or (_because("ready", "nothing holds it back: a worker claims it within its poll interval"),)


def _dead(situation: Situation) -> Because:
    row, lane = situation.delivery, situation.lane
    reason = f"{row.reason or 'no reason'}" + (f" ({row.error})" if row.error else "")
    since = _clock(row.updated_at.timestamp())
    parts = [_sentence("it has been a dead letter since {since}: {reason}", since=since, reason=reason)]
    if row.attempts:
        parts.append(_sentence(", after {attempts} of {most} attempts", attempts=row.attempts, most=row.max_attempts))
    if lane is not None and lane.parked and lane.head is not None and lane.blocker == row:
        return _joined("aborted", [*parts, Sentence("; later deliveries of its key wait for it")], *_free(row))
    return _joined("aborted", parts, _again(row) or _sentence("todoku replay {id}", id=row.id))


def _running(situation: Situation) -> Iterator[Because]:
    row = situation.delivery
    owner = next((worker for worker in situation.workers if worker.id == row.worker), None)
    if owner is None:
        template = "its worker {worker} is gone: a reclaim frees it"
        yield _because("orphan", template, Sentence("todoku release-expired"), worker=row.worker)
    elif owner.expires_at.timestamp() <= situation.now:
        template = "it is held by {worker}, whose lease ended {span} ago"
        span = _span(situation.now - owner.expires_at.timestamp())
        advice = Sentence("the next reclaim frees it, or now: todoku release-expired")
        yield _because("lease_ended", template, advice, worker=owner.name, span=span)
    else:
        worker = f"{owner.name} ({row.worker})"
        if situation.claimed_at is None:
            yield _because("sending", "{worker} has held it", worker=worker)
        else:
            span = _span(situation.now - situation.claimed_at)
            yield _because("sending", "{worker} has held it for {span}", worker=worker, span=span)
    if row.cancel_requested:
        yield _because("cancel_requested", "cancelling was requested; its worker settles it")


def _times(situation: Situation) -> Iterator[Because]:
    row, due = situation.delivery, situation.delivery.next_run_at.timestamp()
    if situation.expires_at is not None and situation.expires_at <= situation.now:
        template = "it expired {span} ago and will be a dead letter (EXPIRED)"
        yield _because("expired", template, span=_span(situation.now - situation.expires_at))
    if due > situation.now:
        if situation.waits:
            yield from (_waiting(situation, wait) for wait in situation.waits)
        else:
            yield _later(row, _span(due - situation.now))
    if row.lost:
        times = "once" if row.lost == 1 else "{number} times"
        rest = "it runs alone, when a worker holds no other delivery"
        yield _because("suspect", f"its worker died {times}: {rest}", number=row.lost)


def _waiting(situation: Situation, wait: RunWait) -> Because:
    """What a parked run of a workflow waits for."""
    id, until = situation.delivery.id, wait.until
    left = "" if until is None else _span(until - situation.now)
    look = _sentence("todoku flow show {id}", id=id)
    if wait.kind == "sleep":
        template = "it is sleeping until {until}, for {span} more"
        return _because("sleeping", template, look, until=_clock(until or 0.0), span=left)
    if wait.kind == "wait":
        parts = [_sentence("it is waiting for the signal {name}", name=wait.awaits)]
        if until is not None:
            parts.append(_sentence(" until {until}, for {span} more", until=_clock(until), span=left))
        advice = _sentence("todoku flow signal {id} {name}", id=id, name=wait.awaits)
        return _joined("waiting_for_signal", parts, advice)
    if wait.kind == "children":
        template, total = "it is waiting for children, {ended} of {total} have ended", wait.total or 0
        return _because("waiting_for_children", template, look, ended=total - (wait.open or 0), total=total)
    template = "it waits {span} before the next attempt of {step}"
    return _because("step_back_off", template, look, span=left, step=wait.name)


def _later(row: Delivery, span: str) -> Because:
    parts = [_sentence("it is due in {span}", span=span)]
    if row.attempts:
        template = "attempt {number} of {most} is due in {span}"
        parts = [_sentence(template, number=row.attempts + 1, most=row.max_attempts, span=span)]
    if row.status == "failed" and row.reason:
        parts.append(_sentence(" after {reason}", reason=row.reason))
    return _joined("later", parts, *((_sentence(_MAX_ATTEMPTS, most=row.max_attempts),) if row.attempts else ()))


def _restrictions(situation: Situation) -> Iterator[Because]:
    row, limits = situation.delivery, situation.limits
    queue = _find(limits.queues, row.queue)
    destination = _find(limits.destinations, row.destination)
    if queue is not None and queue.paused:
        yield _because("paused", "the queue {name} is paused", _sentence("todoku resume {name}", name=row.queue),
                       name=row.queue)  # fmt: skip
    if destination is not None and destination.open_until > situation.now:
        template = "the breaker of {name} is open until {until}, for {span} more, after {failures} failures"
        yield _because(
            "breaker_open", template, Sentence("it closes by itself; look at the destination"), name=row.destination,
            until=_clock(destination.open_until), span=_span(destination.open_until - situation.now),
            failures=destination.failures,
        )  # fmt: skip
    yield from _limited("queue", queue, situation.queue_in_flight)
    yield from _limited("destination", destination, situation.destination_in_flight)
    if situation.gate is not None:
        yield from _gate(situation.gate, situation.now)


def _limited(kind: str, limit: Restriction | None, in_flight: int) -> Iterator[Because]:
    if limit is None:
        return
    advice = _sentence(f"todoku limit {{name}} --of {kind} --off", name=limit.name)
    if limit.concurrency is not None and in_flight >= limit.concurrency:
        template = f"the {kind} {{name}} is at its limit: {{number}} of {{most}} at once"
        yield _because("limit_reached", template, advice, name=limit.name, number=in_flight, most=limit.concurrency)
    if limit.rate is not None:
        template = f"the {kind} {{name}} may start {{rate}} a second"
        yield _because("rate", template, advice, name=limit.name, rate=f"{limit.rate:g}")


def _gate(gate: GateRow, now: float) -> Iterator[Because]:
    advice = Sentence("the limit is the job's own: per_key=todoku.Limit(…)")
    if gate.concurrency is not None and gate.running >= gate.concurrency:
        template = "key {key} is at its limit of {most}: {number} of it run now"
        yield _because("key_limit_reached", template, advice, key=gate.key, most=gate.concurrency, number=gate.running)
    if gate.paced_until is not None and gate.paced_until > now:
        template = "key {key} may start {rate} a second, the next in {span}"
        span = _span(gate.paced_until - now)
        yield _because("key_rate", template, advice, key=gate.key, rate=f"{gate.rate:g}", span=span)


def _lane(situation: Situation) -> Iterator[Because]:
    lane, row = situation.lane, situation.delivery
    if row.lane is None:
        return
    if lane is None:
        yield _because("no_lane", "its lane is missing, which must not happen", Sentence("todoku verify"))
    elif lane.parked:
        yield _lane_parked(lane)
    elif lane.head is not None and lane.head.id != row.id:
        yield _lane_behind(lane.head, situation.now)


def _lane_parked(lane: LaneRow) -> Because:
    if (dead := lane.blocker) is None:
        return _because("lane_parked", "its lane is parked, but no dead letter parks it", Sentence("todoku verify"))
    template = "its lane is parked by the dead letter {id} ({reason})"
    return _because("lane_parked", template, *_free(dead), id=dead.id, reason=dead.reason)


def _free(dead: Delivery) -> Iterator[Sentence]:
    """The two commands after which a parked lane goes on: with the dead letter first, or without it."""
    again = _again(dead) or _sentence("todoku replay {id} sends it first", id=dead.id)
    yield again
    if "todoku clear" not in again.template:
        yield _sentence(", todoku clear {id} removes it", id=dead.id)
    yield Sentence("; then its key goes on")


def _again(dead: Delivery) -> Sentence | None:
    """What to do about a dead letter that would come back if it was only replayed; None: a replay may succeed."""
    template = _AGAIN.get(dead.reason or "")
    return None if template is None else _sentence(template, id=dead.id, destination=dead.destination)


def _lane_behind(head: Delivery, now: float) -> Because:
    advice = _sentence("todoku explain {id}", id=head.id)
    if head.status != "failed":
        template = "delivery {id} is before it in its lane ({status})"
        return _because("lane_behind", template, advice, id=head.id, status=head.status)
    template, values = "delivery {id} is first in its lane and fails ({reason}), due now", dict[str, str]()
    if (due := head.next_run_at.timestamp() - now) > 0:
        template, values = template.replace("now", "in {span}"), {"span": _span(due)}
    return _because("lane_head_failing", template, advice, id=head.id, reason=head.reason, **values)


def _workers(situation: Situation) -> Iterator[Because]:
    destination = situation.delivery.destination
    alive = [worker for worker in situation.workers if worker.expires_at.timestamp() > situation.now]
    if not alive:
        yield _because("no_worker", "no worker is alive", Sentence(_START))
        return
    seen = situation.known.seen(destination)
    if seen is None:
        template = "no worker has ever registered the destination {name}"
        yield _because("unregistered", template, Sentence(_REGISTER), name=destination)
    elif seen < situation.now - _FORGOTTEN:
        template = "no live worker has registered {name}; the last one did {span} ago"
        span = _span(situation.now - seen)
        yield _because("unregistered", template, Sentence(_REGISTER), name=destination, span=span)
    if all(worker.state == "draining" for worker in alive):
        advice = Sentence(_START.replace("one", "another"))
        yield _because("draining", "every worker that is alive is draining", advice)


_START: Final = "start one: todoku run --app module:box"
_AGAIN: Final = {
    "NO_ROUTE": "a replay finds no route either: declare one and publish it again; todoku clear {id} removes it",
    "IDEMPOTENCY_CONFLICT": "publish it with a new idempotency key; todoku clear {id} removes it",
    "BAD_REQUEST": "it cannot be sent as it is: publish it again, corrected; todoku clear {id} removes it",
    "SHREDDED": "it cannot be read any more; todoku clear {id} removes it",
    "BAD_PAYLOAD": "correct its handler or schema, restart the workers, then: todoku replay {id}",
    "UNKNOWN_DESTINATION": "run a worker whose App declares {destination}, then: todoku replay {id}",
    "SSRF_REFUSED": "allow the address for the workers, as the error says, restart them, then: todoku replay {id}",
}
"""What to do about dead letters that a replay alone would bring back, by their reason."""

_MAX_ATTEMPTS: Final = "the {most} are max_attempts of its publisher or, if it gave none, of the worker that tried it"
_REGISTER: Final = "run a worker whose App declares it: todoku run --app module:box"


def _find(limits: tuple[Restriction, ...], name: str) -> Restriction | None:
    return next((limit for limit in limits if limit.name == name), None)


def _span(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s" if seconds >= 1 else "less than a second"


def _clock(unix_seconds: float) -> str:
    return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
