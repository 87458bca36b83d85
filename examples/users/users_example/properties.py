"""The additional properties of a user: hobby, location and score, as far as they make sense."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

import todoku
from users_example.payload import ValidationMode

_LONGEST = 200


class Properties(msgspec.Struct, frozen=True, kw_only=True):
    """What could be read, and what was wrong with the rest."""

    hobby: str | None
    location: str | None
    score: float | None
    warnings: tuple[str, ...]


class _Wrong(Exception):
    """A property that makes no sense, and why."""


def parsed(props: Mapping[str, object], mode: ValidationMode) -> Properties:
    """hobby, location, score. What is absent is None; others' properties are left alone.

    What makes no sense: strict aborts the job with the reason BAD_<NAME>, because another attempt would read the same;
    lenient takes it for absent, and says so in `warnings`.
    """
    warnings: list[str] = []
    read: dict[str, object] = {}
    for name, reader in (("hobby", _text), ("location", _text), ("score", _number)):
        try:
            read[name] = None if props.get(name) is None else reader(props[name])
        except _Wrong as wrong:
            said = f"additional_props.{name}: {wrong}"
            if mode == "strict":
                raise todoku.Abort(f"BAD_{name.upper()}", said) from None
            warnings.append(said)
            read[name] = None
    return Properties(**read, warnings=tuple(warnings))  # type: ignore[arg-type]


def _text(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value.strip()) <= _LONGEST:
        raise _Wrong(f"{_short(value)} is no text of 1 to {_LONGEST} characters")
    return value.strip()


def _number(value: object) -> float:
    try:
        number = float(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise _Wrong(f"{_short(value)} is no number")
    return number


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:39]}…"
