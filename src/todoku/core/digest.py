"""The digest of a body: SHA-256 of its canonical JSON. Equal bodies spelled differently have equal digests."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Collection
from typing import Final

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]

VERSION: Final = "1"
"""In front of each digest, so that a later canonical form cannot be mistaken for a conflict."""

_EXACT_INTEGERS: Final = 2.0**53


def canonical(value: Json, *, excluded: Collection[str] = ()) -> str:
    """Canonical JSON: sorted keys, no spaces, NFC strings, 1.0 as 1. `excluded`: names left out at the top."""
    if isinstance(value, dict) and excluded:
        value = {name: item for name, item in value.items() if name not in excluded}
    return json.dumps(_normal(value), sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def digest(value: Json, *, excluded: Collection[str] = ()) -> str:
    """`version:sha256` of the canonical form of a body."""
    text = canonical(value, excluded=excluded)
    return f"{VERSION}:{hashlib.sha256(text.encode()).hexdigest()}"


def digest_bytes(value: bytes) -> str:
    """`version:sha256` of a body that is not JSON."""
    return f"{VERSION}:{hashlib.sha256(value).hexdigest()}"


def differing_fields(one: Json, other: Json) -> list[str]:
    """The top-level names in which two bodies differ: what an IdempotencyConflict tells."""
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return [] if canonical(one) == canonical(other) else ["the body"]
    fields, others = _fields(one), _fields(other)
    return sorted(name for name in fields.keys() | others.keys() if fields.get(name) != others.get(name))


def _fields(body: dict[str, Json]) -> dict[str, str]:
    return {unicodedata.normalize("NFC", name): canonical(item) for name, item in body.items()}


def _normal(value: Json) -> Json:
    match value:
        case str():
            return unicodedata.normalize("NFC", value)
        case float() if value.is_integer() and abs(value) < _EXACT_INTEGERS:
            return int(value)
        case list():
            return [_normal(item) for item in value]
        case dict():
            return {unicodedata.normalize("NFC", name): _normal(item) for name, item in value.items()}
        case _:
            return value
