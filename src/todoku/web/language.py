"""The languages of the dashboard. Catalogs translate English sentences; what they lack stays English."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Final

LANGUAGES: Final = {"en": "English", "ja": "日本語", "zh": "中文"}
"""The languages by their codes, each named in itself."""

LOCALE: Final = Path(__file__).parent / "locale"
_COLUMNS: Final = ("ja", "zh")
"""The languages of the translations in a catalog, in their order."""


@cache
def catalog(language: str) -> dict[str, str]:
    """Returns the translations into a language, from all `locale/*.toml`: `"English" = ["日本語", "中文"]`."""
    if language not in _COLUMNS:
        return {}
    found: dict[str, list[str]] = {}
    for file in sorted(LOCALE.glob("*.toml")):
        found |= tomllib.loads(file.read_text("utf-8"))
    return {text: translated[_COLUMNS.index(language)] for text, translated in found.items()}


def translate(language: str, text: str, **values: object) -> str:
    """Returns an English sentence in another language, with `{name}` replaced by values."""
    found = catalog(language).get(text, text)
    return found.format(**values) if values else found


def choose_language(cookie: str | None, accepted: str) -> str:
    """Returns the language of a cookie, else the first of an `Accept-Language` header that there is, else English."""
    if cookie in LANGUAGES:
        return str(cookie)
    ranked = []
    for place, part in enumerate(accepted.split(",")[:20]):
        name, _, quality = part.partition(";q=")
        ranked.append((-_quality(quality), place, name.strip().lower().split("-")[0]))
    return next((name for _, _, name in sorted(ranked) if name in LANGUAGES), "en")


def _quality(text: str) -> float:
    try:
        return float(text) if text else 1.0
    except ValueError:
        return 0.0
