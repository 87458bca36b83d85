"""Schedules in words, in three languages; what cannot be said stays an expression."""

from __future__ import annotations

import pytest

from todoku.engine.schedule_words import cron_in_words, interval_in_words, schedule_in_words


def test_a_cron_expression_is_said_in_each_language() -> None:
    assert cron_in_words("0 9 * * 1-5") == "At 09:00, Monday through Friday"
    said = {cron_in_words("0 9 * * 1-5", language) for language in ("en", "ja", "zh")}
    assert len(said) == 3
    assert not any("0 9 *" in text for text in said)
    assert cron_in_words("0 9 * 5 1-5", "ja") == "09:00、月曜日 から 金曜日 まで、5月 でのみ"
    assert cron_in_words("0 9 * 5 0", "zh") == "在 09:00, 仅在 星期日, 仅在 5月"


@pytest.mark.parametrize("expression", ["not a cron", ""])
def test_what_the_library_refuses_stays_as_it_is(expression: str) -> None:
    assert cron_in_words(expression) == expression


@pytest.mark.parametrize(
    ("seconds", "english", "japanese", "chinese"),
    [
        (1, "every second", "1秒ごと", "每 1 秒"),
        (90, "every 90 seconds", "90秒ごと", "每 90 秒"),
        (5400, "every 90 minutes", "90分ごと", "每 90 分钟"),
        (7200, "every 2 hours", "2時間ごと", "每 2 小时"),
        (86_400, "every day", "1日ごと", "每 1 天"),
        (0.5, "every 0.5 seconds", "0.5秒ごと", "每 0.5 秒"),
    ],
)
def test_an_interval_is_said_in_its_largest_unit(seconds: float, english: str, japanese: str, chinese: str) -> None:
    assert [interval_in_words(seconds, "en"), interval_in_words(seconds, "ja"), interval_in_words(seconds, "zh")] == [
        english,
        japanese,
        chinese,
    ]
    assert schedule_in_words("every 1 s", seconds) == english
    assert schedule_in_words("* * * * *", None) == "Every minute"
