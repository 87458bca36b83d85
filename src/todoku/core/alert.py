"""Alerts: which values are over their thresholds, and when to send a notification. Readings and times are arguments.

An alert is sent to its sinks once it has lasted for its time in `HOLDS`, again every few hours while it lasts, and once
when it is over. It is over when no daemon has seen it for a while: several daemons check, and each knows only its own
counters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

from todoku.core.errors import InvalidSetting
from todoku.core.msgspec_warmup import warm_up

Name = Literal[
    "dead_letters", "dead_letter_age", "dead_letter_inflow", "publish_failure_ratio", "handler_error_ratio",
    "retry_ratio", "oldest_age", "lag", "stuck", "e2e_p95", "queue_fallback", "projection_stopped", "capture_stopped",
]  # fmt: skip


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """A value above its threshold raises the alert of that name; None disables it. Ages are in seconds, ratios are
    fractions of 1."""

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
    projection_stopped: float | None = 0.0
    capture_stopped: float | None = 0.0


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """The current value of each alert, as one daemon sees it. None: there was nothing to measure."""

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
    projection_stopped: float | None = None
    capture_stopped: float | None = None


NAMES: Final[tuple[Name, ...]] = Name.__args__  # type: ignore[attr-defined]

HOLDS: Final[dict[Name, float]] = {
    "publish_failure_ratio": 300.0, "handler_error_ratio": 300.0, "retry_ratio": 300.0, "oldest_age": 60.0,
    "lag": 300.0, "stuck": 60.0, "e2e_p95": 300.0,
}  # fmt: skip
"""Seconds that an alert must last before it is sent, the same as in the Prometheus rules. Others are sent at once."""

WINDOW: Final = 300.0
"""Seconds over which ratios, rates and the 95th percentile are measured."""

LEASE: Final = 60.0
"""Seconds that a daemon has to send an alert; after that another daemon may send it."""

GIVE_UP: Final = 86_400.0
"""Seconds after which an alert that is over and could not be sent is dropped."""


class Raised(msgspec.Struct, frozen=True):
    """A value above its threshold."""

    name: Name
    value: float
    threshold: float


def find_raised(reading: Reading, thresholds: Thresholds) -> dict[Name, Raised]:
    """Returns the values of a reading that are above their thresholds."""
    found: dict[Name, Raised] = {}
    for name in NAMES:
        value, threshold = getattr(reading, name), getattr(thresholds, name)
        if value is not None and threshold is not None and value > threshold:
            found[name] = Raised(name, float(value), float(threshold))
    return found


# ------------------------------------------------------------------------------------- when it is sent


class AlertStanding(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one alert at one sink, shared by all daemons. Times are the database's, in unix seconds."""

    name: Name
    sink: str
    since: float
    seen_at: float
    next_at: float
    """The earliest time of the next notification: the first, a reminder, or, if `over`, the last."""
    told_at: float | None = None
    over: bool = False
    tries: int = 0
    """How many times a daemon leased the notification. It is the fencing token of the daemon that sends it."""
    value: float = 0.0
    threshold: float = 0.0


Kind = Literal["begun", "reminder", "over"]


class DueAlert(msgspec.Struct, frozen=True):
    """A notification that one daemon has to send to one sink."""

    kind: Kind
    standing: AlertStanding


class Forget(msgspec.Struct, frozen=True):
    """The alert is over and nothing has to be sent: delete its state."""


class Keep(msgspec.Struct, frozen=True):
    """The state to store. `telling`: the notification that the caller has to send before its lease ends."""

    standing: AlertStanding
    telling: DueAlert | None = None


Step = Keep | Forget


def new_standing(found: Raised, sink: str, now: float) -> AlertStanding:
    """Returns the state of an alert that is seen for the first time."""
    return AlertStanding(
        name=found.name, sink=sink, since=now, seen_at=now, next_at=now + HOLDS.get(found.name, 0.0),
        value=found.value, threshold=found.threshold,
    )  # fmt: skip


def step(known: AlertStanding, found: Raised | None, now: float, *, quiet: float, remind: float) -> Step:
    """Decides what to do with a known alert that one daemon sees (`found`) or does not see (None).

    It is over once no daemon has seen it for `quiet` seconds. Reminders are `remind` seconds apart.
    """
    if found is not None:
        if known.over and known.next_at > now:
            return Keep(known)  # another daemon is sending that it is over; after that it starts anew
        seen = msgspec.structs.replace(known, seen_at=now, value=found.value, threshold=found.threshold)
        if known.over and known.told_at is not None:  # its end was not sent, so it simply continues
            next_at = max(now, known.told_at + remind)
            seen = msgspec.structs.replace(seen, over=False, next_at=next_at, tries=known.tries + 1)
        return _lease_if_due(seen, "begun" if known.told_at is None else "reminder", now)
    if now - known.seen_at < quiet:
        return Keep(known)
    if now - known.seen_at >= GIVE_UP or (known.told_at is None and known.tries == 0):
        return Forget()
    if known.told_at is None:
        return _lease_if_due(known, "begun", now)
    ended = known if known.over else msgspec.structs.replace(known, over=True, next_at=now)
    return _lease_if_due(ended, "over", now)


def _lease_if_due(known: AlertStanding, kind: Kind, now: float) -> Keep:
    """Gives the notification to the caller if it is due and no other daemon has leased it."""
    if known.next_at > now:
        return Keep(known)
    leased = msgspec.structs.replace(known, next_at=now + LEASE, tries=known.tries + 1)
    return Keep(leased, DueAlert(kind, leased))


# ----------------------------------------------------------------------------------------------- numbers


def ratio(part: float, whole: float) -> float | None:
    """Returns `part` divided by `whole`; None: `whole` is 0."""
    return part / whole if whole > 0 else None


def percentile(share: float, edges: Sequence[float], up_to: Sequence[float], number: float) -> float | None:
    """Returns the value below which `share` of a histogram lies, interpolated linearly within its bucket.

    `up_to[i]` of `number` values were at most `edges[i]`. Beyond the last edge it is that edge. None: there are no
    values.
    """
    if number <= 0:
        return None
    rank, below, lower = share * number, 0.0, 0.0
    for edge, count in zip(edges, up_to, strict=True):
        if count >= rank:
            return lower + (edge - lower) * (rank - below) / (count - below) if count > below else edge
        below, lower = count, edge
    return edges[-1]


# ------------------------------------------------------------------------------------------------- words

_TEXTS: Final[dict[Name, tuple[str, str]]] = {
    "dead_letters": ("{0:.0f} dead letters wait for a person", "todoku reasons, then todoku replay or todoku clear"),
    "dead_letter_age": ("the oldest dead letter is {1} old", "todoku reasons"),
    "dead_letter_inflow": ("{0:.0f} deliveries became dead letters within 5 minutes", "todoku reasons"),
    "publish_failure_ratio": ("{0:.2%} of publishes fail", "does the database answer? todoku doctor"),
    "handler_error_ratio": ("{0:.2%} of deliveries end as dead letters", "todoku reasons"),
    "retry_ratio": ("{0:.2%} of attempts fail and are retried", "todoku list --status failed"),
    "oldest_age": ("the oldest delivery has been due for {1}", "is a worker running? a queue paused? todoku workers"),
    "lag": ("{0:.0f} deliveries are due and waiting", "add workers, or raise a limit: todoku stats"),
    "stuck": ("{0:.0f} deliveries are held too long, or by a dead worker", "todoku workers, todoku release-expired"),
    "e2e_p95": ("one delivery in twenty takes {1} or longer", "todoku stats"),
    "queue_fallback": ("{0:.0f} messages could not be queued and took the fallback", "is the queue reachable?"),
    "projection_stopped": ("{0:.0f} projections are stopped", "todoku projection list, then show or rebuild"),
    "capture_stopped": ("{0:.0f} captures are stopped, or their source is away", "todoku capture list, then show"),
}


def summary(name: Name, value: float) -> str:
    """Describes the alert in one sentence."""
    return _TEXTS[name][0].format(value, _format_duration(value))


def action(name: Name) -> str:
    """Says what the operator can do about the alert."""
    return _TEXTS[name][1]


def _format_duration(seconds: float) -> str:
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


# ------------------------------------------------------------
# The settings of alerts, `TODOKU_ALERT_…`: the sinks that a daemon sends them to, and the thresholds.

_OFF: Final = frozenset({"off", "none", "never"})


class Alerting(msgspec.Struct, frozen=True, kw_only=True):
    """Where a daemon sends alerts, and when. Addresses may contain passwords, so the repr leaves them out."""

    thresholds: Thresholds = Thresholds()
    interval_sec: float = 15.0
    remind_sec: float = 4 * 3600.0
    webhook: str | None = None
    sentry: str | None = None
    """A DSN."""
    mail_to: tuple[str, ...] = ()
    mail_from: str = "todoku@localhost"
    mail_smtp: str = "smtp://127.0.0.1:25"

    def __repr__(self) -> str:
        sinks = {"webhook": self.webhook, "sentry": self.sentry, "mail": self.mail_to}
        return f"Alerting({', '.join(name for name, value in sinks.items() if value) or 'log only'})"


warm_up(Alerting)


ALERT_SETTINGS: Final = tuple(f"alert_{name}" for name in (*NAMES, *Alerting.__struct_fields__) if name != "thresholds")

SECRET_ALERTS: Final = ("TODOKU_ALERT_WEBHOOK", "TODOKU_ALERT_SENTRY", "TODOKU_ALERT_MAIL_SMTP")
"""Settings that may contain a password. Each is also read from the file named by `<NAME>_FILE`."""


def alerting(values: dict[str, object]) -> Alerting:
    """Takes every `alert_…` out of `values` and returns the settings of alerts; raises InvalidSetting."""
    given = {name.removeprefix("alert_"): values.pop(name) for name in list(values) if name.startswith("alert_")}
    thresholds = Thresholds(**{name: _threshold(name, given.pop(name)) for name in NAMES if name in given})
    if isinstance(to := given.get("mail_to"), str):
        given["mail_to"] = [address.strip() for address in to.split(",") if address.strip()]
    if unknown := given.keys() - set(Alerting.__struct_fields__) | given.keys() & {"thresholds"}:
        raise InvalidSetting(
            f"there is no setting alert_{', alert_'.join(sorted(unknown))}", hint="names and defaults: docs/alerts.md"
        )
    try:
        parsed = msgspec.convert(given, Alerting, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidSetting(f"a setting alert_… cannot be read: {error}", hint="see docs/alerts.md") from None
    return msgspec.structs.replace(_check(parsed), thresholds=thresholds)


def _threshold(name: str, value: object) -> float | None:
    if isinstance(value, str) and value.lower() in _OFF:
        return None
    try:
        number = float(value) if isinstance(value, int | float | str) else math.nan
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise InvalidSetting(f"alert_{name} cannot be {value!r}", hint="a number ≥ 0, or off")
    return number


def _check(parsed: Alerting) -> Alerting:
    for name in ("interval_sec", "remind_sec"):
        if not 0 < (value := getattr(parsed, name)) < math.inf:
            raise InvalidSetting(f"alert_{name} cannot be {value}", hint="it must be a number greater than 0")
    for name, schemes in (("webhook", ("http", "https")), ("sentry", ("http", "https")), ("mail_smtp", _SMTP)):
        url = getattr(parsed, name)
        if url is not None and (urlsplit(url).scheme not in schemes or not urlsplit(url).hostname):
            raise InvalidSetting(  # the address itself may be a secret
                f"alert_{name} is not a URL that begins with {' or '.join(schemes)}",
                hint=f"for example {schemes[-1]}://host/…",
            )
    for address in (*parsed.mail_to, parsed.mail_from):
        if "@" not in address or any(character in address for character in "\r\n<>, "):
            raise InvalidSetting(
                f"{address!r} is not a mail address", hint="alert_mail_to=ops@example.com,dev@example.com"
            )
    return parsed


_SMTP: Final = ("smtp", "smtps")
