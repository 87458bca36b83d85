"""Memory that processes share through a file descriptor, which a child process inherits."""

from __future__ import annotations

import os


def create_memory(name: str, size: int) -> int:
    """Creates so many bytes of zeros. Returns their file descriptor; `name` is only for people who look at it."""
    descriptor = os.memfd_create(name, 0) if hasattr(os, "memfd_create") else _unlinked_file()
    os.ftruncate(descriptor, size)
    return descriptor


def _unlinked_file() -> int:
    import tempfile  # noqa: PLC0415 - only where there is no memfd

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
