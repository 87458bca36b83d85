"""When a schedule fires: by cron in a time zone, or at an interval; and which slots are fired when some were missed.

A slot is one moment at which a schedule is due. Cron expressions speak of the wall clock, which a change to or from
summer time turns forward and back (decision 13):

- Minute and hour are both named (`30 2 * * *`): each of these times comes once a day. One that the clock jumps over is
  fired at the end of the gap; one that comes twice is fired the first time.
- One of them begins with `*` (`*/15 * * * *`): every moment at which the clock on the wall matches. What the clock
  jumps over is not fired; what it shows twice is fired twice, so that the distances stay as they are.
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
from todoku.core.msgspec_warmup import learned
from todoku.core.outcome import seconds
from todoku.core.sealed import MasterSealed

Missed = Literal["skip", "once", "all"]
"""What becomes of slots that nobody fired in time: none of them is fired, one for all of them, or each."""

LATE: Final = timedelta(seconds=10)
"""A slot that is fired this late is still in time: a busy database, a restart. Later than that it was missed."""

MOST: Final = 1000
"""Slots that are fired at once; what is left is fired in the next round."""

SHORTEST: Final = 1.0
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST_EXPRESSION: Final = 255
_SECOND: Final = timedelta(seconds=1)
_MICROSECOND: Final = timedelta(microseconds=1)
_DAY: Final = timedelta(days=1)
_YEARS: Final = 50
"""A slot comes within so many years, or never."""
_FIELDS: Final = "five fields: minute hour day month weekday; or six, with the second in front"


class Cron(msgspec.Struct, frozen=True, tag="cron"):
    """A cron expression, read on the clocks of a time zone. Make it with `cron`, which checks both."""

    expression: str
    tz: str = "UTC"

    def __str__(self) -> str:
        return self.expression


class Every(msgspec.Struct, frozen=True, tag="every"):
    """So many seconds apart, counted from `anchor`: the same slots in every process. Make it with `every`."""

    seconds: float
    anchor: datetime = EPOCH

    def __str__(self) -> str:
        return f"every {self.seconds:g} s"


When = Cron | Every


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """All that a schedule is: when, what becomes of missed slots, and the message of each slot but for its id."""

    when: When
    missed: Missed
    message: Draft
    sealed: bool = False
    """Its messages are encrypted at rest: they are sealed when they are fired, and here they have nothing inside."""
    created_at: datetime | None = None
    """When somebody made it over HTTP; None: it was not made there."""
    kept: MasterSealed | None = None
    """The request with what is secret in it, encrypted by a master key; `message` is without it. None: nothing is."""


learned(Plan)


class Due(msgspec.Struct, frozen=True):
    """What is to be done now: the slots to fire, how many are passed over (at least), and the slot after them."""

    fire: tuple[datetime, ...]
    passed: int
    next: datetime


def cron(expression: object, tz: object = "UTC") -> Cron:
    """A checked cron expression, or InvalidSetting naming `cron` or `tz`."""
    zone = _zone(tz)
    if not isinstance(expression, str) or len(expression) > _LONGEST_EXPRESSION:
        raise InvalidSetting(f"cron cannot be {expression!r}", hint=_FIELDS)
    made = Cron(" ".join(expression.split()), zone.key)
    try:
        _check_comes(CronSim(made.expression, EPOCH.replace(tzinfo=None)))
        next_after(made, EPOCH)
    except CronSimError as error:
        raise InvalidSetting(f"cron cannot be {expression!r}: {str(error).lower()}", hint=_FIELDS) from None
    return made


def every(duration: object, anchor: object = None) -> Every:
    """A checked interval, or InvalidSetting naming `every` or `anchor`."""
    try:
        value = seconds(duration, what="every")  # type: ignore[arg-type]  # it refuses what is no duration
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
    """The one of both that was given: `cron` in its zone, or `every`. InvalidSetting names what is wrong."""
    if (cron_ is None) == (every_ is None):
        raise InvalidSetting("a schedule has cron or every, one of them", hint='cron="0 9 * * *", or every=3600')
    if every_ is None:
        if anchor is not None:
            raise InvalidSetting("anchor belongs to every", hint="leave it out: a cron expression says when")
        return cron(cron_, tz)
    if tz not in ("UTC", None):
        raise InvalidSetting("tz belongs to cron", hint="an interval is the same in every time zone")
    return every(every_, anchor)


def policy(missed: object) -> Missed:
    """A policy for missed slots, or InvalidSetting naming `missed`."""
    if missed not in get_args(Missed):
        raise InvalidSetting(f"missed cannot be {missed!r}", hint="skip, once or all")
    return missed  # type: ignore[return-value]


def _zone(tz: object) -> ZoneInfo:
    try:
        return ZoneInfo(tz)  # type: ignore[arg-type]  # what is no text raises TypeError
    except (KeyError, ValueError, OSError, TypeError, AttributeError):
        hint = "a name of the IANA database, such as Asia/Tokyo or UTC"
        raise InvalidSetting(f"tz cannot be {tz!r}: there is no such time zone", hint=hint) from None


# -------------------------------------------------------------------------------------------------- slots


def next_after(when: When, moment: datetime) -> datetime:
    """The first slot after `moment`, in UTC."""
    match when:
        case Every():
            step = round(when.seconds * 1e6)
            passed = (moment - when.anchor) // _MICROSECOND // step
            return when.anchor + (passed + 1) * step * _MICROSECOND
        case Cron():
            zone = _zone(when.tz)
            minute_and_hour = when.expression.split()[-5:-3]
            named = not any(field.startswith("*") for field in minute_and_hour)
            return (_next_named if named else _next_shown)(when.expression, zone, moment)


def _check_comes(expression: CronSim) -> None:
    """CronSimError if no day matches. Months are of 28 kinds, by their length and their first weekday: not every day
    of many years must be looked at. All kinds come within 28 years.
    """
    kinds: set[tuple[int, int]] = set()
    for year in range(2000, 2028):
        for month in expression.months:
            kind = monthrange(year, month)
            if kind not in kinds:
                kinds.add(kind)
                if any(expression.match_day(date(year, month, day)) for day in range(1, kind[1] + 1)):
                    return
    raise CronSimError("it never comes")


def _next_wall(expression: str, wall: datetime) -> datetime:
    """The next time after `wall` that matches, on a clock that nobody turns."""
    try:
        return next(CronSim(expression, wall))
    except StopIteration:
        raise CronSimError("it never comes") from None


def _next_named(expression: str, zone: ZoneInfo, moment: datetime) -> datetime:
    """Named times: each once a day, whatever the clock does."""
    wall = _wall(zone, moment)
    while True:
        wall = _next_wall(expression, wall)
        slot = _first(zone, wall)
        if slot > moment:  # not so where the clock shows a time again whose first showing was the slot
            return slot


def _next_shown(expression: str, zone: ZoneInfo, moment: datetime) -> datetime:
    """Every moment at which the clock matches: from one turn of the clock to the next its offset is one number."""
    wall = _wall(zone, moment)
    last = wall.year + _YEARS
    while wall.year <= last:
        matching = _next_wall(expression, wall)
        # Nothing matches before. No clock is two days from UTC, so turns before that day do not matter.
        moment = max(moment, (matching - 2 * _DAY).replace(tzinfo=UTC))
        slot = (matching - _offset(zone, moment)).replace(tzinfo=UTC)
        turn = _turn(zone, moment, slot)
        if turn is None:
            return slot
        moment, wall = turn, _wall(zone, turn) - _SECOND  # the moment of the turn can be a slot itself
    raise CronSimError("it never comes: the clock jumps over it")


def _wall(zone: ZoneInfo, moment: datetime) -> datetime:
    """What a clock there shows: naive, so that nothing corrects it."""
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def _offset(zone: ZoneInfo, moment: datetime) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()


def _first(zone: ZoneInfo, wall: datetime) -> datetime:
    """The first moment at which a clock there shows `wall`; if it never does, the moment at which it jumps over it."""
    slot = wall.replace(tzinfo=zone).astimezone(UTC)
    if _wall(zone, slot) == wall:
        return slot
    before = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    return _turn(zone, before, slot) or slot


def _turn(zone: ZoneInfo, after: datetime, until: datetime) -> datetime | None:
    """When the clocks there are first turned, after one moment and not after another. Nobody does it twice a day."""
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
    """`first`, and every slot after it that is not after `until`."""
    while first <= until:
        yield first
        first = next_after(when, first)


def due_slots(when: When, next_run_at: datetime, now: datetime, missed: Missed) -> Due:
    """What to do at `now`, when the slot at `next_run_at` and those after it have not been fired.

    Slots up to LATE ago are in time and always fired. Of older ones `skip` fires none, `once` the last, unless one that
    is in time is fired anyway, `all` each of them, at most MOST at once.
    """
    due = list(islice(slots(when, next_run_at, now), MOST))
    following = next_after(when, due[-1]) if due else next_run_at
    if missed == "all" or not due:
        return Due(tuple(due), 0, following)
    if following <= now:  # so many that nobody counts them: only the last ones matter
        due = [*due, *_last(when, now)]
        following = next_after(when, due[-1])
    in_time = tuple(slot for slot in due if slot >= now - LATE)
    fire = in_time or (due[-1:] if missed == "once" else ())
    return Due(tuple(fire), len(due) - len(fire), following)


def _last(when: When, now: datetime) -> list[datetime]:
    """The last slots until now, those in time among them; there are some, it was looked."""
    span = LATE
    while True:
        if found := list(slots(when, next_after(when, now - span - _MICROSECOND), now)):
            return found
        span *= 2
