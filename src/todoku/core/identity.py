"""Identities made of arguments: public ids, key hashes, lanes. Nothing here draws chance or reads a clock."""

from __future__ import annotations

import hashlib
from uuid import UUID


def uuid7(unix_ms: int, randomness: bytes) -> UUID:
    """A version 7 UUID: 48 bits of time in front, then 74 bits of the 10 random bytes given."""
    value = (unix_ms & 0xFFFF_FFFF_FFFF) << 80 | int.from_bytes(randomness[:10])
    value = value & ~(0xF000 << 64) | 0x7000 << 64
    value = value & ~(0xC000 << 48) | 0x8000 << 48
    return UUID(int=value)


def base62(randomness: bytes) -> str:
    """Random bytes as letters and digits, which survive every shell and URL. As long for as many."""
    number, length = int.from_bytes(randomness), -(-len(randomness) * 8 * 10_000 // 59_542)
    letters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    return "".join(letters[number // 62**place % 62] for place in range(length))


def key_hash(idempotency_key: str) -> str:
    """How an idempotency key is stored and logged; the key itself never is."""
    return hashlib.sha256(idempotency_key.encode()).hexdigest()


def lane_id(destination: str, key: str) -> int:
    """The lane of (destination, key), a signed 64-bit number. A collision only serialises more."""
    return _hash64("lane", destination, key)


def gate_id(destination: str, key: str) -> int:
    """The gate of (destination, key), a signed 64-bit number. A collision only lets less run at once."""
    return _hash64("gate", destination, key)


def destination_lock(destination: str) -> int:
    """The advisory lock of a whole ordered destination, taken when a publish has very many lanes.

    A lane of requests may lead to several hosts: these have one lock together, whichever of them the lane is named by.
    """
    return _hash64("destination", "://" if "://" in destination else destination)


def _hash64(*parts: str) -> int:
    text = "\0".join(parts).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), signed=True)


def publish_scope(topic: str) -> str:
    """The ledger scope of publish entries: a key is unique per topic, not per installation (H12)."""
    return f"publish:{topic}"


def unique_scope(topic: str) -> str:
    """The ledger scope of jobs that are unique for a while: the key is the digest of the arguments."""
    return f"unique:{topic}"


def schedule_scope(name: str) -> str:
    """The ledger scope of a schedule's slots: each is fired once."""
    return f"schedule:{name}"


def ingest_scope(source: str) -> str:
    """The ledger scope of events that come in: an id is unique per source, whatever topic its event has."""
    return f"ingest:{source}"


def once_scope(scope: str) -> str:
    """The ledger scope of entries that people make themselves, apart from todoku's own."""
    return f"once:{scope}"


def effect_scope(destination: str) -> str:
    """The ledger scope of effect entries: what one destination has done for a key (I5)."""
    return f"effect:{destination}"
