"""The JSON form of values that json does not know: records, times, sets. Equal values have equal texts everywhere.

Digests depend on it: those of a step's arguments (R14), of `unique_for`, and of bodies under an idempotency key.
"""

from __future__ import annotations

import json
from dataclasses import asdict, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final
from uuid import UUID

import msgspec

from todoku.engine.encryption.secret_ref import Ref


def _plain(value: Any) -> object:
    """What json cannot take by itself, in its usual JSON form."""
    if (record := _record(value)) is not None:
        return record
    match value:
        case Ref():
            return value.encoded()
        case datetime() if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone")
        case datetime() | date() | time():
            return value.isoformat()
        case UUID() | Decimal():
            return str(value)
        case Enum():
            return value.value
        case timedelta():
            return msgspec.to_builtins(value)  # ISO 8601, which every reader knows for a duration
        case set() | frozenset():
            return sorted(value, key=ENCODER.encode)  # in one order in every process, or its digest would differ
        case _:
            raise TypeError(f"{type(value).__name__} has no JSON form")


def _record(value: Any) -> Any:
    """A dataclass, msgspec struct or pydantic model as its fields; None: it is none of these."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, msgspec.Struct):
        return _fields(value)
    if callable(dump := getattr(value, "model_dump", None)):
        return _with_sorted_sets(dump(mode="json"), value)
    return None


def _fields(value: msgspec.Struct) -> Any:
    try:
        return msgspec.to_builtins(value, enc_hook=_plain, order="deterministic")  # of sets, as in `_plain`
    except TypeError as error:
        if "'<' not supported" not in str(error):
            raise
        what = f"{type(value).__name__} has a set, or a dict, whose values cannot be sorted"
        raise TypeError(f"{what}: make it a list, or of one type") from None


def _with_sorted_sets(dumped: Any, value: Any) -> Any:
    """Returns the JSON form of a model with its sets in one order: the order that pydantic gives differs by process."""
    match value, dumped:
        case (set() | frozenset(), list()):
            return sorted(dumped, key=ENCODER.encode)
        case (list() | tuple(), list()) if len(value) == len(dumped):
            return [_with_sorted_sets(each, its) for each, its in zip(dumped, value, strict=True)]
        case (dict(), dict()) if value.keys() == dumped.keys():
            return {name: _with_sorted_sets(each, value[name]) for name, each in dumped.items()}
        case (_, dict()) if hasattr(value, "__dict__"):
            its = vars(value)
            return {name: _with_sorted_sets(each, its.get(name)) for name, each in dumped.items()}
        case _:
            return dumped


ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)
