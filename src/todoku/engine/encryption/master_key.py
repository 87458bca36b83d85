"""What outlives every day is encrypted by the master key itself: todoku's own secrets, and what schedules and URL
groups are to send. A data key may be shredded with its day; these are wanted as long as they are there."""

from __future__ import annotations

import os
from collections.abc import Callable

from todoku.core.errors import CannotOpen
from todoku.core.master_keys import MasterKeys
from todoku.core.sealed import NONCE_BYTES, MasterSealed
from todoku.engine.encryption.cipher import Cipher, WrongTag, require_cryptography


def keep(plain: bytes, place: str, masters: MasterKeys, chance: Callable[[int], bytes] = os.urandom) -> MasterSealed:
    """Encrypted by the current master key, for one place: it opens nowhere else."""
    require_cryptography()
    master, nonce = masters.current, chance(NONCE_BYTES)
    return MasterSealed(master.id, nonce + Cipher(master.key).encrypt(nonce, plain, _associated(place, master.id)))


def kept_inside(kept: MasterSealed, place: str, masters: MasterKeys, *, called: str) -> bytes:
    """What was kept; CannotOpen names the master key that is missing, or says that it was changed."""
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
        hint = "restore it from a backup, or rotate it; does this master key have the bytes it had then?"
        raise CannotOpen(f"{called} was changed", hint=hint, reason="BAD_MASTER_KEY") from None


def _associated(place: str, master_key_id: str) -> bytes:
    return f"todoku {place}\0{master_key_id}".encode()
