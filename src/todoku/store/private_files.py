"""Files that hold other people's data: only their owner may read them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

MODE: Final = 0o600
_OTHERS: Final = 0o077


def make_private(path: str | os.PathLike[str]) -> None:
    """Make an empty file that only its owner may read and write. One that is there keeps its mode. OSError: it cannot.

    Where the system can do so, the file is made without being opened: to close any descriptor of a file gives up the
    locks that other threads of this process have taken on it meanwhile.
    """
    place = os.path.realpath(path)
    try:
        os.mknod(place, MODE)
    except FileExistsError:
        return
    except (OSError, AttributeError):  # not on this system, or not in this directory: then the next line says so
        with suppress(FileExistsError):
            os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, MODE))


def find_shared(paths: Iterable[Path]) -> tuple[str, ...]:
    """Those of these files, with their modes, that not only their owner may use."""
    found = []
    for path in paths:
        try:
            mode = path.stat().st_mode & 0o777
        except FileNotFoundError:
            continue
        if mode & _OTHERS:
            found.append(f"{path} ({mode:04o})")
    return tuple(found)
