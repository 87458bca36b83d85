"""When a schedule fires: by cron in a time zone, or at an interval; and which slots fire after some were missed.

A slot is one moment at which a schedule is due. A cron expression describes local time, which daylight saving time
moves forward and back (decision 13):

- Minute and hour are both named (`30 2 * * *`): each of these times fires once a day. A time that the clock skips fires
  at the end of the gap; a time that occurs twice fires the first time.
- One of them begins with `*` (`*/15 * * * *`): every moment whose local time matches fires. Times that the clock skips
  do not fire; times that occur twice fire twice, so that the intervals stay the same.
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from itertools import islice
from typing import Final, Literal, get_args
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from todoku.core.errors import InvalidMessage, InvalidSetting
from todoku.core.message import Draft
from todoku.core.msgspec_warmup import warm_up
from todoku.core.outcome import seconds
from todoku.core.sealed import MasterSealed

Missed = Literal["skip", "once", "all"]
"""The policy for slots that no worker fired in time: fire none of them, one for all, or each."""

LATE: Final = timedelta(seconds=10)
"""A slot that fires at most this late is in time, as after a restart or with a busy database. After that it is
missed."""

MOST: Final = 1000
"""The most slots of a schedule that fire in one round; the others fire in the next."""

SHORTEST: Final = 1.0
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST_EXPRESSION: Final = 255
_SECOND: Final = timedelta(seconds=1)
_MICROSECOND: Final = timedelta(microseconds=1)
_DAY: Final = timedelta(days=1)
_YEARS: Final = 50
"""The search for a slot ends after this many years."""
_FIELDS: Final = "five fields: minute hour day month weekday; or six, with the second in front"


class Cron(msgspec.Struct, frozen=True, tag="cron"):
    """A cron expression in a time zone. Create it with `cron`, which checks both."""

    expression: str
    tz: str = "UTC"

    def __str__(self) -> str:
        return self.expression


class Every(msgspec.Struct, frozen=True, tag="every"):
    """An interval. Slots are counted from `anchor`, so that they are the same in every process. Create it with
    `every`."""

    seconds: float
    anchor: datetime = EPOCH

    def __str__(self) -> str:
        return f"every {self.seconds:.12g} s"  # never 2.592e+06


When = Cron | Every


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule: when it fires, what happens to missed slots, and the message of each slot (its id is replaced)."""

    when: When
    missed: Missed
    message: Draft
    sealed: bool = False
    """Its messages are encrypted at rest: they are sealed when the schedule fires, and `message` has no payload."""
    created_at: datetime | None = None
    """When the schedule was created over HTTP; None: it was created in another way."""
    kept: MasterSealed | None = None
    """The request with its secret headers, encrypted with a master key; `message` lacks them. None: it has none."""


warm_up(Plan)


class Due(msgspec.Struct, frozen=True):
    """The slots to fire now, how many are skipped (at least), and the next slot."""

    fire: tuple[datetime, ...]
    passed: int
    next: datetime


def cron(expression: object, tz: object = "UTC") -> Cron:
    """Parses a cron expression; raises InvalidSetting, which names `cron` or `tz`."""
    zone = _zone(tz)
    if not isinstance(expression, str) or len(expression) > _LONGEST_EXPRESSION:
        raise InvalidSetting(f"cron cannot be {expression!r}", hint=_FIELDS)
    parsed = Cron(" ".join(expression.split()), zone.key)
    try:
        _check_fires(CronSim(parsed.expression, EPOCH.replace(tzinfo=None)))
        next_after(parsed, EPOCH)
    except CronSimError as error:
        raise InvalidSetting(f"cron cannot be {expression!r}: {str(error).lower()}", hint=_FIELDS) from None
    return parsed


def every(duration: object, anchor: object = None) -> Every:
    """Returns a checked interval; raises InvalidSetting, which names `every` or `anchor`."""
    try:
        value = seconds(duration, what="every")  # type: ignore[arg-type]  # seconds() checks the type
    except InvalidMessage:
        value = 0.0
    if value < SHORTEST:
        raise InvalidSetting(f"every cannot be {duration!r}", hint="at least one second: seconds, or a timedelta")
    if anchor is None:
        return Every(value)
    if not isinstance(anchor, datetime) or anchor.tzinfo is None:
        raise InvalidSetting(f"anchor cannot be {anchor!r}", hint="a datetime with its zone: datetime(…, tzinfo=UTC)")
    return Every(value, anchor.astimezone(UTC))


def timing(cron_: object, every_: object, tz: object = "UTC", anchor: object = None) -> When:
    """Returns the timing of a schedule: `cron_` in its time zone, or `every_`; raises InvalidSetting."""
    if (cron_ is None) == (every_ is None):
        raise InvalidSetting("a schedule needs either cron or every", hint='cron="0 9 * * *", or every=3600')
    if every_ is None:
        if anchor is not None:
            raise InvalidSetting("anchor can only be used with every", hint="leave it out: cron does not need it")
        return cron(cron_, tz)
    if tz not in ("UTC", None):
        raise InvalidSetting("tz can only be used with cron", hint="an interval is the same in every time zone")
    return every(every_, anchor)


def policy(missed: object) -> Missed:
    """Returns `missed` if it is a policy for missed slots; raises InvalidSetting."""
    if missed not in get_args(Missed):
        raise InvalidSetting(f"missed cannot be {missed!r}", hint="skip, once or all")
    return missed  # type: ignore[return-value]


def _zone(tz: object) -> ZoneInfo:
    try:
        return ZoneInfo(tz)  # type: ignore[arg-type]  # other types raise TypeError
    except (KeyError, ValueError, OSError, TypeError, AttributeError):
        hint = "use a name of the IANA database, such as Asia/Tokyo or UTC"
        raise InvalidSetting(f"tz cannot be {tz!r}: there is no such time zone", hint=hint) from None


# -------------------------------------------------------------------------------------------------- slots


def next_after(when: When, moment: datetime) -> datetime:
    """Returns the first slot after `moment`, in UTC."""
    match when:
        case Every():
            step = round(when.seconds * 1e6)
            passed = (moment - when.anchor) // _MICROSECOND // step
            return when.anchor + (passed + 1) * step * _MICROSECOND
        case Cron():
            zone = _zone(when.tz)
            minute_and_hour = when.expression.split()[-5:-3]
            named = not any(field.startswith("*") for field in minute_and_hour)
            return (_next_named if named else _next_matching)(when.expression, zone, moment)


def _check_fires(expression: CronSim) -> None:
    """Raises CronSimError if no day ever matches.

    Months differ only in their length and first weekday, which makes 28 kinds. All kinds occur within 28 years, and
    each is checked once.
    """
    kinds: set[tuple[int, int]] = set()
    for year in range(2000, 2028):
        for month in expression.months:
            kind = monthrange(year, month)
            if kind not in kinds:
                kinds.add(kind)
                if any(expression.match_day(date(year, month, day)) for day in range(1, kind[1] + 1)):
                    return
    raise CronSimError("it never fires")


def _next_wall(expression: str, wall: datetime) -> datetime:
    """Returns the next matching local time after `wall`, regardless of changes of the clock."""
    try:
        return next(CronSim(expression, wall))
    except StopIteration:
        raise CronSimError("it never fires") from None


def _next_named(expression: str, zone: ZoneInfo, moment: datetime) -> datetime:
    """Returns the next slot of named times: each fires once a day, also on days when the clock changes."""
    wall = _wall(zone, moment)
    while True:
        wall = _next_wall(expression, wall)
        slot = _first(zone, wall)
        if slot > moment:  # false for the second occurrence of a local time that fired at its first
            return slot


def _next_matching(expression: str, zone: ZoneInfo, moment: datetime) -> datetime:
    """Returns the next moment whose local time matches. Between two changes of the clock its offset is constant."""
    wall = _wall(zone, moment)
    last = wall.year + _YEARS
    while wall.year <= last:
        matching = _next_wall(expression, wall)
        # No offset is as large as two days, so changes of the clock before that do not matter.
        moment = max(moment, (matching - 2 * _DAY).replace(tzinfo=UTC))
        slot = (matching - _offset(zone, moment)).replace(tzinfo=UTC)
        change = _clock_change(zone, moment, slot)
        if change is None:
            return slot
        moment, wall = change, _wall(zone, change) - _SECOND  # the moment of the change can be a slot itself
    raise CronSimError("it never fires: the clock always skips it")


def _wall(zone: ZoneInfo, moment: datetime) -> datetime:
    """Returns the local time as a naive datetime, which arithmetic does not adjust."""
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def _offset(zone: ZoneInfo, moment: datetime) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()


def _first(zone: ZoneInfo, wall: datetime) -> datetime:
    """Returns the first moment at which the local time is `wall`; if the clock skips it, the moment when it does."""
    slot = wall.replace(tzinfo=zone).astimezone(UTC)
    if _wall(zone, slot) == wall:
        return slot
    before = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    return _clock_change(zone, before, slot) or slot


def _clock_change(zone: ZoneInfo, after: datetime, until: datetime) -> datetime | None:
    """Returns the first change of the UTC offset after `after` and not after `until`; None: there is none.

    It assumes that no time zone changes its offset twice within a day.
    """
    offset, low, high = _offset(zone, after), after, after
    while high < until and _offset(zone, high) == offset:
        low, high = high, min(high + _DAY, until)
    if _offset(zone, high) == offset:
        return None
    while high - low > _SECOND:
        middle = low + (high - low) / 2
        low, high = (middle, high) if _offset(zone, middle) == offset else (low, middle)
    return high.replace(microsecond=0)


def slots(when: When, first: datetime, until: datetime) -> Iterator[datetime]:
    """Yields `first` and every slot after it, up to and including `until`."""
    while first <= until:
        yield first
        first = next_after(when, first)


def due_slots(when: When, next_run_at: datetime, now: datetime, missed: Missed) -> Due:
    """Returns the slots to fire at `now`, if the slot at `next_run_at` and all later ones have not fired.

    Slots at most LATE ago are in time and always fire. Of older ones, `skip` fires none; `once` fires the last, unless
    a slot that is in time fires anyway; `all` fires each, at most MOST at once.
    """
    due = list(islice(slots(when, next_run_at, now), MOST))
    following = next_after(when, due[-1]) if due else next_run_at
    if missed == "all" or not due:
        return Due(tuple(due), 0, following)
    if following <= now:  # more than MOST: they are not counted, only the last ones matter
        due = [*due, *_last(when, now)]
        following = next_after(when, due[-1])
    in_time = tuple(slot for slot in due if slot >= now - LATE)
    fire = in_time or (due[-1:] if missed == "once" else ())
    return Due(tuple(fire), len(due) - len(fire), following)


def _last(when: When, now: datetime) -> list[datetime]:
    """Returns the last slots up to `now`, including those that are in time. The caller knows that there are some."""
    span = LATE
    while True:
        if found := list(slots(when, next_after(when, now - span - _MICROSECOND), now)):
            return found
        span *= 2
