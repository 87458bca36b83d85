"""Random bytes for ids, fetched from the operating system 255 at a time.

A call of `os.urandom` releases the interpreter's lock. Beside a busy thread the caller waits to get it back, so that
one call costs more than all other work on an id.
"""

from __future__ import annotations

import os
from collections import deque
from typing import Final

_SIZE: Final = 16
_BLOCK: Final = 256 * _SIZE

_unused: Final[deque[bytes]] = deque()


def random_16() -> bytes:
    """Returns 16 random bytes that no other call returns, in any thread or process. For ids, not for keys: bytes that
    wait to be used are in memory."""
    try:
        return _unused.popleft()  # atomic: no two threads get the same bytes
    except IndexError:
        block = os.urandom(_BLOCK)
        _unused.extend([block[place : place + _SIZE] for place in range(_SIZE, _BLOCK, _SIZE)])
        return block[:_SIZE]


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_unused.clear)  # the parent uses these bytes
