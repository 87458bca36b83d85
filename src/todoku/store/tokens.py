"""API tokens as they are stored: hashed. Nothing here can tell what a token is, only whether it is one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import msgspec

from todoku.core.errors import NotThere
from todoku.store.audit import Signed
from todoku.store.columns import moment, moment_or_none, uuid
from todoku.store.database import Database, Tx


class TokenRow(msgspec.Struct, frozen=True, kw_only=True):
    """A token without the token. `alive`: neither revoked nor over."""

    id: UUID
    name: str
    scopes: tuple[str, ...]
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    alive: bool


class TokenStore:
    """The tokens of one database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(
        self, id: UUID, name: str, hash: str, scopes: Sequence[str], signed: Signed, *, lasts: float | None
    ) -> TokenRow:
        """Store a token; `lasts`: seconds until it ends by itself."""

        def work(tx: Tx) -> TokenRow:
            return _add(tx, id, name, hash, scopes, signed, lasts=lasts)

        return self._database.write("api_key", work)

    def add_first(self, id: UUID, name: str, hash: str, scopes: Sequence[str], signed: Signed) -> TokenRow | None:
        """Store a token if there has never been one; None: there has. One of all who ask at the same time is first."""

        def work(tx: Tx) -> TokenRow | None:
            tx.rows("lock_secrets")
            return None if tx.rows("any_api_key") else _add(tx, id, name, hash, scopes, signed)

        return self._database.write("api_key", work)

    def by_hash(self, hash: str) -> TokenRow | None:
        """The token with this hash, alive or not."""
        return next((_row(row) for row in self._database.read(lambda tx: tx.rows("api_key", hash=hash))), None)

    def rows(self) -> tuple[TokenRow, ...]:
        """All of them, the oldest first."""
        return tuple(map(_row, self._database.read(lambda tx: tx.rows("api_keys"), pinned=False)))

    def revoke(self, id: UUID, signed: Signed) -> TokenRow:
        """It opens nothing any more; its row stays. NotThere: there is none, or it was revoked before."""

        def work(tx: Tx) -> TokenRow:
            if not (rows := tx.rows("revoke_api_key", id=id)):
                raise NotThere(f"there is no token {id} to revoke", hint="`todoku tokens list` shows them")
            tx.rows("audit", by=signed.by, why=signed.why, action="revoke", targets=[f"token:{id}"])
            return _row(rows[0])

        return self._database.write("api_key", work)

    def record_use(self, id: UUID, *, every: float) -> None:
        """It was used now; written down unless somebody did in the last `every` seconds."""
        self._database.write("api_key_used", lambda tx: tx.rows("use_api_key", id=id, every=every))


def _add(
    tx: Tx, id: UUID, name: str, hash: str, scopes: Sequence[str], signed: Signed, *, lasts: float | None = None
) -> TokenRow:
    tx.rows("add_api_key", id=id, name=name, hash=hash, scopes=" ".join(scopes), lasts=lasts)
    tx.rows("audit", by=signed.by, why=signed.why, action="create", targets=[f"token:{id}"])
    return _row(tx.rows("api_key", hash=hash)[0])


def _row(row: tuple[UUID | str, str, str, float, float | None, float | None, float | None, bool]) -> TokenRow:
    id, name, scopes, created, expires, revoked, used, alive = row
    return TokenRow(
        id=uuid(id),
        name=name,
        scopes=tuple(scopes.split()),
        created_at=moment(created),
        expires_at=moment_or_none(expires),
        revoked_at=moment_or_none(revoked),
        last_used_at=moment_or_none(used),
        alive=bool(alive),
    )
