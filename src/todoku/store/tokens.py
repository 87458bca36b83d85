"""API tokens, stored as hashes: a token can be checked, but not read back."""

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
    """A token without its secret. `alive`: neither revoked nor expired."""

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
        """Stores a token; `lasts`: seconds until it expires."""

        def work(tx: Tx) -> TokenRow:
            return _add(tx, id, name, hash, scopes, signed, lasts=lasts)

        return self._database.write("api_key", work)

    def add_first(self, id: UUID, name: str, hash: str, scopes: Sequence[str], signed: Signed) -> TokenRow | None:
        """Stores a token if there has never been one; None: there has. Of concurrent callers exactly one succeeds."""

        def work(tx: Tx) -> TokenRow | None:
            tx.rows("lock_secrets")
            return None if tx.rows("any_api_key") else _add(tx, id, name, hash, scopes, signed)

        return self._database.write("api_key", work)

    def by_hash(self, hash: str) -> TokenRow | None:
        """The token with this hash, alive or not."""
        return next((_row(row) for row in self._database.read(lambda tx: tx.rows("api_key", hash=hash))), None)

    def rows(self) -> tuple[TokenRow, ...]:
        """All tokens, the oldest first."""
        return tuple(map(_row, self._database.read(lambda tx: tx.rows("api_keys"), pinned=False)))

    def revoke(self, id: UUID, signed: Signed) -> TokenRow:
        """Revokes a token; its row stays. NotThere: there is none, or it was already revoked."""

        def work(tx: Tx) -> TokenRow:
            if not (rows := tx.rows("revoke_api_key", id=id)):
                raise NotThere(f"there is no token {id} to revoke", hint="`todoku tokens list` shows them")
            tx.rows("audit", by=signed.by, why=signed.why, action="revoke", targets=[f"token:{id}"])
            return _row(rows[0])

        return self._database.write("api_key", work)

    def record_use(self, id: UUID, *, every: float) -> None:
        """Records that a token was used now, unless a use in the last `every` seconds is recorded."""
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
