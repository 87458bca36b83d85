"""The signing keys of HTTP deliveries: from the settings, or stored in the database and created on first use."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Final

from todoku.core.errors import InvalidAct
from todoku.core.identity import base62
from todoku.core.settings import Settings
from todoku.core.signature import SigningKeys
from todoku.engine.encryption.stored_secrets import open_secret, seal_secret
from todoku.store.audit import Signed
from todoku.store.secrets import NewSecret, SecretChange, SecretRow
from todoku.store.store import Store

NAME: Final = "signing"
CURRENT: Final = "signing:current"
NEXT: Final = "signing:next"
OLD: Final = "signing:old"

OVERLAP: Final = 86_400.0
"""Seconds for which a key is retained after its last signature."""

CACHE_SECONDS: Final = 10.0
"""Seconds for which a process caches the keys, and may still sign with the previous current key."""

_FIRST_USE: Final = Signed("todoku", "first use")


def signing_keys(store: Store, settings: Settings) -> SigningKeys:
    """Returns the keys in force: those of the settings, else the stored ones, which are created if missing.

    `made` is true only for the caller that created them, among all processes, so that it can show them once.
    """
    if settings.signing_keys is not None:
        return settings.signing_keys
    found = store.secrets.read(NAME)
    if _is_complete(found):
        return _open(found, settings)
    made: list[bool] = []

    def decide(rows: tuple[SecretRow, ...]) -> SecretChange | None:
        if _is_complete(rows):
            return None
        made.append(True)
        names = [name for name in (CURRENT, NEXT) if name not in {row.name for row in rows}]
        return SecretChange(tuple(_new(name, settings) for name in names), action="create")

    rows = store.secrets.change(NAME, decide, _FIRST_USE)
    return _open(rows, settings, made=bool(made))


def rotate(store: Store, settings: Settings, signed: Signed, *, dry_run: bool = False) -> SigningKeys:
    """Makes the next key current, creates a new next one, and retains the former current one for a day. Audited.

    Receivers that know both keys can verify before and after. InvalidAct: the keys are a setting. `dry_run`: only
    checks this.
    """
    if settings.signing_keys is not None:
        raise InvalidAct(
            "the signing keys are a setting",
            hint="rotate them there: TODOKU_SIGNING_KEYS=<the old next>,<a new one>, and restart",
        )
    before = signing_keys(store, settings)
    if dry_run:
        return before

    def decide(rows: tuple[SecretRow, ...]) -> SecretChange:
        moved = {CURRENT: (OLD, OVERLAP), NEXT: (CURRENT, None)}
        put = [_rename(row, *moved[row.name]) for row in rows if row.name in moved]
        return SecretChange((*put, _new(NEXT, settings)), action="rotate")

    return _open(store.secrets.change(NAME, decide, signed), settings)


class KeyRing:
    """The keys in force, cached for `CACHE_SECONDS`, because signing must not cost a query. Thread-safe."""

    def __init__(self, store: Store, settings: Settings, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._settings = settings
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._keys: SigningKeys | None = None
        self._until = 0.0

    def keys(self) -> SigningKeys:
        """Returns the keys, at most `CACHE_SECONDS` old."""
        with self._lock:
            now = self._monotonic()
            if self._keys is None or now >= self._until:
                self._keys = signing_keys(self._store, self._settings)
                self._until = now + CACHE_SECONDS
            return self._keys


def _is_complete(rows: tuple[SecretRow, ...]) -> bool:
    return {CURRENT, NEXT} <= {row.name for row in rows}


def _new(name: str, settings: Settings) -> NewSecret:
    return seal_secret(name, f"sig_{base62(os.urandom(21))}", settings.master_keys)


def _rename(row: SecretRow, name: str, lasts: float | None) -> NewSecret:
    """Renames a secret without sealing it again: it is bound to the id and to the family of the name."""
    return NewSecret(id=row.id, name=name, value=row.value, master_key_id=row.master_key_id, lasts=lasts)


def _open(rows: tuple[SecretRow, ...], settings: Settings, *, made: bool = False) -> SigningKeys:
    def texts(name: str) -> tuple[str, ...]:
        return tuple(open_secret(row, settings.master_keys) for row in rows if row.name == name)

    return SigningKeys(current=texts(CURRENT)[0], next=texts(NEXT)[0], old=texts(OLD), made=made)
