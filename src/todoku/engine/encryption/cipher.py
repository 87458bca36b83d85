"""AES-256-GCM, and data keys wrapped by master keys with it. The only module that needs `cryptography`."""

from __future__ import annotations

import hashlib
import hmac
from datetime import date
from importlib.util import find_spec
from typing import TYPE_CHECKING
from uuid import UUID

from todoku.core.errors import InvalidSetting
from todoku.core.sealed import (
    KEY_BYTES,
    NONCE_BYTES,
    MasterKey,
    Sealed,
    SealedPlace,
    WrappedKey,
    data_key_id,
    is_binding,
    key_associated,
)

if TYPE_CHECKING:
    from collections.abc import Callable
import os
from collections.abc import Callable

from todoku.core.errors import CannotOpen
from todoku.core.sealed import MasterKeys, MasterSealed

# ------------------------------------------------------------
# Encryption by the master key itself: of todoku's own secrets, and of those of schedules and URL groups.
#
# They are long-lived, and a data key may be shredded with its day.


def seal_with_master_key(
    plain: bytes, place: str, masters: MasterKeys, chance: Callable[[int], bytes] = os.urandom
) -> MasterSealed:
    """Encrypts by the current master key, bound to one place: it cannot be decrypted for another."""
    require_cryptography()
    master, nonce = masters.current, chance(NONCE_BYTES)
    return MasterSealed(master.id, nonce + Cipher(master.key).encrypt(nonce, plain, _associated(place, master.id)))


def open_with_master_key(kept: MasterSealed, place: str, masters: MasterKeys, *, called: str) -> bytes:
    """Reverses `seal_with_master_key`. CannotOpen if the master key is missing or the bytes were changed."""
    if (master := masters.get(kept.master_key_id)) is None:
        raise CannotOpen(
            f"{called} is sealed by the master key {kept.master_key_id}, which is not configured",
            hint="add it to TODOKU_MASTER_KEYS, behind the current one",
            reason="UNKNOWN_MASTER_KEY",
        )
    require_cryptography()
    nonce, box = kept.box[:NONCE_BYTES], kept.box[NONCE_BYTES:]
    try:
        return Cipher(master.key).decrypt(nonce, box, _associated(place, master.id))
    except WrongTag:
        hint = "check that this master key has its original bytes; else restore the row from a backup, or set it again"
        raise CannotOpen(f"{called} was changed", hint=hint, reason="BAD_MASTER_KEY") from None


def _associated(place: str, master_key_id: str) -> bytes:
    return f"todoku {place}\0{master_key_id}".encode()


class WrongTag(Exception):
    """The bytes were changed, were encrypted for another place, or with another key."""


class Cipher:
    """One key of AES-256-GCM."""

    __slots__ = ("_aead",)

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - an extra

        self._aead = AESGCM(key)

    def encrypt(self, nonce: bytes, plain: bytes, associated: bytes) -> bytes:
        """Returns ciphertext and tag. A nonce must be used only once with a key."""
        return self._aead.encrypt(nonce, plain, associated)

    def decrypt(self, nonce: bytes, box: bytes, associated: bytes) -> bytes:
        """Returns the plaintext; WrongTag if anything was changed."""
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra

        try:
            return self._aead.decrypt(nonce, box, associated)
        except InvalidTag:
            raise WrongTag from None


class DataKey:
    """A data key in memory, which encrypts (seals) and decrypts (opens). `seals` counts its encryptions."""

    __slots__ = ("_cipher", "_key", "row", "seals")

    def __init__(self, row: WrappedKey, key: bytes) -> None:
        self.row = row
        self.seals = 0
        self._key = key
        self._cipher = Cipher(key)

    def __repr__(self) -> str:
        return f"<DataKey {self.row.id} of {self.row.day}>"

    def seal(self, plain: bytes, place: SealedPlace, chance: Callable[[int], bytes]) -> Sealed:
        """Encrypts for one place with a random nonce. `Sealer` bounds the number of seals per key."""
        nonce = chance(NONCE_BYTES)
        self.seals += 1
        box = self._cipher.encrypt(nonce, plain, place.associated(place.version))
        return Sealed(self.row.id, nonce, box, place.version)

    def secret(self, purpose: str) -> bytes:
        """Returns a secret derived from the key, for keyed digests of one purpose."""
        return hmac.digest(self._key, f"todoku {purpose} 1".encode(), hashlib.sha256)

    def open(self, sealed: Sealed, place: SealedPlace) -> bytes:
        """Decrypts what was sealed for this place; WrongTag if it was sealed for another place or changed.

        The format of an older version is accepted with older data keys only, so that nothing sealed now can be passed
        off as that format.
        """
        if sealed.version < place.version and is_binding(self.row.id):
            raise WrongTag
        return self._cipher.decrypt(sealed.nonce, sealed.box, place.associated(sealed.version))


def require_cryptography() -> None:
    """Raises InvalidSetting if the library `cryptography` is not installed."""
    if find_spec("cryptography") is None:
        raise InvalidSetting(
            "encryption needs cryptography, which is not installed", hint='pip install "todoku[encryption]"'
        )


def new_data_key(master: MasterKey, day: date, chance: Callable[[int], bytes]) -> DataKey:
    """Creates a data key for a day, wrapped by the master key."""
    key, id = chance(KEY_BYTES), data_key_id(chance(16))
    return DataKey(wrap(id, day.isoformat(), master, key, chance), key)


def wrap(id: UUID, day: str, master: MasterKey, key: bytes, chance: Callable[[int], bytes]) -> WrappedKey:
    """Encrypts a data key by a master key: nonce, ciphertext and tag."""
    nonce = chance(NONCE_BYTES)
    box = Cipher(master.key).encrypt(nonce, key, key_associated(id, day, master.id))
    return WrappedKey(id, day, master.id, nonce + box)


def unwrap(row: WrappedKey, master: MasterKey) -> bytes:
    """Decrypts a data key; WrongTag: another master key wrapped it, or the row was changed."""
    nonce, box = row.wrapped[:NONCE_BYTES], row.wrapped[NONCE_BYTES:]
    return Cipher(master.key).decrypt(nonce, box, key_associated(row.id, row.day, row.master_key_id))
