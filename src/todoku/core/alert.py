"""Alerts: which number is over its threshold, and when somebody is told. Pure: readings and times are arguments.

An alert that was seen is told once it has lasted (`HOLDS`), again every few hours while it lasts, and once more when
it is over. It is over when nobody has seen it for a while: several daemons look, and each knows only its own counters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

Name = Literal[
    "dead_letters", "dead_letter_age", "dead_letter_inflow", "publish_failure_ratio", "handler_error_ratio",
    "retry_ratio", "oldest_age", "lag", "stuck", "e2e_p95", "queue_fallback",
]  # fmt: skip


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """An alert is raised by a number above its threshold. None: that one never is. Ages are seconds, ratios shares."""

    dead_letters: float | None = 0.0
    dead_letter_age: float | None = 86_400.0
    dead_letter_inflow: float | None = 0.0
    publish_failure_ratio: float | None = 0.01
    handler_error_ratio: float | None = 0.005
    retry_ratio: float | None = 0.01
    oldest_age: float | None = 60.0
    lag: float | None = 10_000.0
    stuck: float | None = 0.0
    e2e_p95: float | None = 10.0
    queue_fallback: float | None = 0.0


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """The number of each alert, as one daemon sees it now. None: nothing happened that it could be read from."""

    dead_letters: float | None = None
    dead_letter_age: float | None = None
    dead_letter_inflow: float | None = None
    publish_failure_ratio: float | None = None
    handler_error_ratio: float | None = None
    retry_ratio: float | None = None
    oldest_age: float | None = None
    lag: float | None = None
    stuck: float | None = None
    e2e_p95: float | None = None
    queue_fallback: float | None = None


NAMES: Final[tuple[Name, ...]] = Name.__args__  # type: ignore[attr-defined]

HOLDS: Final[dict[Name, float]] = {
    "publish_failure_ratio": 300.0, "handler_error_ratio": 300.0, "retry_ratio": 300.0, "oldest_age": 60.0,
    "lag": 300.0, "stuck": 60.0, "e2e_p95": 300.0,
}  # fmt: skip
"""For so many seconds it must last before somebody is told; the others are told at once. As the Prometheus rules."""

WINDOW: Final = 300.0
"""Ratios, rates and the 95th percentile are of so many seconds."""

LEASE: Final = 60.0
"""So long one daemon has to tell an alert; then another may."""

GIVE_UP: Final = 86_400.0
"""An alert that could not be told, and has been over for so long, is news no more."""


class Raised(msgspec.Struct, frozen=True):
    """A number above its threshold."""

    name: Name
    value: float
    threshold: float


def raised(reading: Reading, thresholds: Thresholds) -> dict[Name, Raised]:
    """What a reading raises."""
    found: dict[Name, Raised] = {}
    for name in NAMES:
        value, threshold = getattr(reading, name), getattr(thresholds, name)
        if value is not None and threshold is not None and value > threshold:
            found[name] = Raised(name, float(value), float(threshold))
    return found


# ---------------------------------------------------------------------------------------- when it is told


class AlertStanding(msgspec.Struct, frozen=True, kw_only=True):
    """What all daemons know of one alert at one sink. Times are the database's, in unix seconds."""

    name: Name
    sink: str
    since: float
    seen_at: float
    next_at: float
    """From then on it may be told: the first time, again, or (over) for the last time."""
    told_at: float | None = None
    over: bool = False
    tries: int = 0
    """How often somebody set out to tell it: the token of whoever does."""
    value: float = 0.0
    threshold: float = 0.0


Kind = Literal["begun", "reminder", "over"]


class Telling(msgspec.Struct, frozen=True):
    """What one daemon is to tell at one sink."""

    kind: Kind
    standing: AlertStanding


class Forget(msgspec.Struct, frozen=True):
    """It is over, and there is nothing to tell."""


class Keep(msgspec.Struct, frozen=True):
    """How it stands from now on. `telling`: it is the caller's to tell, for the length of a lease."""

    standing: AlertStanding
    telling: Telling | None = None


Step = Keep | Forget


def begun(found: Raised, sink: str, now: float) -> AlertStanding:
    """An alert that nobody has seen before."""
    return AlertStanding(
        name=found.name, sink=sink, since=now, seen_at=now, next_at=now + HOLDS.get(found.name, 0.0),
        value=found.value, threshold=found.threshold,
    )  # fmt: skip


def step(known: AlertStanding, found: Raised | None, now: float, *, quiet: float, remind: float) -> Step:
    """What becomes of an alert that one daemon sees (`found`) or does not. It is over after `quiet` seconds unseen."""
    if found is not None:
        if known.over and known.next_at > now:
            return Keep(known)  # somebody tells of its end this very moment; then it begins anew
        seen = msgspec.structs.replace(known, seen_at=now, value=found.value, threshold=found.threshold)
        if known.over and known.told_at is not None:  # its end was never told, so nobody need hear of either
            next_at = max(now, known.told_at + remind)
            seen = msgspec.structs.replace(seen, over=False, next_at=next_at, tries=known.tries + 1)
        return _leased(seen, "begun" if known.told_at is None else "reminder", now)
    if now - known.seen_at < quiet:
        return Keep(known)
    if now - known.seen_at >= GIVE_UP or (known.told_at is None and known.tries == 0):
        return Forget()
    if known.told_at is None:
        return _leased(known, "begun", now)
    ended = known if known.over else msgspec.structs.replace(known, over=True, next_at=now)
    return _leased(ended, "over", now)


def _leased(known: AlertStanding, kind: Kind, now: float) -> Keep:
    """To be told by the caller, if its time has come and nobody else is at it."""
    if known.next_at > now:
        return Keep(known)
    leased = msgspec.structs.replace(known, next_at=now + LEASE, tries=known.tries + 1)
    return Keep(leased, Telling(kind, leased))


# ----------------------------------------------------------------------------------------------- numbers


def ratio(part: float, whole: float) -> float | None:
    """A share; None of nothing."""
    return part / whole if whole > 0 else None


def percentile(share: float, edges: Sequence[float], up_to: Sequence[float], number: float) -> float | None:
    """The value below which `share` of a histogram lies, straight within its bucket; beyond the last edge, that edge.

    `up_to[i]` of `number` values were at most `edges[i]`. None: there are no values.
    """
    if number <= 0:
        return None
    wanted, below, lower = share * number, 0.0, 0.0
    for edge, count in zip(edges, up_to, strict=True):
        if count >= wanted:
            return lower + (edge - lower) * (wanted - below) / (count - below) if count > below else edge
        below, lower = count, edge
    return edges[-1]


# ------------------------------------------------------------------------------------------------- words

_SAYS: Final[dict[Name, tuple[str, str]]] = {
    "dead_letters": ("{0:.0f} dead letters wait for a person", "todoku reasons, then todoku replay or todoku clear"),
    "dead_letter_age": ("a dead letter has waited for {1}", "todoku reasons"),
    "dead_letter_inflow": ("{0:.0f} deliveries became dead letters within 5 minutes", "todoku reasons"),
    "publish_failure_ratio": ("{0:.2%} of publishes fail", "does the database answer? todoku doctor"),
    "handler_error_ratio": ("{0:.2%} of deliveries end as dead letters", "todoku reasons"),
    "retry_ratio": ("{0:.2%} of attempts fail and are made again", "todoku list --status failed"),
    "oldest_age": ("the oldest delivery has been due for {1}", "is a worker running, a queue paused? todoku workers"),
    "lag": ("{0:.0f} deliveries are due and wait", "more workers, or a limit to lift: todoku stats"),
    "stuck": ("{0:.0f} deliveries are held for too long, or by nobody alive", "todoku workers, todoku release-expired"),
    "e2e_p95": ("one delivery in twenty takes {1} or longer", "todoku stats"),
    "queue_fallback": ("{0:.0f} messages could not be queued and took another way", "is the queue reachable?"),
}


def summary(name: Name, value: float) -> str:
    """What happened, in a sentence."""
    return _SAYS[name][0].format(value, _long(value))


def action(name: Name) -> str:
    """What a person can do about it."""
    return _SAYS[name][1]


def _long(seconds: float) -> str:
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
