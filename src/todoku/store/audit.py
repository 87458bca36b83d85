"""The audit: who did what to which target, and why. Every act writes its audit rows in its own transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import msgspec

from todoku.store.columns import moment
from todoku.store.database import Database, Tx


class Signed(msgspec.Struct, frozen=True):
    """Who acts and why. Every act of an operator needs both, and records them."""

    by: str
    why: str


class AuditRow(msgspec.Struct, frozen=True):
    """One act on one target."""

    at: datetime
    by: str
    action: str
    target: str
    why: str


class NumberedAudit(msgspec.Struct, frozen=True):
    """An audit row with its number, which is the cursor of a listing."""

    id: int
    act: AuditRow


class AuditStore:
    """The audit. Rows are only ever added: by acts, in their own transactions, and by `record`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def record(self, signed: Signed, action: str, targets: Sequence[str]) -> None:
        """Adds one row for each target, of something that changes no other row: an act's start, a payload shown."""

        def work(tx: Tx) -> None:
            tx.rows("audit", by=signed.by, why=signed.why, action=action, targets=list(targets))

        self._database.write("record_audit", work)

    def page(
        self,
        *,
        by: str | None = None,
        action: str | None = None,
        target: str | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> tuple[NumberedAudit, ...]:
        """Acts, newest first; `before`: only those with a smaller number."""
        rows = self._database.read(
            lambda tx: tx.rows("audit_page", by=by, action=action, target=target, before=before, most=limit)
        )
        return tuple(NumberedAudit(id, AuditRow(moment(at), *rest)) for id, at, *rest in rows)
