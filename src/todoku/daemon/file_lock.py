"""One `todoku up` a SQLite file: an OS lock beside it, which the kernel releases however its holder ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from todoku.core.errors import CannotStart, DatabaseUnavailable


class OnlyOne:
    """Holds `<file>.up.lock` for as long as it is not released. Its text says who holds it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._path = file.with_name(f"{file.name}.up.lock")
        self._descriptor = self._taken()

    def _taken(self) -> int:
        while True:
            try:
                descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            except OSError as error:
                hint = f"does {self._path.parent} exist, and may this user write there?"
                raise DatabaseUnavailable(f"{self._file} cannot be opened: {error.strerror}", hint=hint) from error
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
                os.close(descriptor)
                raise CannotStart(
                    f"{self._file} is served by another `todoku up`" + (f": {holder}" if holder else ""),
                    hint="stop that one, or use another file with --db",
                ) from None
            if _is_still(self._path, descriptor):
                return descriptor
            os.close(descriptor)  # its last holder removed it between our open and our lock

    def say(self, holder: str) -> None:
        """Write down who holds it, for the one who comes second."""
        os.truncate(self._descriptor, 0)
        os.pwrite(self._descriptor, holder.encode(), 0)

    def release(self) -> None:
        """Let the next one in, and leave no file behind."""
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False
