"""Stored secrets: signing keys, and the secrets of event sources. The caller encrypts the values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from todoku.store.audit import Signed
from todoku.store.columns import moment, moment_or_none, uuid
from todoku.store.database import Database, Tx


class SecretRow(msgspec.Struct, frozen=True, kw_only=True):
    """A stored secret: encrypted by the named master key, or plain (None)."""

    id: UUID
    name: str
    value: bytes
    master_key_id: str | None
    created_at: datetime
    expires_at: datetime | None
    """None: it does not expire."""
    now: datetime
    """The database's clock when it was read."""

    def __repr__(self) -> str:
        return f"<SecretRow {self.name} {self.id}>"


class NewSecret(msgspec.Struct, frozen=True, kw_only=True):
    """A secret to store, replacing the one with the same id. `lasts`: seconds until it expires."""

    id: UUID
    name: str
    value: bytes
    master_key_id: str | None
    lasts: float | None = None

    def __repr__(self) -> str:
        return f"<NewSecret {self.name} {self.id}>"


class SecretChange(msgspec.Struct, frozen=True):
    """Secrets to store and to remove, and the name of the act in the audit."""

    put: tuple[NewSecret, ...]
    remove: tuple[UUID, ...] = ()
    action: str = "store"


class SecretStore:
    """The stored secrets of one database. A name may have several; expired ones are not returned."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def read(self, name: str | None = None) -> tuple[SecretRow, ...]:
        """The secrets of a name or family (`signing` includes `signing:current`), or all; the oldest first."""
        return self._database.read(lambda tx: _read(tx, name))

    def change(
        self,
        name: str | None,
        decide: Callable[[tuple[SecretRow, ...]], SecretChange | None],
        signed: Signed,
    ) -> tuple[SecretRow, ...]:
        """Calls `decide` with the secrets of a name, and stores the change it returns; None: no change.

        Concurrent callers, in all processes, run one after the other, so a secret created on first use is created
        once. Returns the secrets after the change. The audit contains names, never values.
        """

        def work(tx: Tx) -> tuple[SecretRow, ...]:
            tx.rows("lock_secrets")
            found = _read(tx, name)
            if (change := decide(found)) is None:
                return found
            if change.remove:
                tx.rows("remove_secrets", ids=[str(id) for id in change.remove])
            for secret in change.put:
                tx.rows("put_secret", **_fields(secret))
            gone = [row.name for row in found if row.id in change.remove]
            targets = sorted({f"secret:{each}" for each in (*gone, *(secret.name for secret in change.put))})
            tx.rows("audit", by=signed.by, why=signed.why, action=change.action, targets=targets)
            return _read(tx, name)

        return self._database.write("secrets", work)


def _read(tx: Tx, name: str | None) -> tuple[SecretRow, ...]:
    return tuple(map(_row, tx.rows("secrets", name=name)))


def _fields(secret: NewSecret) -> Mapping[str, Any]:
    return msgspec.structs.asdict(secret)


def _row(row: Any) -> SecretRow:
    id, name, value, master, created, expires, now = row
    return SecretRow(
        id=uuid(id),
        name=name,
        value=bytes(value),
        master_key_id=master,
        created_at=moment(created),
        expires_at=moment_or_none(expires),
        now=moment(now),
    )
