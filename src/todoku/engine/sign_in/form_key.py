"""The key by which forms outside a session are signed: stored once for all processes on the database."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable
from typing import Final

from todoku.core.settings import Settings
from todoku.engine.encryption.stored_secrets import open_secret, seal_secret
from todoku.store.audit import Signed
from todoku.store.secrets import SecretChange, SecretRow
from todoku.store.store import Store

NAME: Final = "web:forms"
VALID_SECONDS: Final = 12 * 3600
"""Seconds for which the token of a form is valid, at least."""

_FIRST_USE: Final = Signed("todoku", "first use")


class FormKey:
    """Signs texts for a purpose and a time. Thread-safe; the first call blocks."""

    def __init__(self, store: Store, settings: Settings, *, clock: Callable[[], float] = time.time) -> None:
        self._store, self._settings, self._clock = store, settings, clock
        self._lock = threading.Lock()
        self._key: bytes | None = None

    def sign(self, *parts: str) -> str:
        """Returns the signature of these texts for now."""
        return self._signature(self._period(), parts)

    def is_signed(self, signature: str, *parts: str) -> bool:
        """Whether the signature was made for these texts in this period or the one before."""
        period = self._period()
        expected = [self._signature(each, parts) for each in (period, period - 1)]
        return any(hmac.compare_digest(each.encode(), signature.encode("utf-8", "replace")) for each in expected)

    def _period(self) -> int:
        return int(self._clock() // VALID_SECONDS)

    def _signature(self, period: int, parts: tuple[str, ...]) -> str:
        text = "\0".join((str(period), *parts)).encode("utf-8", "surrogatepass")
        return hmac.new(self._load(), text, hashlib.sha256).hexdigest()

    def _load(self) -> bytes:
        with self._lock:
            if self._key is None:
                self._key = _stored_key(self._store, self._settings).encode()
            return self._key


def _stored_key(store: Store, settings: Settings) -> str:
    found = store.secrets.read(NAME)
    if not found:

        def decide(rows: tuple[SecretRow, ...]) -> SecretChange | None:
            made = seal_secret(NAME, secrets.token_urlsafe(32), settings.master_keys)
            return None if rows else SecretChange((made,), action="create")

        found = store.secrets.change(NAME, decide, _FIRST_USE)
    return open_secret(found[0], settings.master_keys)
