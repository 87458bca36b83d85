"""Any source that signs the body by HMAC: the caller chooses the header, the digest and where the id is."""

from __future__ import annotations

import base64
import hmac as digests
import re
from collections.abc import Iterable, Sequence
from typing import Final, Literal, get_args

import msgspec

from todoku.core.errors import InvalidSetting
from todoku.core.ingest import Identity, ReceivedRequest, Secret, check_event_id, check_path, text_at
from todoku.sources.signing import check_secrets, find_match, is_fresh, verifier_repr

Algorithm = Literal["sha256", "sha512", "sha1"]
Encoding = Literal["hex", "base64"]

_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}", re.ASCII)


class Hmac(msgspec.Struct, frozen=True, kw_only=True):
    """The `Verifier` with options for any source."""

    secrets: tuple[Secret, ...]
    header: str
    prefix: str
    algorithm: Algorithm
    encoding: Encoding
    timestamp: str | None
    id_header: str | None
    id: str
    type: str
    kept: tuple[str, ...]

    def __repr__(self) -> str:
        return verifier_repr("hmac", self.secrets)

    def key(self, secret: str) -> bytes:
        """See `Verifier`."""
        return secret.encode()

    def signed_by(self, arrived: ReceivedRequest, keys: Sequence[bytes], now: float) -> int | None:
        """See `Verifier`."""
        body, fresh = arrived.body, True
        if self.timestamp is not None:
            timestamp = arrived.headers.get(self.timestamp, "")
            body, fresh = timestamp.encode() + b"." + body, is_fresh(timestamp, now)
        expected = [self.prefix + self._encode(digests.digest(key, body, self.algorithm)) for key in keys]
        found = find_match(expected, [arrived.headers.get(self.header, "")])
        return found if fresh else None

    def identity(self, arrived: ReceivedRequest, event: object) -> Identity:
        """See `Verifier`."""
        if self.id_header is not None:
            id = check_event_id(arrived.headers.get(self.id_header), f"the header {self.id_header}")
        else:
            id = check_event_id(text_at(self.id, event), f"{self.id} in its JSON")
        return Identity(id, text_at(self.type, event))

    def _encode(self, raw: bytes) -> str:
        return raw.hex() if self.encoding == "hex" else base64.b64encode(raw).decode()


def hmac(
    *,
    secrets: Iterable[Secret],
    header: str,
    prefix: str = "",
    algorithm: Algorithm = "sha256",
    encoding: Encoding = "hex",
    timestamp: str | None = None,
    id: str = "id",
    id_header: str | None = None,
    type: str = "type",
    keep: Iterable[str] = (),
) -> Hmac:
    """Verifies webhooks whose body is signed by HMAC: `header` contains `prefix` and the digest.

    `timestamp`: a header of unix seconds that is signed, too, as `<timestamp>.<body>`; without it, a replayed request
    is refused only as long as the ledger retains its event id. `id`, `type`: paths into the JSON (`data.id`);
    `id_header`: the header that contains the id instead. `keep`: headers that are stored with the message.
    """
    if algorithm not in get_args(Algorithm) or encoding not in get_args(Encoding):
        raise InvalidSetting(
            f"a signature cannot be {algorithm!r} in {encoding!r}", hint="sha256, sha512, sha1; hex, base64"
        )
    return Hmac(
        secrets=check_secrets(secrets),
        header=_name(header, "header"),
        prefix=prefix,
        algorithm=algorithm,
        encoding=encoding,
        timestamp=None if timestamp is None else _name(timestamp, "timestamp"),
        id_header=None if id_header is None else _name(id_header, "id_header"),
        id=check_path(id, "id"),
        type=check_path(type, "type"),
        kept=tuple(_name(name, "keep") for name in keep),
    )


def _name(header: object, what: str) -> str:
    if not isinstance(header, str) or not _HEADER.fullmatch(header):
        raise InvalidSetting(f"{what} cannot be {header!r}", hint="give the name of a header, such as X-Signature")
    return header.lower()
