"""Where a run keeps its files: in memory, if there is room.

Every test on PostgreSQL clones a database and drops it, and every commit on SQLite is synced: on a disk the tests wait
for it a third of their time. What they prove of crashes is about processes that die, and files in memory outlive those.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_MEMORY = Path("/dev/shm")
_ROOM = 8 << 30
"""Several times what a run has needed at most, with tests that make a million rows beside each other."""


def place() -> str:
    """The directory. TODOKU_TEST_PLACE names another; a short one, for its path is part of those of sockets."""
    if given := os.environ.get("TODOKU_TEST_PLACE"):
        return given
    if not (_MEMORY.is_dir() and os.access(_MEMORY, os.W_OK | os.X_OK)):
        return "/tmp"
    if os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC:  # programs are copied there, too
        return "/tmp"
    return str(_MEMORY) if shutil.disk_usage(_MEMORY).free >= _ROOM else "/tmp"
