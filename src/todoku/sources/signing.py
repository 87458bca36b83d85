"""Shared by all sources: checks of secrets, reprs without them, and comparison of signatures in constant time."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from hmac import compare_digest
from typing import Final

from todoku.core.errors import InvalidSetting
from todoku.core.ingest import ReferencedSecret, Secret
from todoku.core.secret_text import names_secret
from todoku.core.signature import is_blank, mac

TOLERANCE: Final = 300.0
"""Seconds by which a timestamp may lie in the past or in the future. An older request is taken for a replay attack."""

MOST_SIGNATURES: Final = 32
"""The most signatures of one request that are compared; a source sends one for each of its secrets."""

_TIMESTAMP: Final = re.compile(r"[0-9]{1,12}", re.ASCII)
_HINT: Final = 'secrets=["…"]: the newest first, then the previous one, as long as both are in use'


def check_secrets(secrets: Iterable[Secret]) -> tuple[Secret, ...]:
    """Returns the secrets; raises InvalidSetting unless there is at least one, and each is a text or a Ref."""
    if isinstance(secrets, str | bytes) or not isinstance(secrets, Iterable):
        raise InvalidSetting("secrets must be a list", hint=_HINT)
    given = tuple(secrets)
    if not given:
        raise InvalidSetting("secrets is empty", hint=_HINT)
    for place, secret in enumerate(given):
        if isinstance(secret, str):
            if names_secret(secret):
                hint = 'pass a Ref: secrets=[todoku.Ref("secret://provider/path")]'
                raise InvalidSetting(f"secrets[{place}] names a secret and is none", hint=hint)
            if is_blank(secret) or secret != secret.strip():
                raise InvalidSetting(f"secrets[{place}] is empty or has spaces around it", hint=_HINT)
        elif not isinstance(secret, ReferencedSecret):
            raise InvalidSetting(f"secrets[{place}] is {type(secret).__name__}", hint='a text, or todoku.Ref("env:…")')
    return given


def verifier_repr(source: str, secrets: Sequence[Secret]) -> str:
    """Returns the repr of a verifier, without its secrets."""
    return f"<{source} with {len(secrets)} secret{'s' if len(secrets) > 1 else ''}>"


def find_match(expected: Sequence[str], given: Sequence[str]) -> int | None:
    """Returns the index of the first of `expected` that is in `given`, or None.

    All are compared with all, in constant time, as text: several spellings of base64 decode to the same bytes, and only
    the canonical one is accepted.
    """
    found: int | None = None
    candidates = [_bytes(one) for one in given[:MOST_SIGNATURES]]
    for place, one in enumerate(expected):
        for other in candidates:
            if compare_digest(one.encode(), other) and found is None:
                found = place
    return found


def is_fresh(timestamp: str, now: float) -> bool:
    """Whether a timestamp (unix seconds, as text) is within TOLERANCE of `now`."""
    return _TIMESTAMP.fullmatch(timestamp) is not None and abs(now - int(timestamp)) <= TOLERANCE


def hex_mac(key: bytes, signed: bytes) -> str:
    """Returns the HMAC-SHA256 in hexadecimal."""
    return mac(key, signed).hex()


def base64_mac(key: bytes, signed: bytes) -> str:
    """Returns the HMAC-SHA256 in base64."""
    return base64.b64encode(mac(key, signed)).decode()


def _bytes(text: str) -> bytes:
    """Encodes the value of a header, which may contain lone surrogates."""
    return text.encode("utf-8", "surrogatepass")
