"""The digest of a body: SHA-256 of its canonical JSON. Equal bodies spelled differently have equal digests."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Collection
from typing import Final

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

VERSION: Final = "1"
"""Prefix of each digest, so that a digest of a later canonical form is not taken for a conflict."""

_EXACT_INTEGERS: Final = 2.0**53


def canonical(value: Json, *, excluded: Collection[str] = ()) -> str:
    """Returns canonical JSON: sorted keys, no spaces, NFC strings, 1.0 as 1, without the top-level names `excluded`."""
    if isinstance(value, dict) and excluded:
        value = {name: item for name, item in value.items() if name not in excluded}
    return json.dumps(_normalize(value), sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def digest(value: Json, *, excluded: Collection[str] = ()) -> str:
    """Returns `version:sha256` of the canonical form of a body."""
    text = canonical(value, excluded=excluded)
    return f"{VERSION}:{hashlib.sha256(text.encode()).hexdigest()}"


def digest_bytes(value: bytes) -> str:
    """Returns `version:sha256` of a body that is not JSON."""
    return f"{VERSION}:{hashlib.sha256(value).hexdigest()}"


def differing_fields(one: Json, other: Json) -> list[str]:
    """Returns the top-level names in which two bodies differ, for the message of an IdempotencyConflict."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return [] if canonical(one) == canonical(other) else ["the body"]
    fields, others = _fields(one), _fields(other)
    return sorted(name for name in fields.keys() | others.keys() if fields.get(name) != others.get(name))


def _fields(body: dict[str, Json]) -> dict[str, str]:
    return {unicodedata.normalize("NFC", name): canonical(item) for name, item in body.items()}


def _normalize(value: Json) -> Json:
    match value:
        case str():
            return unicodedata.normalize("NFC", value)
        case float() if value.is_integer() and abs(value) < _EXACT_INTEGERS:
            return int(value)
        case list():
            return [_normalize(item) for item in value]
        case dict():
            return {unicodedata.normalize("NFC", name): _normalize(item) for name, item in value.items()}
        case _:
            return value
