"""Files that contain user data: only their owner may read them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

MODE: Final = 0o600
_OTHERS: Final = 0o077


def make_private(path: str | os.PathLike[str]) -> None:
    """Creates an empty file that only its owner may read and write. An existing file keeps its mode. OSError: failed.

    Where the system allows it, the file is created without being opened: closing any descriptor of a file releases
    the locks that other threads of this process have taken on it.
    """
    place = os.path.realpath(path)
    try:
        os.mknod(place, MODE)
    except FileExistsError:
        return
    except (OSError, AttributeError):  # not supported here, or not permitted: then the next line raises
        with suppress(FileExistsError):
            os.close(os.open(place, os.O_CREAT | os.O_EXCL | os.O_WRONLY, MODE))


def find_shared(paths: Iterable[Path]) -> tuple[str, ...]:
    """Returns the files, with their modes, that others than their owner may use. On Windows modes do not tell."""
    if sys.platform == "win32":
        return ()
    found = []
    for path in paths:
        try:
            mode = path.stat().st_mode & 0o777
        except FileNotFoundError:
            continue
        if mode & _OTHERS:
            found.append(f"{path} ({mode:04o})")
    return tuple(found)
