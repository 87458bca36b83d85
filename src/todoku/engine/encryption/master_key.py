"""Encryption by the master key itself: of todoku's own secrets, and of those of schedules and URL groups.

They are long-lived, and a data key may be shredded with its day."""

from __future__ import annotations

import os
from collections.abc import Callable

from todoku.core.errors import CannotOpen
from todoku.core.master_keys import MasterKeys
from todoku.core.sealed import NONCE_BYTES, MasterSealed
from todoku.engine.encryption.cipher import Cipher, WrongTag, require_cryptography


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
