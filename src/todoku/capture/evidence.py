"""Whether the source still has what was stored last.

A slot is often behind the stored position: after a crash of the reader, or of the source. Then the server sends again
what was stored, up to exactly the stored position. A server that was restored from a copy of its files sends something
else, even if it has grown beyond that position since: the comparison before the start cannot see that.
"""

from __future__ import annotations

from typing import Final

from todoku.core.capture import format_lsn
from todoku.core.errors import CaptureError

A_MARK: Final = 1
"""Stored as `newest_xid`: the position is that of a mark. No transaction has this number."""

_SAME_TIME: Final = 0.001


class Evidence:
    """What has to come again before anything new may be stored. `xid`: of what ended at the stored position."""

    def __init__(
        self, capture: str, lsn: int, xid: int | None, *, confirmed: int, committed_at: float | None = None
    ) -> None:
        self._capture = capture
        self._lsn = lsn
        self._xid = xid
        self._committed_at = committed_at
        self.is_missing = confirmed < lsn and xid is not None
        """While it is, nothing is confirmed: the slot would forget what proves that the source is another one."""

    def take(self, end: int, xid: int, committed_at: float | None = None) -> None:
        """Takes what the server sends again. CaptureError: it is not what was stored.

        The time of its commit, too: what is done again after a restore often has the same number, at the same position.
        """
        if end > self._lsn:
            raise self._diverged()
        if end == self._lsn:
            known = self._committed_at
            is_later = committed_at is not None and known is not None and abs(committed_at - known) > _SAME_TIME
            if self._xid not in (None, xid) or is_later:
                raise self._diverged()
            self.is_missing = False

    def require(self) -> None:
        """CaptureError: something new comes, and what was stored last did not come before it."""
        if self.is_missing:
            raise self._diverged()

    def _diverged(self) -> CaptureError:
        return CaptureError(
            f"the source does not have what was captured up to {format_lsn(self._lsn)}: it was restored from a copy, so"
            f" that captured changes were undone",
            hint=f"compare by `todoku capture snapshot {self._capture} --by … --why …`", reason="DIVERGED",
        )  # fmt: skip
