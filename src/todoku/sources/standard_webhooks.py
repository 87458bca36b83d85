"""Standard Webhooks: `webhook-signature` signs the id, the timestamp and the body.

The headers may also have Svix's prefix, `svix-`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from todoku.core.ingest import Identity, ReceivedRequest, Secret, check_event_id, text_at
from todoku.core.signature import webhook_key
from todoku.sources.signing import base64_mac, check_secrets, find_match, is_fresh, verifier_repr

_PREFIXES: Final = ("webhook-", "svix-")


class StandardWebhooks(msgspec.Struct, frozen=True):
    """The `Verifier` of Standard Webhooks."""

    secrets: tuple[Secret, ...]
    kept: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return verifier_repr("standard_webhooks", self.secrets)

    def key(self, secret: str) -> bytes:
        """See `Verifier`. A secret is `whsec_` and base64."""
        return webhook_key(secret)

    def signed_by(self, arrived: ReceivedRequest, keys: Sequence[bytes], now: float) -> int | None:
        """See `Verifier`. Only signatures of version `v1` use a shared secret."""
        id, timestamp = _header(arrived, "id"), _header(arrived, "timestamp")
        signed = f"{id}.{timestamp}.".encode() + arrived.body
        found = find_match([f"v1,{base64_mac(key, signed)}" for key in keys], _header(arrived, "signature").split(" "))
        # With a dot in the id, the signed text would be ambiguous.
        return found if is_fresh(timestamp, now) and "." not in id else None

    def identity(self, arrived: ReceivedRequest, event: object) -> Identity:
        """See `Verifier`."""
        return Identity(check_event_id(_header(arrived, "id"), "the header webhook-id"), text_at("type", event))


def standard_webhooks(*, secrets: Iterable[Secret]) -> StandardWebhooks:
    """Verifies Standard Webhooks, standardwebhooks.com (Svix, Clerk, Resend, OpenAI …), with secrets `whsec_…`."""
    given = check_secrets(secrets)
    for secret in given:
        if isinstance(secret, str):
            webhook_key(secret)
    return StandardWebhooks(given)


def _header(arrived: ReceivedRequest, name: str) -> str:
    """Returns a header. All three must have the same prefix, because no source mixes them."""
    spelling = next((one for one in _PREFIXES if f"{one}id" in arrived.headers), _PREFIXES[0])
    return arrived.headers.get(f"{spelling}{name}", "")
