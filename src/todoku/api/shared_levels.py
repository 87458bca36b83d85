"""Levels of rate buckets in memory that all serving processes of a daemon share, so that they count together.

Not through the database or a pipe: each request with a token takes a permit, and a round trip would cost more than the
rest of its check.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from todoku.engine.shared_memory import create_memory

_RECORD: Final = struct.Struct("=Qdd")
"""The digest of a name (0: free), the level of its bucket, and when that was its level."""

_WAYS: Final = 8
_SETS: Final = 2048
"""A name has eight places. If others have them, it takes the one that was not used for the longest time, which has the
effect of filling that bucket."""

_KEY_BYTES: Final = 16
SIZE: Final = _KEY_BYTES + _WAYS * _SETS * _RECORD.size

_MOST_TRIES: Final = 200
"""Tries to get the lock, which others hold for some microseconds. A process that was stopped while it holds the lock
must not stop the others: they go on without it, and two requests may then take one permit."""


def create_levels() -> int:
    """Creates memory for levels, all full. Returns its file descriptor, for the processes that share it."""
    descriptor = create_memory("todoku-rates", SIZE)
    os.pwrite(descriptor, os.urandom(_KEY_BYTES), 0)  # so that a client cannot choose whose place it takes
    return descriptor


class SharedLevels:
    """The levels of one kind of buckets by name, as a mapping. For one event loop of each process.

    Times have to come from a clock that all processes share, as `time.monotonic` is.
    """

    def __init__(self, descriptor: int, kind: str) -> None:
        self._descriptor = descriptor
        self._memory = mmap.mmap(descriptor, SIZE)
        self._key = self._memory[:_KEY_BYTES] + kind.encode()

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keeps other processes from changing a level between its reading and its writing."""
        locked = self._try_lock()
        try:
            yield
        finally:
            if locked:
                fcntl.lockf(self._descriptor, fcntl.LOCK_UN)

    def get(self, name: str, default: tuple[float, float]) -> tuple[float, float]:
        """Returns the level of this name and its time, or `default`."""
        digest = self._digest(name)
        for place in self._places(digest):
            found, level, at = _RECORD.unpack_from(self._memory, place)
            if found == digest:
                return level, at
        return default

    def __setitem__(self, name: str, value: tuple[float, float]) -> None:
        """Stores the level of this name and its time."""
        digest = self._digest(name)
        oldest, oldest_at = 0, float("inf")
        for place in self._places(digest):
            found, _, at = _RECORD.unpack_from(self._memory, place)
            if found == digest:
                oldest = place
                break
            if (used := at if found else -1.0) < oldest_at:
                oldest, oldest_at = place, used
        _RECORD.pack_into(self._memory, oldest, digest, *value)

    def _digest(self, name: str) -> int:
        digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8, key=self._key).digest()
        return int.from_bytes(digest, "little") or 1

    def _places(self, digest: int) -> range:
        first = _KEY_BYTES + digest % _SETS * _WAYS * _RECORD.size
        return range(first, first + _WAYS * _RECORD.size, _RECORD.size)

    def _try_lock(self) -> bool:
        for _ in range(_MOST_TRIES):
            try:
                fcntl.lockf(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                continue
            return True
        return False
