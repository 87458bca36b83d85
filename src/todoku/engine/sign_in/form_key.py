"""The key by which forms outside a session are signed: stored once for all processes on the database."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from typing import Final

from todoku.core.settings import Settings
from todoku.engine.encryption.stored_secrets import open_secret, seal_secret
from todoku.store.audit import Signed
from todoku.store.secrets import SecretChange, SecretRow
from todoku.store.store import Store

NAME: Final = "web:forms"
_FIRST_USE: Final = Signed("todoku", "first use")


class FormKey:
    """Signs texts. Thread-safe; the first call blocks, because it reads the key."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store, self._settings = store, settings
        self._lock = threading.Lock()
        self._key: bytes | None = None

    def sign(self, purpose: str, text: str) -> str:
        """Returns the signature of a text for a purpose."""
        signed = f"{purpose}\0{text}".encode("utf-8", "surrogatepass")
        return hmac.new(self._load(), signed, hashlib.sha256).hexdigest()

    def is_signed(self, signature: str, purpose: str, text: str) -> bool:
        """Whether this is the signature of the text for the purpose."""
        return hmac.compare_digest(self.sign(purpose, text).encode(), signature.encode("utf-8", "replace"))

    def _load(self) -> bytes:
        with self._lock:
            if self._key is None:
                self._key = _stored_key(self._store, self._settings).encode()
            return self._key


def _stored_key(store: Store, settings: Settings) -> str:
    """Returns the stored key. Of several processes that need the first one, one creates it."""
    found = store.secrets.read(NAME)
    if not found:

        def decide(rows: tuple[SecretRow, ...]) -> SecretChange | None:
            made = seal_secret(NAME, secrets.token_urlsafe(32), settings.master_keys)
            return None if rows else SecretChange((made,), action="create")

        found = store.secrets.change(NAME, decide, _FIRST_USE)
    return open_secret(found[0], settings.master_keys)
