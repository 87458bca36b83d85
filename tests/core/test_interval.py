"""Durations on the wire, and how long a receiver asks to be left alone."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given

from tests.core.making import any_text, quick
from todoku.core.duration import DAY, interval, parse_duration, relative_time, retry_after
from todoku.core.errors import InvalidMessage

NOW = datetime(2026, 10, 21, 7, 28, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10s", 10), ("1m", 60), ("2h", 7200), ("7d", 7 * DAY), ("1d10h", 34 * 3600), ("1h30m3s", 5403), ("500ms", 0.5),
        ("1.5h", 5400), (".5s", 0.5), ("1.s", 1), ("0", 0), ("0s", 0), ("6m0s", 360), ("1s1s", 2), ("250us", 0.00025),
        ("250µs", 0.00025), ("5000ns", 0.000005), ("366d", 366 * DAY),
    ],
)  # fmt: skip
def test_a_duration_is_read(text: str, expected: float) -> None:
    assert interval(text, what="Upstash-Delay") == pytest.approx(expected)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "10", "10 s", " 10s", "10s ", "-10s", "+10s", "s", "10x", "10S", "1h30", "ms", "1e3s", "１s",
        "1,5s", "10s;",
        "inf", "nan", "infs", "367d", "999999999999999999d", "1s" * 40, "9" * 30 + "s", "1..5s", "10s\n", "\x00", "1w",
    ],
)  # fmt: skip
def test_what_is_no_duration_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidMessage, match="Upstash-Delay") as refused:
        interval(text, what="Upstash-Delay")
    assert refused.value.hint


@pytest.mark.parametrize(
    ("text", "expected"), [("90", 90), ("1.5", 1.5), ("0", 0), ("1w2d", 9 * DAY), ("2w", 14 * DAY), ("1h30m", 5400)]
)
def test_the_command_line_may_leave_out_the_unit_and_has_weeks(text: str, expected: float) -> None:
    assert parse_duration(text, bare=True, weeks=True) == expected


@pytest.mark.parametrize("text", ["", "soon", "1x", "1h30", "-1", "1 w", "9" * 100])
def test_the_command_line_refuses_what_is_no_duration(text: str) -> None:
    assert parse_duration(text, bare=True, weeks=True) is None


def test_a_longest_may_be_named() -> None:
    assert interval("7d", what="period", longest=7 * DAY) == 7 * DAY
    with pytest.raises(InvalidMessage, match="period"):
        interval("7d1s", what="period", longest=7 * DAY)


@quick
@given(any_text)
def test_no_text_does_anything_but_last_or_be_refused(text: str) -> None:
    retry_after({"Retry-After": text}, NOW)
    with suppress(InvalidMessage):
        assert interval(text, what="x") >= 0


def date(seconds: float) -> str:
    return format_datetime(datetime.fromtimestamp(NOW + seconds, UTC), usegmt=True)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        pytest.param({"Retry-After": "120"}, 120, id="seconds"),
        pytest.param({"retry-after": " 1.5 "}, 1.5, id="in any case, with parts of a second"),
        pytest.param({"Retry-After": date(90)}, 90, id="a date"),
        pytest.param({"Retry-After": date(-90)}, 0, id="a date that is over"),
        pytest.param({"Retry-After": "6m0s"}, 360, id="a duration"),
        pytest.param({"X-RateLimit-Reset": "7"}, 7, id="a rate limit's reset"),
        pytest.param({"x-ratelimit-reset-requests": "20ms"}, 0.02, id="of requests"),
        pytest.param({"X-Ratelimit-Reset-Tokens": "1m"}, 60, id="of tokens"),
        pytest.param({"X-RateLimit-Reset": "7", "Retry-After": "5"}, 5, id="Retry-After comes first"),
        pytest.param({"Retry-After": "soon", "X-RateLimit-Reset": "7"}, 7, id="what cannot be read is passed over"),
        pytest.param({"Retry-After": "86400"}, 86_400, id="a day is the most"),
        pytest.param({"Retry-After": "86401"}, None, id="more is a mistake"),
        pytest.param({"X-RateLimit-Reset": str(int(NOW) + 60)}, None, id="seconds since 1970 are no seconds to wait"),
        pytest.param({"Retry-After": date(2 * DAY)}, None, id="a date too far away"),
        pytest.param({"Retry-After": "-1"}, None, id="before now"),
        pytest.param({"Retry-After": ""}, None, id="nothing"),
        pytest.param({"Retry-After": "inf"}, None, id="for ever"),
        pytest.param({"Retry-After": "Wed, 99 Oct 2026 07:28:00 GMT"}, None, id="no such day"),
        pytest.param({"Retry-After": "Mon, 01 Jan 99999999 00:00:00 GMT"}, None, id="no such year"),
        pytest.param({"Retry-After": "9" * 5000}, None, id="a long number"),
        pytest.param({"Content-Type": "text/plain"}, None, id="not asked"),
    ],
)
def test_a_receiver_asks_to_wait(headers: dict[str, str], expected: float | None) -> None:
    found = retry_after(headers, NOW)
    assert found == (expected if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "now"), (0.9, "now"), (-0.9, "now"), (1, "1 s ago"), (59.9, "59 s ago"), (60, "1 min ago"),
        (3599, "59 min ago"), (7200, "2 h ago"), (86_400 * 40, "40 d ago"), (-25, "in 25 s"), (-3600, "in 1 h"),
    ],
)  # fmt: skip
def test_a_time_is_shown_by_how_far_it_is_from_now(seconds: float, text: str) -> None:
    assert relative_time(seconds) == text
