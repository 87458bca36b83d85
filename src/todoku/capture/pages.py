"""The pages of snapshots between the thread that reads them and the stream, where their marks arrive."""

from __future__ import annotations

import os
import threading
from typing import Final

import msgspec

from todoku.capture.tables import CapturedTable, StreamedTable
from todoku.core.capture import PageSnapshot
from todoku.core.pgoutput import Row
from todoku.store.capture_portions import Phase

PREFIX: Final = "todoku"
"""The prefix of todoku's messages in the log of the source."""


class ReadPage(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a table, and what the transaction that read them could see. The rest is as in TableProgress."""

    table: CapturedTable
    streamed: StreamedTable
    rows: list[Row]
    snapshot: PageSnapshot
    position: str | None
    copied: int
    phase: Phase
    expected: int


Awaited = ReadPage | str | None
"""What a mark stands for: a page, the table that is to be swept, or nothing but a heartbeat."""


class Pages:
    """What awaits its mark. Marks of earlier sessions are not ours: their pages are read again."""

    def __init__(self, session: str | None = None) -> None:
        self._session = (session or os.urandom(8).hex()).encode()
        self._awaited: dict[bytes, Awaited] = {}
        self._lock = threading.Lock()
        self._number = 0

    def expect(self, awaited: Awaited) -> str:
        """Returns the content of the mark to write for it."""
        with self._lock:
            self._number += 1
            content = b"%s:%d" % (self._session, self._number)
            self._awaited[content] = awaited
        return content.decode()

    def is_ours(self, content: bytes) -> bool:
        """Whether a mark was written by this session."""
        return content.startswith(self._session + b":")

    def arrived(self, content: bytes) -> Awaited:
        """Returns what awaited this mark."""
        with self._lock:
            return self._awaited.pop(content, None)
