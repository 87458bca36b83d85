"""What all sources share: secrets that nobody reads off a repr, and comparing that tells nothing."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from hmac import compare_digest
from typing import Final

from todoku.core.blank_secret import is_blank
from todoku.core.errors import InvalidSetting
from todoku.core.ingest import ReferencedSecret, Secret
from todoku.core.signature import mac

TOLERANCE: Final = 300.0
"""Seconds by which a timestamp may lie in the past or in the future: what is older was recorded by somebody."""

MOST_SIGNATURES: Final = 32
"""Signatures of one request that are looked at: a source sends one for each of its secrets."""

_TIMESTAMP: Final = re.compile(r"[0-9]{1,12}", re.ASCII)
_HINT: Final = 'secrets=["…"]: the newest first, and the one before it for as long as both are in use'


def checked(secrets: Iterable[Secret]) -> tuple[Secret, ...]:
    """At least one secret, each a text or a Ref; or InvalidSetting."""
    if isinstance(secrets, str | bytes) or not isinstance(secrets, Iterable):
        raise InvalidSetting("secrets must be a list", hint=_HINT)
    kept = tuple(secrets)
    if not kept:
        raise InvalidSetting("secrets is empty", hint=_HINT)
    for place, secret in enumerate(kept):
        if isinstance(secret, str):
            if is_blank(secret) or secret != secret.strip():
                raise InvalidSetting(f"secrets[{place}] is empty or has spaces around it", hint=_HINT)
        elif not isinstance(secret, ReferencedSecret):
            raise InvalidSetting(f"secrets[{place}] is {type(secret).__name__}", hint='a text, or todoku.Ref("env:…")')
    return kept


def shown(source: str, secrets: Sequence[Secret]) -> str:
    """A verifier as it may be printed."""
    return f"<{source} with {len(secrets)} secret{'s' if len(secrets) > 1 else ''}>"


def matching(wanted: Sequence[str], given: Sequence[str]) -> int | None:
    """The place of the first of `wanted` that is among `given`; all are compared with all, in constant time.

    Text with text: of spellings that decode to the same bytes only one is right.
    """
    found: int | None = None
    candidates = [_bytes(one) for one in given[:MOST_SIGNATURES]]
    for place, one in enumerate(wanted):
        for other in candidates:
            if compare_digest(one.encode(), other) and found is None:
                found = place
    return found


def is_fresh(timestamp: str, now: float) -> bool:
    """Whether unix seconds, as text, are near `now`: neither long ago nor far in the future."""
    return _TIMESTAMP.fullmatch(timestamp) is not None and abs(now - int(timestamp)) <= TOLERANCE


def hexed(key: bytes, signed: bytes) -> str:
    """HMAC-SHA256 in hexadecimal."""
    return mac(key, signed).hex()


def based(key: bytes, signed: bytes) -> str:
    """HMAC-SHA256 in base64."""
    return base64.b64encode(mac(key, signed)).decode()


def _bytes(text: str) -> bytes:
    """What a header held, whatever that was."""
    return text.encode("utf-8", "surrogatepass")
