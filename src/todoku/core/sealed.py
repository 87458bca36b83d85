"""Data that is encrypted at rest ("sealed"): its format, the place it is bound to, and its text forms.

Sealed bytes are: a version, the id of the data key, a nonce, then ciphertext with its tag. The content type of a
message says that it is sealed. After a worker has decrypted a claim in memory, the content type also names the data
key, so that a result of the attempt is sealed with the same key, or not stored at all.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterator
from typing import Final, Literal
from uuid import UUID

import msgspec

from todoku.core.errors import InvalidSetting

# ------------------------------------------------------------
# Master keys, written as `id:base64, id:base64`, the current one first. No repr and no error contains their bytes.

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


SEALED: Final = "application/vnd.todoku.sealed"
VERSION: Final = 1
HEADERS_VERSION: Final = 2
"""The version of sealed headers. In version 1 they were bound to message and URL, but not to kind and method."""

_BINDING: Final = 8
"""The UUID version of data keys that seal headers only in version 2; older data keys have UUIDs of version 4."""

NONCE_BYTES: Final = 12

_KIND: Final = re.compile(rf"{re.escape(SEALED)}(?:;key=(?P<key>[0-9a-f-]{{36}}))?;of=(?P<inner>.+)")
_KEPT: Final = "todoku.kept:"
_HEADER: Final = 1 + 16 + NONCE_BYTES
_TAG: Final = 16
_RESULT: Final = re.compile(r'\{"todoku\.sealed":"(?P<box>[A-Za-z0-9+/=]+)"\}')


RequestKind = Literal["request", "callback", "failure_callback"]
"""Which request of a message it is: the request itself, or the callback that reports its success or failure."""


class WrappedKey(msgspec.Struct, frozen=True):
    """A data key as it is stored: encrypted with a master key. It seals on one UTC day, `day` (ISO)."""

    id: UUID
    day: str
    master_key_id: str
    wrapped: bytes


class Sealed(msgspec.Struct, frozen=True):
    """The parts of sealed bytes."""

    key_id: UUID
    nonce: bytes
    box: bytes
    version: int = VERSION


class MasterSealed(msgspec.Struct, frozen=True):
    """Data encrypted with a master key directly, because it outlives data keys: nonce, ciphertext and tag."""

    master_key_id: str
    box: bytes


class Kind(msgspec.Struct, frozen=True):
    """The content type of a sealed message: that of the plain text, and the key that decrypted it (None: not decrypted
    yet)."""

    inner: str
    key_id: UUID | None = None

    def __str__(self) -> str:
        key = "" if self.key_id is None else f";key={self.key_id}"
        return f"{SEALED}{key};of={self.inner}"


class SealedPlace(msgspec.Struct, frozen=True):
    """The place that sealed bytes are bound to: they cannot be decrypted for another.

    `name` is the topic of a payload, the destination of a result, a traceback or a step, the name of a signal, or the
    URL that secret headers are sent to. Secret headers are also bound to the kind and the method of their request.
    """

    what: Literal["payload", "result", "traceback", "step", "signal", "headers"]
    message_id: str
    name: str
    content_type: str = "application/json"
    kind: RequestKind | None = None
    method: str = ""

    @property
    def version(self) -> int:
        """The version in which new data is sealed for this place."""
        return HEADERS_VERSION if self.what == "headers" else VERSION

    def associated(self, version: int) -> bytes:
        """Returns the associated data of the encryption: each part with its length, so that parts cannot shift."""
        parts = [f"todoku sealed {version}", self.what, self.message_id, self.name, self.content_type]
        if version >= HEADERS_VERSION:
            parts += [self.kind or "", self.method]
        return b"".join(len(part).to_bytes(4) + part for part in (part.encode() for part in parts))


def data_key_id(raw: bytes) -> UUID:
    """Returns the id of a new data key, from 16 random bytes: a UUID of the version that `is_binding` checks."""
    number = int.from_bytes(raw) & ~(0xF << 76) & ~(0x3 << 62)
    return UUID(int=number | _BINDING << 76 | 0x2 << 62)


def is_binding(key_id: UUID) -> bool:
    """Whether a data key seals headers only in version 2, so that headers of version 1 under this key are forged."""
    return key_id.version == _BINDING


def kind_of(content_type: str) -> Kind | None:
    """Parses the content type of a sealed message; None: it is not sealed."""
    if not content_type.startswith(SEALED) or (found := _KIND.fullmatch(content_type)) is None:
        return None
    return Kind(found["inner"], UUID(found["key"]) if found["key"] else None)


def inner_type(content_type: str) -> str:
    """Returns the content type of the plain text, whether the message is sealed or not."""
    return content_type if (kind := kind_of(content_type)) is None else kind.inner


def pack(sealed: Sealed) -> bytes:
    """Returns the bytes to store."""
    return bytes([sealed.version]) + sealed.key_id.bytes + sealed.nonce + sealed.box


def unpack(raw: bytes) -> Sealed | None:
    """Parses stored bytes; None: they are not sealed bytes."""
    if len(raw) < _HEADER + _TAG or raw[0] not in (VERSION, HEADERS_VERSION):
        return None
    return Sealed(UUID(bytes=raw[1:17]), raw[17:_HEADER], raw[_HEADER:], raw[0])


def key_associated(key_id: UUID, day: str, master_key_id: str) -> bytes:
    """Returns the associated data of a wrapped data key, which binds it to its id, day and master key."""
    return f"todoku data key {VERSION}\0{key_id}\0{day}\0{master_key_id}".encode()


def result_text(raw: bytes) -> str:
    """Encodes a sealed result as JSON, because results are stored as JSON."""
    return f'{{"todoku.sealed":"{base64.b64encode(raw).decode()}"}}'


def shown_traceback(text: str | None) -> str | None:
    """Returns a stored traceback for people: without the sealed bytes of an encrypted message's."""
    is_sealed = text is not None and parse_sealed_result(text) is not None
    return "(sealed, as its message is)" if is_sealed else text


def parse_sealed_result(text: str) -> bytes | None:
    """Returns the sealed bytes in a result; None: it is not sealed."""
    if (found := _RESULT.fullmatch(text)) is None:
        return None
    try:
        return base64.b64decode(found["box"], validate=True)
    except binascii.Error:
        return None


def sealed_text(raw: bytes) -> str:
    """Encodes sealed bytes as text, for a header. The id of the data key comes first, because queries search for it."""
    return f"{UUID(bytes=raw[1:17])}.{base64.b64encode(raw).decode()}"


def parse_sealed_text(text: str) -> bytes:
    """Returns the sealed bytes in a text of `sealed_text`; of any other text, b""."""
    try:
        return base64.b64decode(text.partition(".")[2], validate=True)
    except (binascii.Error, ValueError):
        return b""


def master_sealed_text(kept: MasterSealed) -> str:
    """Encodes data encrypted with a master key as text."""
    return f"{_KEPT}{kept.master_key_id}:{base64.b64encode(kept.box).decode()}"


def parse_master_sealed(text: str) -> MasterSealed | None:
    """Returns the data in a text of `kept_text`; None: it is another text."""
    if not text.startswith(_KEPT):
        return None
    id, _, box = text.removeprefix(_KEPT).partition(":")
    try:
        return MasterSealed(id, base64.b64decode(box, validate=True))
    except (binascii.Error, ValueError):
        return None


def payload_placeholder(content_type: str, size: int) -> str:
    """Returns the text to show instead of a payload that is not JSON."""
    return f"encrypted ({size} bytes)" if content_type.startswith(SEALED) else f"({size} bytes of {content_type})"
