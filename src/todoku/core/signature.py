"""Signatures that prove who sent a request: the token of `Upstash-Signature`, and the headers of Standard Webhooks.

Verifying compares with every key in constant time. The result is only true or false, so that an attacker does not
learn why a signature was refused.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from todoku.core.blank_secret import is_blank, is_blank_key
from todoku.core.errors import InvalidSetting
from todoku.core.msgspec_warmup import learned

ISSUER: Final = "Upstash"
LASTS: Final = 300
"""Seconds for which a token is valid. Each attempt has a new one."""

BACKDATED: Final = 30
"""Seconds by which `iat` lies in the past: the official client refuses tokens from the future, without tolerance."""

TOLERANCE: Final = 300.0
"""Seconds by which the timestamp of a Standard Webhook may differ from the receiver's clock, either way."""

WEBHOOK_ID: Final = "webhook-id"
WEBHOOK_TIMESTAMP: Final = "webhook-timestamp"
WEBHOOK_SIGNATURE: Final = "webhook-signature"
_SECRET_PREFIX: Final = "whsec_"  # noqa: S105  # a prefix, not a secret
_VERSION: Final = "v1,"
_ID: Final = re.compile(r"[!-\-/-~]{1,256}")  # printable, without the dot, which separates the id in the signed text
_TIMESTAMP: Final = re.compile(r"[0-9]{1,12}", re.ASCII)
_MAX_SIGNATURES: Final = 32
_URLSAFE: Final = bytes.maketrans(b"+/", b"-_")


class _Header(msgspec.Struct, frozen=True):
    alg: str
    typ: str = "JWT"


class _Claims(msgspec.Struct, frozen=True, kw_only=True):
    """`nbf` is 0, so that a receiver with a slow clock accepts the token. PyJWT would refuse an `aud`."""

    iss: str
    sub: str
    exp: int
    nbf: int
    iat: int
    jti: str
    body: str


learned(_Header, _Claims)


# ------------------------------------------------------------------------------------------------ Upstash-Signature


def upstash_signature(url: str, body: bytes, *, key: str, now: float, jti: str) -> str:
    """Returns the token for one attempt to send `body` to `url`; `now` is in unix seconds, `jti` is unique.

    Raises InvalidSetting if the key is empty, because anyone could sign with it.
    """
    if is_blank(key):
        raise InvalidSetting("the signing key is empty", hint="create new ones with `todoku signing-keys rotate`")
    issued = int(now) - BACKDATED
    claims = _Claims(iss=ISSUER, sub=url, exp=int(now) + LASTS, nbf=0, iat=issued, jti=jti, body=_hash(body))
    signed = f"{_HEADER}.{_base64url(msgspec.json.encode(claims))}"
    return f"{signed}.{_hs256(key, signed)}"


def verify_upstash(
    token: str, body: bytes, *, keys: Sequence[str], now: float, url: str | None = None, leeway: float = 0.0
) -> bool:
    """Whether one of the keys signed exactly this body (for exactly this URL, if given), and the token is valid now."""
    signed, _, signature = token.rpartition(".")
    # Compared as text: several spellings of base64 decode to the same bytes, and only the canonical one is accepted.
    matches = [_same(_hs256(key, signed), signature) for key in keys if not is_blank(key)]
    if not any(matches):
        return False
    header, _, payload = signed.partition(".")
    try:
        algorithm = msgspec.json.decode(_decode(header), type=_Header)
        claims = msgspec.json.decode(_decode(payload), type=_Claims)
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
    """Returns the Standard Webhooks secret of a signing key, `whsec_` and base64, as receivers' libraries expect it."""
    return _SECRET_PREFIX + base64.b64encode(key.encode()).decode()


def webhook_headers(id: str, body: bytes, *, secrets: Sequence[str], now: float) -> dict[str, str]:
    """Returns the three headers of Standard Webhooks for one attempt, with one signature per secret (current and next).

    `id` is the same on every attempt, so that the receiver recognises a repetition. Raises InvalidSetting if it or a
    secret is invalid.
    """
    if not _ID.fullmatch(id):
        raise InvalidSetting(f"webhook-id cannot be {id!r}", hint="use printable characters without a dot")
    timestamp = str(int(now))
    signatures = [_VERSION + _webhook_mac(webhook_key(secret), id, timestamp, body) for secret in secrets]
    if not signatures:
        raise InvalidSetting("a webhook needs at least one secret", hint="whsec_…")
    return {WEBHOOK_ID: id, WEBHOOK_TIMESTAMP: timestamp, WEBHOOK_SIGNATURE: " ".join(signatures)}


def verify_webhook(
    headers: Mapping[str, str], body: bytes, *, secrets: Sequence[str], now: float, tolerance: float = TOLERANCE
) -> bool:
    """Whether one of the secrets signed this body, and the timestamp is at most `tolerance` seconds from `now`."""
    lower = {name.lower(): value for name, value in headers.items()}
    id, timestamp = lower.get(WEBHOOK_ID, ""), lower.get(WEBHOOK_TIMESTAMP, "")
    if not _ID.fullmatch(id) or not _TIMESTAMP.fullmatch(timestamp):
        return False
    given = [part for part in lower.get(WEBHOOK_SIGNATURE, "").split(" ") if part.startswith(_VERSION)]
    expected = [_VERSION + _webhook_mac(webhook_key(secret), id, timestamp, body) for secret in secrets]
    matches = [_same(one, other) for one in expected for other in given[:_MAX_SIGNATURES]]
    return any(matches) and abs(now - int(timestamp)) <= tolerance


def _webhook_mac(key: bytes, id: str, timestamp: str, body: bytes) -> str:
    signed = f"{id}.{timestamp}.".encode() + body
    return binascii.b2a_base64(mac(key, signed), newline=False).decode()


@lru_cache(maxsize=256)
def webhook_key(secret: str) -> bytes:
    """Returns the HMAC key of a Standard Webhooks secret, `whsec_…`; raises InvalidSetting."""
    encoded = secret.removeprefix(_SECRET_PREFIX).rstrip("=")
    try:
        key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if is_blank_key(key):
        raise InvalidSetting(
            "a secret of Standard Webhooks is empty, or cannot be read", hint="write whsec_ and base64"
        )
    return key


# ------------------------------------------------------------------------------------------------ text and bytes


def mac(key: bytes, signed: bytes) -> bytes:
    """Returns the HMAC-SHA256 of `signed`."""
    # Not hmac.digest: it releases the GIL on each call, which makes it 20 times slower beside busy threads.
    state = _keyed(key).copy()
    state.update(signed)
    return state.digest()


@lru_cache(maxsize=256)
def _keyed(key: bytes) -> hmac.HMAC:
    return hmac.new(key, digestmod=hashlib.sha256)


def _same(one: str, other: str) -> bool:
    """Compares in constant time."""
    return hmac.compare_digest(one.encode("utf-8", "surrogatepass"), other.encode("utf-8", "surrogatepass"))


def _base64url(raw: bytes) -> str:
    return binascii.b2a_base64(raw, newline=False).translate(_URLSAFE).rstrip(b"=").decode()


def _hash(body: bytes) -> str:
    return _base64url(hashlib.sha256(body).digest())


def _decode(text: str) -> bytes:
    return base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), altchars=b"-_", validate=True)


_HEADER: Final = _base64url(msgspec.json.encode(_Header("HS256")))
