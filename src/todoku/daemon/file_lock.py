"""Allows one `todoku up` per SQLite file, by a lock file beside it. The kernel releases it however the holder ends."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from todoku.core.errors import CannotStart, DatabaseUnavailable


class FileLock:
    """Holds `<file>.up.lock` until released. The text of the lock file names the holder."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._path = _lock_path(file)
        self._descriptor = self._acquire()

    def _acquire(self) -> int:
        import fcntl  # noqa: PLC0415 - not on Windows, where `todoku up` is refused before

        while True:
            try:
                descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            except OSError as error:
                hint = f"check that {self._path.parent} exists and that this user may write there"
                raise DatabaseUnavailable(f"{self._file} cannot be opened: {error.strerror}", hint=hint) from error
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
                os.close(descriptor)
                raise CannotStart(
                    f"{self._file} is in use by another `todoku up`" + (f": {holder}" if holder else ""),
                    hint="stop that one, or name another file with --db",
                ) from None
            if _is_file_at(self._path, descriptor):
                return descriptor
            os.close(descriptor)  # its last holder removed it between our open and our lock

    def write_holder(self, holder: str) -> None:
        """Writes who holds the lock, for the error message of the next `todoku up`."""
        os.truncate(self._descriptor, 0)
        os.pwrite(self._descriptor, holder.encode(), 0)

    def release(self) -> None:
        """Releases the lock and removes its file."""
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def lock_holder(file: Path) -> str | None:
    """The holder of this database file's lock, as it wrote itself; None: no process holds it, or none can."""
    if importlib.util.find_spec("fcntl") is None:
        return None
    import fcntl  # noqa: PLC0415 - not on Windows

    try:
        descriptor = os.open(_lock_path(file), os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(descriptor, 200, 0).decode(errors="replace").strip() or None
    finally:
        os.close(descriptor)
    return None


def _lock_path(file: Path) -> Path:
    return file.with_name(f"{file.name}.up.lock")


def _is_file_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
