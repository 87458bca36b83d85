"""A schedule in words: cron expressions by the library cron-descriptor (extra `server`), intervals by own words."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, Literal, assert_never

Language = Literal["en", "ja", "zh"]

_LOCALES: Final[dict[Language, str]] = {"en": "en_US", "ja": "ja_JP", "zh": "zh_CN"}
_UNITS: Final = (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1))
_JAPANESE: Final = {"day": "日", "hour": "時間", "minute": "分", "second": "秒"}
_CHINESE: Final = {"day": "天", "hour": "小时", "minute": "分钟", "second": "秒"}


@lru_cache(maxsize=1024)
def cron_in_words(expression: str, language: Language = "en") -> str:
    """Says in words when a cron expression fires; the expression itself if the library is missing or refuses it."""
    try:
        from cron_descriptor import ExpressionDescriptor, Options  # noqa: PLC0415 - the extra `server`
    except ImportError:
        return expression
    try:
        options = Options()
        options.locale_code, options.use_24hour_time_format = _LOCALES[language], True
        return ExpressionDescriptor(expression, options).get_description() or expression
    except Exception:  # noqa: BLE001 - the library raises its own errors and others; the expression says it, too
        return expression


def interval_in_words(seconds: float, language: Language = "en") -> str:
    """Says an interval in words: "every 90 minutes"."""
    name, size = next(((name, size) for name, size in _UNITS if seconds >= size and seconds % size == 0), ("second", 1))
    number = f"{seconds / size:g}"
    match language:
        case "en":
            return f"every {name}" if number == "1" else f"every {number} {name}s"
        case "ja":
            return f"{number}{_JAPANESE[name]}ごと"
        case "zh":
            return f"每 {number} {_CHINESE[name]}"
        case _:
            assert_never(language)


def schedule_in_words(when: str, every: float | None, language: Language = "en") -> str:
    """Says in words when a schedule fires: `every` seconds, or by the cron expression `when`."""
    return cron_in_words(when, language) if every is None else interval_in_words(every, language)
