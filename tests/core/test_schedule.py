"""Schedules: cron on the clocks of a time zone over every turn of them, intervals, and what becomes of missed slots."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from tests.core.making import quick
from todoku.core.errors import InvalidSetting
from todoku.core.schedule import LATE, MOST, Cron, Due, Every, When, cron, due_slots, every, next_after, policy, timing

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def slots_after(when: When, moment: datetime, number: int) -> list[datetime]:
    found = []
    for _ in range(number):
        moment = next_after(when, moment)
        found.append(moment)
    return found


# Zone, expression, from when, and the slots on its clocks. The turns of 2026:
# Berlin: 29 March 02:00 → 03:00, 25 October 03:00 → 02:00. New York: 8 March 02:00 → 03:00, 1 November 02:00 → 01:00.
# Lord Howe, by half an hour: 5 April 02:00 → 01:30, 4 October 02:00 → 02:30. Tokyo and UTC: never.
TABLE = [
    pytest.param(
        "Asia/Tokyo", "0 9 * * *", "2026-03-28T12:00+09:00",
        ["2026-03-29T09:00+09:00", "2026-03-30T09:00+09:00"],
        id="the same time every day",
    ),
    pytest.param(
        "UTC", "30 2 * * *", "2026-03-28T12:00+00:00",
        ["2026-03-29T02:30+00:00", "2026-03-30T02:30+00:00"],
        id="UTC has no turns",
    ),
    pytest.param(
        "Europe/Berlin", "0 9 * * *", "2026-03-28T00:00+01:00",
        ["2026-03-28T09:00+01:00", "2026-03-29T09:00+02:00", "2026-03-30T09:00+02:00"],
        id="nine o'clock stays nine o'clock",
    ),
    pytest.param(
        "Europe/Berlin", "30 2 * * *", "2026-03-28T12:00+01:00",
        ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"],
        id="a named time in the gap: at its end",
    ),
    pytest.param(
        "Europe/Berlin", "0,30 2 * * *", "2026-03-28T12:00+01:00",
        ["2026-03-29T03:00+02:00", "2026-03-30T02:00+02:00", "2026-03-30T02:30+02:00"],
        id="two named times in the gap: once",
    ),
    pytest.param(
        "Europe/Berlin", "0 30 2 * * *", "2026-03-28T12:00+01:00",
        ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"],
        id="with a field for seconds it is the same",
    ),
    pytest.param(
        "Europe/Berlin", "30 2 * * *", "2026-10-24T12:00+02:00",
        ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"],
        id="a named time that comes twice: the first time",
    ),
    pytest.param(
        "Europe/Berlin", "30 2 * * *", "2026-10-25T02:10+01:00",
        ["2026-10-26T02:30+01:00"],
        id="asked in the second hour, the first is over",
    ),
    pytest.param(
        "Europe/Berlin", "*/30 * * * *", "2026-03-29T01:10+01:00",
        ["2026-03-29T01:30+01:00", "2026-03-29T03:00+02:00", "2026-03-29T03:30+02:00"],
        id="every half hour over the gap",
    ),
    pytest.param(
        "Europe/Berlin", "*/30 * * * *", "2026-10-25T01:40+02:00",
        ["2026-10-25T02:00+02:00", "2026-10-25T02:30+02:00", "2026-10-25T02:00+01:00", "2026-10-25T02:30+01:00",
         "2026-10-25T03:00+01:00"],
        id="every half hour through the hour that comes twice",
    ),
    pytest.param(
        "Europe/Berlin", "*/30 2 * * *", "2026-03-28T12:00+01:00",
        ["2026-03-30T02:00+02:00", "2026-03-30T02:30+02:00"],
        id="what the clock does not show is not fired",
    ),
    pytest.param(
        "America/New_York", "30 2 * * *", "2026-03-07T12:00-05:00",
        ["2026-03-08T03:00-04:00", "2026-03-09T02:30-04:00"],
        id="the gap in New York",
    ),
    pytest.param(
        "America/New_York", "15 1 * * *", "2026-10-31T12:00-04:00",
        ["2026-11-01T01:15-04:00", "2026-11-02T01:15-05:00"],
        id="the hour that comes twice in New York",
    ),
    pytest.param(
        "America/New_York", "0 * * * *", "2026-11-01T00:30-04:00",
        ["2026-11-01T01:00-04:00", "2026-11-01T01:00-05:00", "2026-11-01T02:00-05:00"],
        id="every hour is every hour",
    ),
    pytest.param(
        "Australia/Lord_Howe", "15 2 * * *", "2026-10-03T12:00+10:30",
        ["2026-10-04T02:30+11:00", "2026-10-05T02:15+11:00"],
        id="a gap of half an hour",
    ),
    pytest.param(
        "Australia/Lord_Howe", "45 1 * * *", "2026-04-04T12:00+11:00",
        ["2026-04-05T01:45+11:00", "2026-04-06T01:45+10:30"],
        id="half an hour that comes twice",
    ),
    pytest.param(
        "Australia/Lord_Howe", "*/15 2 * * *", "2026-04-04T12:00+11:00",
        ["2026-04-05T02:00+10:30", "2026-04-05T02:15+10:30", "2026-04-05T02:30+10:30"],
        id="nothing is lost behind it",
    ),
    pytest.param(
        "Australia/Lord_Howe", "*/15 * * * *", "2026-04-05T01:40+11:00",
        ["2026-04-05T01:45+11:00", "2026-04-05T01:30+10:30", "2026-04-05T01:45+10:30", "2026-04-05T02:00+10:30"],
        id="a quarter of an hour apart all the way",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("tz", "expression", "start", "expected"), TABLE)
def test_a_cron_expression_fires_on_the_clocks_of_its_zone(
    tz: str, expression: str, start: str, expected: list[str]
) -> None:
    """Issue 4: cron with time zones and DST right."""
    found = slots_after(cron(expression, tz), at(start), len(expected))
    assert [slot.astimezone(ZoneInfo(tz)).isoformat(timespec="minutes") for slot in found] == expected
    assert all(slot.tzinfo is UTC for slot in found)


ZONES = ["Asia/Tokyo", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC", "Africa/Casablanca"]
moments = st.integers(0, 400 * 86_400 * 10**6).map(
    lambda micros: at("2025-12-01T00:00Z") + timedelta(microseconds=micros)
)
zones = st.sampled_from(ZONES)


@pytest.mark.parametrize("tz", ZONES)
@pytest.mark.parametrize("expression", ["*/20 * * * *", "10 */2 * * *", "*/15 1-3 * * *"])
def test_with_a_star_it_fires_whenever_the_clock_matches_and_never_else(tz: str, expression: str) -> None:
    """Every minute of 2026 around the turns, looked at one by one, against the slots."""
    zone = ZoneInfo(tz)
    for first in ("2026-03-07T00:00Z", "2026-03-28T00:00Z", "2026-04-04T00:00Z", "2026-10-03T00:00Z",
                  "2026-10-24T00:00Z", "2026-10-31T00:00Z"):  # fmt: skip
        begin = at(first)
        minutes = [begin + MINUTE * number for number in range(1, 2 * 24 * 60)]
        expected = [minute for minute in minutes if _shows(expression, minute.astimezone(zone))]
        assert slots_after(cron(expression, tz), begin, len(expected)) == expected


def _shows(expression: str, local: datetime) -> bool:
    wall = local.replace(tzinfo=None)
    return next(CronSim(expression, wall - timedelta(seconds=1))) == wall


@pytest.mark.parametrize("tz", ZONES)
def test_a_named_time_comes_once_on_every_day_of_the_year(tz: str) -> None:
    zone = ZoneInfo(tz)
    for expression in ("30 2 * * *", "0 2 * * *", "45 1 * * *", "0 0 * * *", "0 3 * * *"):
        found = slots_after(cron(expression, tz), datetime(2026, 1, 1, tzinfo=zone) - MINUTE, 365)
        days = [slot.astimezone(zone).date() for slot in found]
        assert days == [date(2026, 1, 1) + DAY * number for number in range(365)], expression


@quick
@given(zones, st.sampled_from(["*/7 * * * *", "30 2 * * *", "5 1-3 * * *", "0 9 * * MON", "*/40 30 1 * * *"]), moments)
def test_a_slot_is_after_the_moment_and_the_first_one_there(tz: str, expression: str, moment: datetime) -> None:
    when = cron(expression, tz)
    slot = next_after(when, moment)
    assert slot > moment
    assert next_after(when, slot - timedelta(microseconds=1)) == slot
    assert next_after(when, moment + (slot - moment) / 2) == slot


@quick
@given(st.integers(1, 10**6), moments)
def test_an_interval_is_counted_from_its_anchor(seconds: int, moment: datetime) -> None:
    """So that a restart moves nothing, and every process knows the same slots."""
    slot = next_after(every(seconds), moment)
    assert moment < slot <= moment + timedelta(seconds=seconds)
    assert slot.timestamp() % seconds == 0
    anchored = every(timedelta(seconds=seconds), at("2026-01-01T00:00:07+01:00"))
    assert (next_after(anchored, moment) - anchored.anchor) % timedelta(seconds=seconds) == timedelta()


def test_a_leap_day_is_waited_for() -> None:
    assert next_after(cron("0 0 29 2 *", "Asia/Tokyo"), at("2026-01-01T00:00Z")) == at("2028-02-29T00:00+09:00")


# ------------------------------------------------------------------------------------------------- missed

HOURLY = cron("0 * * * *")
NINE = at("2026-01-05T09:00Z")


def hours(first: int, last: int) -> tuple[datetime, ...]:
    return tuple(NINE + HOUR * number for number in range(first, last + 1))


@pytest.mark.parametrize(
    ("late", "missed", "fire", "passed"),
    [
        pytest.param(timedelta(0), "skip", (0, 0), 0, id="to the second"),
        pytest.param(LATE, "skip", (0, 0), 0, id="a little late is in time"),
        pytest.param(LATE + MINUTE, "skip", None, 1, id="late, and skipped"),
        pytest.param(LATE + MINUTE, "once", (0, 0), 0, id="late, and made up for"),
        pytest.param(3 * HOUR + MINUTE, "skip", None, 4, id="four skipped"),
        pytest.param(3 * HOUR + MINUTE, "once", (3, 3), 3, id="the last one for four"),
        pytest.param(3 * HOUR + MINUTE, "all", (0, 3), 0, id="all four"),
        pytest.param(3 * HOUR, "skip", (3, 3), 3, id="the last one is in time: only that"),
        pytest.param(3 * HOUR, "once", (3, 3), 3, id="the last one is in time: no second for the missed ones"),
    ],
)
def test_what_becomes_of_missed_slots(late: timedelta, missed: str, fire: tuple[int, int] | None, passed: int) -> None:
    """Issue 4: policy for missed firings (skip / once / all)."""
    due = due_slots(HOURLY, NINE, NINE + late, policy(missed))
    assert due == Due(() if fire is None else hours(*fire), passed, NINE + HOUR * (late // HOUR + 1))


def test_nothing_is_due_before_its_time() -> None:
    assert due_slots(HOURLY, NINE, NINE - timedelta(microseconds=1), "all") == Due((), 0, NINE)


@pytest.mark.parametrize("when", [every(1), cron("* * * * * *", "Europe/Berlin")])
def test_all_of_very_many_are_fired_in_rounds(when: When) -> None:
    now = NINE + timedelta(seconds=2 * MOST + 4)
    rounds = [due_slots(when, NINE, now, "all")]
    while rounds[-1].next <= now:
        rounds.append(due_slots(when, rounds[-1].next, now, "all"))
    assert [len(due.fire) for due in rounds] == [MOST, MOST, 5]
    fired = [slot for due in rounds for slot in due.fire]
    assert fired == [NINE + timedelta(seconds=number) for number in range(2 * MOST + 5)]


@pytest.mark.parametrize("when", [every(1), cron("* * * * * *", "Europe/Berlin"), cron("* 9 * * *", "Asia/Tokyo")])
@pytest.mark.parametrize("missed", ["skip", "once"])
def test_years_of_missed_slots_are_passed_over_without_counting_them(when: When, missed: str) -> None:
    first = next_after(when, NINE)
    now = NINE + 900 * DAY
    due = due_slots(when, first, now, policy(missed))
    assert due.next == next_after(when, now)
    assert due.passed >= MOST
    recent = tuple(slot for slot in slots_after(when, now - LATE - timedelta(microseconds=1), 11) if slot <= now)
    if recent or missed == "skip":
        assert due.fire == recent
    else:
        (last,) = due.fire
        assert next_after(when, last) == due.next


@quick
@given(
    st.sampled_from([every(1), every(90), cron("*/7 * * * *"), cron("30 2 * * *", "Europe/Berlin")]),
    moments,
    st.lists(st.timedeltas(timedelta(0), timedelta(hours=2)), min_size=1, max_size=10),
)
def test_however_often_one_looks_all_fires_each_slot_once(when: When, moment: datetime, waits: list[timedelta]) -> None:
    """The slots of all rounds together are the slots there are, in order and without a gap."""
    expected_next = first = next_after(when, moment)
    fired: list[datetime] = []
    for wait in waits:
        moment += wait
        due = due_slots(when, expected_next, moment, "all")
        fired += due.fire
        expected_next = due.next
    assert fired == list(islice(iter([first, *slots_after(when, first, len(fired))]), len(fired)))


# ---------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("", "wrong number of fields"),
        ("* * * *", "wrong number of fields"),
        ("* * * * * * *", "wrong number of fields"),
        ("@daily", "wrong number of fields"),
        ("60 * * * *", "bad minute"),
        ("* 24 * * *", "bad hour"),
        ("* * 32 * *", "bad day-of-month"),
        ("* * * 13 *", "bad month"),
        ("* * * * 8", "bad day-of-week"),
        ("60 * * * * *", "bad second"),
        ("*/0 * * * *", "bad minute"),
        ("0 0 31 2 *", "bad day-of-month"),
        ("0 0 30 2 1#5 x", "bad"),
        (None, "cron cannot be None"),
        (9, "cron cannot be 9"),
        ("*" * 300, "cron cannot be"),
    ],
)
def test_a_bad_cron_expression_is_refused_and_the_field_named(expression: object, told: str) -> None:
    with pytest.raises(InvalidSetting, match=r"^cron cannot be") as refusal:
        cron(expression)
    assert told in str(refusal.value)
    assert "five fields" in refusal.value.hint


@pytest.mark.parametrize("tz", ["Mars/Olympus", "Europe", "", "../etc/passwd", "/etc/localtime", None, 9, "\0"])
def test_an_unknown_time_zone_is_refused(tz: object) -> None:
    with pytest.raises(InvalidSetting, match=r"^tz cannot be .*: there is no such time zone") as refusal:
        cron("* * * * *", tz)
    assert "Asia/Tokyo" in refusal.value.hint


@pytest.mark.parametrize("duration", [0, -1, 0.5, "soon", None, float("nan"), float("inf"), timedelta(0), 10**12])
def test_an_interval_is_at_least_a_second(duration: object) -> None:
    with pytest.raises(InvalidSetting, match=r"^every cannot be"):
        every(duration)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"cron_": None, "every_": None}, "needs either cron or every"),
        ({"cron_": "* * * * *", "every_": 5}, "needs either cron or every"),
        ({"cron_": None, "every_": 5, "tz": "Asia/Tokyo"}, "tz can only be used with cron"),
        ({"cron_": "* * * * *", "every_": None, "anchor": NINE}, "anchor can only be used with every"),
        ({"cron_": None, "every_": 5, "anchor": at("2026-01-01T00:00")}, "anchor cannot be"),
    ],
)
def test_a_schedule_says_when_in_one_way(given: dict[str, object], told: str) -> None:
    with pytest.raises(InvalidSetting, match=told):
        timing(**given)  # type: ignore[arg-type]


def test_what_is_given_rightly_is_taken() -> None:
    assert timing("0  9 * * *", None, "Asia/Tokyo") == Cron("0 9 * * *", "Asia/Tokyo")
    assert timing(None, timedelta(minutes=1)) == Every(60.0)
    assert [str(cron("0 9 * * *")), str(every(90))] == ["0 9 * * *", "every 90 s"]
    assert str(every(30 * 86_400)) == "every 2592000 s"


def test_a_policy_is_one_of_three() -> None:
    with pytest.raises(InvalidSetting, match="missed cannot be 'never'"):
        policy("never")
