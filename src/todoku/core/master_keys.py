"""Master keys, written as `id:base64, id:base64`, the current one first. No repr and no error contains their bytes."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterator
from typing import Final

from todoku.core.errors import InvalidSetting

KEY_BYTES: Final = 32
_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HINT: Final = "TODOKU_MASTER_KEYS is id:base64,id:base64, the current one first; `todoku encryption-keys generate`"
NO_KEY_HINT: Final = "create one with `todoku encryption-keys generate`, and set it as TODOKU_MASTER_KEYS"


class MasterKey:
    """A key that wraps data keys. Each wrapped key is stored with the id of its master key."""

    __slots__ = ("id", "key")

    def __init__(self, id: str, key: bytes) -> None:
        self.id = id
        self.key = key

    def __repr__(self) -> str:
        return f"<MasterKey {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MasterKey) and self.id == other.id and hmac.compare_digest(self.key, other.key)

    def __hash__(self) -> int:
        return hash(self.id)

    def digest(self, digest: str) -> str:
        """Returns a keyed digest of a plain one, `k1:id:…`, so that bodies cannot be guessed from their digests."""
        derived = hmac.digest(self.key, b"todoku digest 1", hashlib.sha256)
        return f"k1:{self.id}:{hmac.digest(derived, digest.encode(), hashlib.sha256).hex()}"


class MasterKeys:
    """The master keys of an installation, the current one first. Falsy if there are none."""

    __slots__ = ("_keys",)

    def __init__(self, *keys: MasterKey) -> None:
        self._keys = keys

    def __repr__(self) -> str:
        return f"<MasterKeys {', '.join(key.id for key in self._keys) or 'none'}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MasterKeys) and self._keys == other._keys

    def __hash__(self) -> int:
        return hash(self._keys)

    def __bool__(self) -> bool:
        return bool(self._keys)

    def __iter__(self) -> Iterator[MasterKey]:
        return iter(self._keys)

    @property
    def current(self) -> MasterKey:
        """The key that wraps new data keys."""
        if not self._keys:
            raise InvalidSetting("there is no master key", hint=NO_KEY_HINT)
        return self._keys[0]

    @property
    def oldest(self) -> MasterKey:
        """The last key. It makes the digests, so that they stay the same until it is removed."""
        return self._keys[-1]

    def get(self, id: str) -> MasterKey | None:
        """Returns the key with this id, if it is configured."""
        return next((key for key in self._keys if key.id == id), None)


def master_keys(text: object) -> MasterKeys:
    """Parses the setting: text, or a list of `id:base64`. Raises InvalidSetting."""
    if isinstance(text, MasterKeys):
        return text
    entries = text if isinstance(text, list | tuple) else str(text).replace(",", " ").split()
    keys = tuple(_parse_entry(place, str(entry).strip()) for place, entry in enumerate(entries, 1))
    ids = [key.id for key in keys]
    if repeated := sorted({id for id in ids if ids.count(id) > 1}):
        hint = "give each key its own id, and never reuse an id"
        raise InvalidSetting(f"master_keys has two keys called {repeated[0]!r}", hint=hint)
    return MasterKeys(*keys)


def _parse_entry(place: int, entry: str) -> MasterKey:
    """Parses one entry; errors do not quote it."""
    id, colon, encoded = entry.partition(":")
    if not colon or not _ID.fullmatch(id):
        raise InvalidSetting(f"entry {place} of master_keys does not begin with an id and a colon", hint=_HINT)
    try:
        key = base64.b64decode(encoded.replace("-", "+").replace("_", "/"), validate=True)
    except binascii.Error:
        raise InvalidSetting(f"master key {id!r} is not base64", hint=_HINT) from None
    if len(key) != KEY_BYTES:
        raise InvalidSetting(f"master key {id!r} has {len(key)} bytes, {KEY_BYTES} are needed", hint=_HINT)
    return MasterKey(id, key)


def format_master_key(id: str, key: bytes) -> str:
    """Formats a master key for the setting."""
    if not _ID.fullmatch(id):
        raise InvalidSetting(f"a master key cannot be called {id!r}", hint="1 to 64 letters, digits, dots and dashes")
    return f"{id}:{base64.b64encode(key).decode()}"
