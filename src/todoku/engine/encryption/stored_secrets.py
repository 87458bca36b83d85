"""Secrets that todoku stores itself, encrypted by the current master key if there is one."""

from __future__ import annotations

import os
from collections.abc import Callable
from uuid import UUID

import msgspec

from todoku.core.errors import CannotOpen
from todoku.core.sealed import VERSION, MasterKeys, MasterSealed
from todoku.engine.encryption.cipher import open_with_master_key, seal_with_master_key
from todoku.engine.outbox import new_id
from todoku.store.audit import Signed
from todoku.store.secrets import NewSecret, SecretChange, SecretRow, SecretStore


def seal_secret(
    name: str,
    text: str,
    masters: MasterKeys,
    *,
    id: UUID | None = None,
    lasts: float | None = None,
    chance: Callable[[int], bytes] = os.urandom,
) -> NewSecret:
    """Returns a secret as it is stored: encrypted for its id and the family of its name, and no other place."""
    id = id or new_id()
    if not masters:
        return NewSecret(id=id, name=name, value=text.encode(), master_key_id=None, lasts=lasts)
    kept = seal_with_master_key(text.encode(), _place(id, name), masters, chance)
    return NewSecret(id=id, name=name, value=kept.box, master_key_id=kept.master_key_id, lasts=lasts)


def open_secret(row: SecretRow, masters: MasterKeys) -> str:
    """Decrypts a secret. CannotOpen if its master key is missing or the row was changed."""
    if row.master_key_id is None:
        return row.value.decode()
    kept = MasterSealed(row.master_key_id, row.value)
    return open_with_master_key(kept, _place(row.id, row.name), masters, called=f"the secret {row.name}").decode()


class Resealed(msgspec.Struct, frozen=True):
    """How many secrets were (with `dry_run`: would be) encrypted again, and which missing master keys others need."""

    number: int
    strangers: tuple[str, ...]


def reseal(secrets: SecretStore, masters: MasterKeys, signed: Signed, *, dry_run: bool = False) -> Resealed:
    """Encrypts all secrets by the current master key, plain ones too. One transaction, because there are few."""
    current = masters.current.id
    strangers: set[str] = set()

    def decide(rows: tuple[SecretRow, ...]) -> SecretChange | None:
        put: list[NewSecret] = []
        for row in rows:
            if row.master_key_id == current:
                continue
            try:
                text = open_secret(row, masters)
            except CannotOpen:
                strangers.add(row.master_key_id or "")
                continue
            lasts = None if row.expires_at is None else (row.expires_at - row.now).total_seconds()
            put.append(seal_secret(row.name, text, masters, id=row.id, lasts=lasts))
        found.append(len(put))
        return SecretChange(tuple(put), action=f"rotate to {current}") if put and not dry_run else None

    found: list[int] = []
    secrets.change(None, decide, signed)
    return Resealed(found[-1], tuple(sorted(strangers)))


def _place(id: UUID, name: str) -> str:
    """Returns the place, with the family only: the part of a name behind the colon changes when secrets rotate."""
    return f"secret {VERSION}\0{id}\0{name.partition(':')[0]}"
