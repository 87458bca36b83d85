"""Derives ids, key hashes, lanes and ledger scopes from arguments; randomness and time are arguments, too."""

from __future__ import annotations

import hashlib
from uuid import UUID


def uuid7(unix_ms: int, randomness: bytes) -> UUID:
    """Returns a version 7 UUID: 48 bits of time, then 74 bits of the 10 random bytes."""
    value = (unix_ms & 0xFFFF_FFFF_FFFF) << 80 | int.from_bytes(randomness[:10])
    value = value & ~(0xF000 << 64) | 0x7000 << 64
    value = value & ~(0xC000 << 48) | 0x8000 << 48
    return UUID(int=value)


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
