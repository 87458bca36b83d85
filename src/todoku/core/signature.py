"""Signatures that prove who sent a request: the token of `Upstash-Signature`, and the headers of Standard Webhooks.

Verifying compares in constant time with every key, and answers yes or no: why not is nothing to tell a stranger.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import msgspec

from todoku.core.errors import InvalidSetting
from todoku.core.msgspec_warmup import warm_up

# ------------------------------------------------------------
# Signing keys: the current one, and the next one. Receivers try both. No repr contains them.

_KEY: Final = re.compile(r"[\x21-\x2b\x2d-\x7e]{16,256}")
_HINT: Final = "TODOKU_SIGNING_KEYS is current,next: two keys of 16 to 256 characters; without it todoku creates them"


class SigningKeys(msgspec.Struct, frozen=True, kw_only=True):
    """`current` signs now, `next` signs after the next rotation. `old` keys signed before the last rotation."""

    current: str
    next: str
    old: tuple[str, ...] = ()
    made: bool = False
    """Whether this call created them, so that they have not been shown before."""

    def __repr__(self) -> str:
        return "<SigningKeys>"


def signing_keys(text: object) -> SigningKeys | None:
    """Parses the setting: `current,next`, or a list of both; raises InvalidSetting. None: it is not set."""
    if text is None or isinstance(text, SigningKeys):
        return text
    parts = text if isinstance(text, list | tuple) else str(text).split(",")
    keys = [str(part).strip() for part in parts]
    if keys in ([], [""]):
        return None
    if len(keys) != 2 or keys[0] == keys[1] or not all(map(_KEY.fullmatch, keys)):
        raise InvalidSetting("signing_keys cannot be read", hint=_HINT)
    return SigningKeys(current=keys[0], next=keys[1])


# ------------------------------------------------------------
# Detects empty secrets. A secret left empty by mistake (`STRIPE_SECRET=`) must not make every signature valid.

_PREFIX: Final = "whsec_"
_QUOTES: Final = re.compile(r"[\"'`]+")


@lru_cache(maxsize=256)
def is_blank(secret: str) -> bool:
    """Whether a secret has no visible character apart from quotes and the prefix `whsec_`.

    `docker run --env-file` passes on the quotes of `SECRET=""`, and a file that an editor saved empty may contain an
    invisible byte order mark.
    """
    visible = "".join(letter for letter in secret if letter.isprintable() and not letter.isspace())
    return not _QUOTES.sub("", visible).removeprefix(_PREFIX)


def is_blank_key(key: bytes) -> bool:
    """Whether a key signs like the empty key: HMAC pads short keys with zeros, so a key of zeros counts as empty."""
    return not key.strip(b"\0 \t\r\n")


ISSUER: Final = "Upstash"
LASTS: Final = 300
"""Seconds a token is good for. It is made anew for each attempt."""

BACKDATED: Final = 30
"""Seconds by which `iat` lies in the past: the official client refuses a token from the future, tolerance or not."""

WEBHOOK_ID: Final = "webhook-id"
WEBHOOK_TIMESTAMP: Final = "webhook-timestamp"
WEBHOOK_SIGNATURE: Final = "webhook-signature"
_SECRET_PREFIX: Final = "whsec_"  # noqa: S105  # what a secret begins with is none
_VERSION: Final = "v1,"
_ID: Final = re.compile(r"[!-\-/-~]{1,256}")  # printable, without the dot that ends it where it is signed
_URLSAFE: Final = bytes.maketrans(b"+/", b"-_")


class _Header(msgspec.Struct, frozen=True):
    alg: str
    typ: str = "JWT"


class _Claims(msgspec.Struct, frozen=True, kw_only=True):
    """`nbf` is 0, so that a receiver's slow clock refuses nothing; there is no `aud`, which PyJWT would refuse."""

    iss: str
    sub: str
    exp: int
    nbf: int
    iat: int
    jti: str
    body: str


warm_up(_Header, _Claims)


# ------------------------------------------------------------------------------------------------ Upstash-Signature


def upstash_signature(url: str, body: bytes, *, key: str, now: float, jti: str) -> str:
    """The token for one attempt to send `body` to `url`; `now` in seconds since 1970, `jti` unlike any other.

    InvalidSetting if the key is empty: anybody could sign with that.
    """
    if is_blank(key):
        raise InvalidSetting("the signing key is empty", hint="`todoku signing-keys rotate` makes new ones")
    issued = int(now) - BACKDATED
    claims = _Claims(iss=ISSUER, sub=url, exp=int(now) + LASTS, nbf=0, iat=issued, jti=jti, body=_hash(body))
    signed = f"{_HEADER}.{_base64url(msgspec.json.encode(claims))}"
    return f"{signed}.{_hs256(key, signed)}"


def verify_upstash(
    token: str, body: bytes, *, keys: Sequence[str], now: float, url: str | None = None, leeway: float = 0.0
) -> bool:
    """Whether one of the keys signed exactly this body (for exactly this URL, if one is given) and not long ago."""
    signed, _, signature = token.rpartition(".")
    # Text against text: of base64 that decodes to the same bytes in several spellings, only one is ours.
    matches = [_same(_hs256(key, signed), signature) for key in keys if not is_blank(key)]
    if not any(matches):
        return False
    header, _, payload = signed.partition(".")
    try:
        algorithm = msgspec.json.decode(_decoded(header), type=_Header)
        claims = msgspec.json.decode(_decoded(payload), type=_Claims)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError):
        return False
    return (
        algorithm.alg == "HS256"
        and claims.iss == ISSUER
        and (url is None or _same(claims.sub, url))
        and _same(claims.body.rstrip("="), _hash(body))
        and max(claims.nbf, claims.iat) <= now + leeway
        and now - leeway < claims.exp
    )


def _hs256(key: str, signed: str) -> str:
    return _base64url(mac(key.encode(), signed.encode("utf-8", "surrogatepass")))


# ------------------------------------------------------------------------------------------------ Standard Webhooks


def webhook_secret(key: str) -> str:
    """The Standard Webhooks secret of a signing key, `whsec_…`: its bytes in base64, for a receiver's library."""
    return _SECRET_PREFIX + base64.b64encode(key.encode()).decode()


def webhook_headers(id: str, body: bytes, *, secrets: Sequence[str], now: float) -> dict[str, str]:
    """The three headers of Standard Webhooks for one attempt, one signature a secret (current and next).

    `id` is the same on every attempt: by it a receiver knows a repetition. InvalidSetting if it or a secret cannot be.
    """
    if not _ID.fullmatch(id):
        raise InvalidSetting(f"webhook-id cannot be {id!r}", hint="printable characters without a dot")
    timestamp = str(int(now))
    signed = f"{id}.{timestamp}.".encode() + body
    signatures = [_VERSION + _base64(mac(webhook_key(secret), signed)) for secret in secrets]
    if not signatures:
        raise InvalidSetting("a webhook is signed by at least one secret", hint="whsec_…")
    return {WEBHOOK_ID: id, WEBHOOK_TIMESTAMP: timestamp, WEBHOOK_SIGNATURE: " ".join(signatures)}


def _base64(raw: bytes) -> str:
    return binascii.b2a_base64(raw, newline=False).decode()


@lru_cache(maxsize=256)
def webhook_key(secret: str) -> bytes:
    """What a secret of Standard Webhooks, `whsec_…`, signs with; or InvalidSetting."""
    encoded = secret.removeprefix(_SECRET_PREFIX).rstrip("=")
    try:
        key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if is_blank_key(key):
        raise InvalidSetting("a secret of Standard Webhooks is empty, or cannot be read", hint="whsec_ and base64")
    return key


# ------------------------------------------------------------------------------------------------ text and bytes


def mac(key: bytes, signed: bytes) -> bytes:
    """HMAC-SHA256, for all who sign and all who verify."""
    # Not hmac.digest: that lets go of the interpreter lock each time, and is 20 times slower beside busy threads.
    made = _keyed(key).copy()
    made.update(signed)
    return made.digest()


@lru_cache(maxsize=256)
def _keyed(key: bytes) -> hmac.HMAC:
    return hmac.new(key, digestmod=hashlib.sha256)


def _same(one: str, other: str) -> bool:
    """Equal, in a time that does not tell how much of it is."""
    return hmac.compare_digest(one.encode("utf-8", "surrogatepass"), other.encode("utf-8", "surrogatepass"))


def _base64url(raw: bytes) -> str:
    return binascii.b2a_base64(raw, newline=False).translate(_URLSAFE).rstrip(b"=").decode()


def _hash(body: bytes) -> str:
    return _base64url(hashlib.sha256(body).digest())


def _decoded(text: str) -> bytes:
    return base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)


_HEADER: Final = _base64url(msgspec.json.encode(_Header("HS256")))
