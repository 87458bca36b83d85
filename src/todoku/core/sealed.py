"""What is encrypted at rest: how sealed bytes are laid out, what they are bound to, and how they are named and shown.

Sealed bytes are: a version, the id of the data key, a nonce, then ciphertext with its tag. A sealed message says so in
its content type; a claim that was opened in memory still does, together with the key that opened it, so that whatever
its attempt leaves behind is sealed with the same key, or not left at all.
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
"""That of secret headers. Those of version 1 were bound to their message and URL, not to their kind and method."""

_BINDING: Final = 8
"""The version of the UUIDs of data keys that seal headers by version 2 alone; older data keys have random ones (4)."""

NONCE_BYTES: Final = 12

_KIND: Final = re.compile(rf"{re.escape(SEALED)}(?:;key=(?P<key>[0-9a-f-]{{36}}))?;of=(?P<inner>.+)")
_KEPT: Final = "todoku.kept:"
_HEADER: Final = 1 + 16 + NONCE_BYTES
_TAG: Final = 16
_RESULT: Final = re.compile(r'\{"todoku\.sealed":"(?P<box>[A-Za-z0-9+/=]+)"\}')


RequestKind = Literal["request", "callback", "failure_callback"]
"""Which request of a message: the request itself, or the callback that reports its end."""


class WrappedKey(msgspec.Struct, frozen=True):
    """A data key as it is stored: encrypted by a master key. `day` is the UTC day on which it seals (ISO)."""

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
    """Something encrypted by a master key itself, because it outlives every day: nonce, ciphertext and tag."""

    master_key_id: str
    box: bytes


class Kind(msgspec.Struct, frozen=True):
    """What a content type says of something sealed: what is inside, and the key that opened it (None: it is closed)."""

    inner: str
    key_id: UUID | None = None

    def __str__(self) -> str:
        key = "" if self.key_id is None else f";key={self.key_id}"
        return f"{SEALED}{key};of={self.inner}"


class SealedPlace(msgspec.Struct, frozen=True):
    """Where sealed bytes belong: they open nowhere else. `name` is the topic, the destination of a result, or the URL
    that secret headers are for; of those also which request of the message sends them, and by which method."""

    what: Literal["payload", "result", "headers"]
    message_id: str
    name: str
    content_type: str = "application/json"
    kind: RequestKind | None = None
    method: str = ""

    @property
    def version(self) -> int:
        """The version by which something is sealed for this place."""
        return HEADERS_VERSION if self.what == "headers" else VERSION

    def associated(self, version: int) -> bytes:
        """The data that is authenticated with the ciphertext: each part with its length, so that none can shift."""
        parts = [f"todoku sealed {version}", self.what, self.message_id, self.name, self.content_type]
        if version >= HEADERS_VERSION:
            parts += [self.kind or "", self.method]
        return b"".join(len(part).to_bytes(4) + part for part in (part.encode() for part in parts))


def data_key_id(raw: bytes) -> UUID:
    """The id of a new data key, of 16 random bytes. It is bound to the wrapped key, and says what that may open."""
    number = int.from_bytes(raw) & ~(0xF << 76) & ~(0x3 << 62)
    return UUID(int=number | _BINDING << 76 | 0x2 << 62)


def is_binding(key_id: UUID) -> bool:
    """Whether a data key has sealed headers by version 2 alone, so that whatever claims to be older is forged."""
    return key_id.version == _BINDING


def kind_of(content_type: str) -> Kind | None:
    """What a content type says of something sealed; None: it is not."""
    if not content_type.startswith(SEALED) or (found := _KIND.fullmatch(content_type)) is None:
        return None
    return Kind(found["inner"], UUID(found["key"]) if found["key"] else None)


def inner_type(content_type: str) -> str:
    """The content type of what is inside; of something that is not sealed, its own."""
    return content_type if (kind := kind_of(content_type)) is None else kind.inner


def packed(sealed: Sealed) -> bytes:
    """The parts as they are stored."""
    return bytes([sealed.version]) + sealed.key_id.bytes + sealed.nonce + sealed.box


def unpacked(raw: bytes) -> Sealed | None:
    """The parts of what is stored; None: these are no sealed bytes."""
    if len(raw) < _HEADER + _TAG or raw[0] not in (VERSION, HEADERS_VERSION):
        return None
    return Sealed(UUID(bytes=raw[1:17]), raw[17:_HEADER], raw[_HEADER:], raw[0])


def key_associated(key_id: UUID, day: str, master_key_id: str) -> bytes:
    """What a wrapped data key is bound to: it cannot pass for that of another day or master key."""
    return f"todoku data key {VERSION}\0{key_id}\0{day}\0{master_key_id}".encode()


def result_text(raw: bytes) -> str:
    """A sealed result as JSON, which is what a result is stored as."""
    return f'{{"todoku.sealed":"{base64.b64encode(raw).decode()}"}}'


def sealed_result(text: str) -> bytes | None:
    """The sealed bytes of a result; None: it is a plain one."""
    if (found := _RESULT.fullmatch(text)) is None:
        return None
    try:
        return base64.b64decode(found["box"], validate=True)
    except binascii.Error:
        return None


def sealed_text(raw: bytes) -> str:
    """Sealed bytes as text, for a header. The id of the data key is in front: queries look for it there."""
    return f"{UUID(bytes=raw[1:17])}.{base64.b64encode(raw).decode()}"


def sealed_in(text: str) -> bytes:
    """The sealed bytes of such a text; of any other text, none."""
    try:
        return base64.b64decode(text.partition(".")[2], validate=True)
    except (binascii.Error, ValueError):
        return b""


def kept_text(kept: MasterSealed) -> str:
    """Something kept, as text."""
    return f"{_KEPT}{kept.master_key_id}:{base64.b64encode(kept.box).decode()}"


def kept_in(text: str) -> MasterSealed | None:
    """What such a text keeps; None: it is another."""
    if not text.startswith(_KEPT):
        return None
    id, _, box = text.removeprefix(_KEPT).partition(":")
    try:
        return MasterSealed(id, base64.b64decode(box, validate=True))
    except (binascii.Error, ValueError):
        return None


def shown(content_type: str, size: int) -> str:
    """What people are shown instead of a payload that is not JSON."""
    return f"encrypted ({size} bytes)" if content_type.startswith(SEALED) else f"({size} bytes of {content_type})"
