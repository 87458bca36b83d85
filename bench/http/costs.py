"""What requests cost in processor time, read from /proc: on a busy machine it says more than a rate."""

from __future__ import annotations

import os
from pathlib import Path

import psycopg

_TICKS = os.sysconf("SC_CLK_TCK")


def family_seconds(parent: int) -> float:
    """Seconds of processor time, in user mode and in the kernel, of a process and of those it has started.

    Those that have ended are counted: a server's connections come and go while it is measured.
    """
    own = sum(map(int, _stat(parent)[11:15])) + sum(sum(map(int, _stat(pid)[11:13])) for pid in children(parent))
    return own / _TICKS


def _stat(pid: int) -> list[str]:
    """The fields of a process after its name; none if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def children(parent: int) -> list[int]:
    """The processes that this one has started."""
    found = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in found if (fields := _stat(pid)) and int(fields[1]) == parent]


def server_process(dsn: str) -> int | None:
    """The process that starts the backends of this PostgreSQL server; None if it is on another machine."""
    with psycopg.connect(dsn) as connection:
        backend = connection.info.backend_pid
        fields = _stat(backend) if _name(backend).startswith("postgres") else []
    return int(fields[1]) if fields else None


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except FileNotFoundError:
        return ""
