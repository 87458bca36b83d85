"""Makes sure that only one SQLite library of this process opens a file.

POSIX locks do not work between two libraries in one process: with both on the same file, acknowledged rows are lost,
and integrity_check finds nothing wrong (H26). So todoku uses the standard library's sqlite3, as user code does, and
refuses a file that another library of this process has open.
"""

from __future__ import annotations

import gc
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

from todoku.core.errors import MixedSQLite

_OTHER_LIBRARIES = ("apsw", "pysqlite3", "sqlcipher3", "pysqlcipher3", "libsql", "libsql_experimental")

_WAL_SAFE_FROM = (3, 51, 3)
_WAL_SAFE_LINES = ((3, 50, 7), (3, 44, 6))
"""Other builds lose acknowledged writes when two connections write and checkpoint at once; the fix was backported to
these release lines."""


def wal_is_safe(version: tuple[int, int, int] = sqlite3.sqlite_version_info) -> bool:
    """Whether this build of SQLite is free of the WAL-reset bug."""
    return version >= _WAL_SAFE_FROM or any(version[:2] == fixed[:2] and version >= fixed for fixed in _WAL_SAFE_LINES)


def refuse_other_libraries(path: str) -> None:
    """Raises MixedSQLite if another SQLite library of this process has the file at `path` open."""
    for library in _OTHER_LIBRARIES:
        if library in sys.modules and any(same_file(path, other) for other in _open_files(library)):
            raise MixedSQLite(
                f"{library} has {path} open in this process, and todoku would open it through sqlite3: "
                "two SQLite libraries on one file lose acknowledged writes",
                hint=f"use sqlite3 for this file, or run todoku in a process without {library}",
            )


def _open_files(library: str) -> Iterator[str]:
    if library == "apsw":
        for connection in sys.modules["apsw"].connections():
            yield from filter(None, map(connection.db_filename, connection.db_names()))
        return
    for candidate in gc.get_objects():
        kind = type(candidate)
        if kind.__name__ == "Connection" and kind.__module__.split(".")[0] == library:
            yield from (row[2] for row in candidate.execute("pragma database_list").fetchall())


def same_file(path: str, other: str) -> bool:
    """Whether both paths are the same existing file."""
    try:
        return Path(path).samefile(other)
    except OSError:
        return False
