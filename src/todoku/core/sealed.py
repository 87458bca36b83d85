"""Data that is encrypted at rest ("sealed"): its format, the place it is bound to, and its text forms.

Sealed bytes are: a version, the id of the data key, a nonce, then ciphertext with its tag. The content type of a
message says that it is sealed. After a worker has decrypted a claim in memory, the content type also names the data
key, so that a result of the attempt is sealed with the same key, or not stored at all.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final, Literal
from uuid import UUID

import msgspec

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

    `name` is the topic of a payload, the destination of a result, or the URL that secret headers are sent to. Secret
    headers are also bound to the kind and the method of their request.
    """

    what: Literal["payload", "result", "headers"]
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
