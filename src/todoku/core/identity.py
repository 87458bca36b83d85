"""Derives ids, key hashes, lanes and ledger scopes from arguments; randomness and time are arguments, too."""

from __future__ import annotations

import hashlib
import json
import struct
import unicodedata
from collections.abc import Collection
from typing import Final
from uuid import UUID

# ------------------------------------------------------------
# The digest of a body: SHA-256 of its canonical JSON. Equal bodies spelled differently have equal digests.

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


def uuid7(unix_ms: int, randomness: bytes) -> UUID:
    """Returns a version 7 UUID: 48 bits of time, then 74 bits of the 10 random bytes."""
    return UUID(int=_uuid7_number(unix_ms, randomness))


def uuids7(unix_ms: int, randomness: bytes) -> list[UUID]:
    """Returns a version 7 UUID of each 10 random bytes, in ascending order."""
    same, pairs = _uuid7_number(unix_ms, bytes(10)), struct.iter_unpack(">HQ", randomness)
    # Sorted as numbers: UUID compares in Python, which costs more than all the rest.
    numbers = sorted([same | (high & 0x0FFF) << 64 | low & 0x3FFF_FFFF_FFFF_FFFF for high, low in pairs])
    return [UUID(int=number) for number in numbers]


def _uuid7_number(unix_ms: int, randomness: bytes) -> int:
    value = (unix_ms & 0xFFFF_FFFF_FFFF) << 80 | int.from_bytes(randomness[:10])
    value = value & ~(0xF000 << 64) | 0x7000 << 64
    return value & ~(0xC000 << 48) | 0x8000 << 48


def base62(randomness: bytes) -> str:
    """Encodes random bytes as letters and digits, which need no quoting in shells and URLs. The length of the result
    depends only on the number of bytes."""
    number, length = int.from_bytes(randomness), -(-len(randomness) * 8 * 10_000 // 59_542)
    letters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    return "".join(letters[number // 62**place % 62] for place in range(length))


def key_hash(idempotency_key: str) -> str:
    """Hashes an idempotency key. Only the hash is stored and logged, never the key."""
    return hashlib.sha256(idempotency_key.encode()).hexdigest()


def lane_id(destination: str, key: str) -> int:
    """Returns the lane of (destination, key), a signed 64-bit number. Keys that collide share a lane, which is safe."""
    return _hash64("lane", destination, key)


def gate_id(destination: str, key: str) -> int:
    """Returns the gate of (destination, key), a signed 64-bit number. Keys that collide share a gate, which is safe."""
    return _hash64("gate", destination, key)


def destination_lock(destination: str) -> int:
    """Returns the advisory lock of a whole ordered destination, taken by a publish with very many lanes.

    A lane of HTTP requests may contain several hosts, so all hosts share one lock.
    """
    return _hash64("destination", "://" if "://" in destination else destination)


def _hash64(*parts: str) -> int:
    text = "\0".join(parts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), signed=True)


def publish_scope(topic: str) -> str:
    """Returns the ledger scope of published keys: a key is unique per topic, not per installation (H12)."""
    return f"publish:{topic}"


def unique_scope(topic: str) -> str:
    """Returns the ledger scope of jobs that are unique for some time: the key is the digest of the arguments."""
    return f"unique:{topic}"


def schedule_scope(name: str) -> str:
    """Returns the ledger scope of a schedule's slots: each is fired once."""
    return f"schedule:{name}"


def ingest_scope(source: str) -> str:
    """Returns the ledger scope of ingested events: an id is unique per source, over all topics."""
    return f"ingest:{source}"


def once_scope(scope: str) -> str:
    """Returns the ledger scope of entries that the user's code creates, separate from todoku's own."""
    return f"once:{scope}"


def effect_scope(destination: str) -> str:
    """Returns the ledger scope of effects: whether one destination has processed a key (I5)."""
    return f"effect:{destination}"
