"""A schedule in words: cron expressions by the library cron-descriptor (extra `server`), intervals by own words."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Literal, assert_never

Language = Literal["en", "ja", "zh"]

_LOCALES: Final[dict[Language, str]] = {"en": "en_US", "ja": "ja_JP", "zh": "zh_CN"}
_UNITS: Final = (("day", 86_400), ("hour", 3600), ("minute", 60), ("second", 1))
_DAYS: Final = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_NAMED: Final = re.compile("|".join((*_DAYS, *_MONTHS)))
_NAMES: Final[dict[Language, dict[str, str]]] = {
    "en": {},
    "ja": dict(zip(_DAYS, (f"{day}曜日" for day in "日月火水木金土"), strict=True)),
    "zh": dict(zip(_DAYS, (f"星期{day}" for day in "日一二三四五六"), strict=True)),
}
_SMOOTHED: Final[dict[Language, tuple[tuple[str, str], ...]]] = {
    "en": (),
    "ja": (("次において実施 ", ""), ("次の最終日に", "月の最終日に"), (", 毎時", "")),
    "zh": (),
}
"""Parts of the library's translations that read badly, and what stands there instead."""

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
        return _translated(ExpressionDescriptor(expression, options).get_description(), language) or expression
    except Exception:  # noqa: BLE001 - the library raises its own errors and others; the expression says it, too
        return expression


def _translated(text: str, language: Language) -> str:
    """Translates names of days and months, which the library takes from the locale of the process."""
    for part, instead in _SMOOTHED[language]:
        text = text.replace(part, instead)
    if language == "en":
        return text
    names = _NAMES[language] | {name: f"{number}月" for number, name in enumerate(_MONTHS, 1)}
    return _NAMED.sub(lambda found: names[found[0]], text)


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
