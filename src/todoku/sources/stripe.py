"""Stripe: `Stripe-Signature: t=…,v1=…`, with one `v1` for each secret of the endpoint. The id is that of the event."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from todoku.core.ingest import Identity, ReceivedRequest, Secret, check_event_id, text_at
from todoku.sources.signing import check_secrets, find_match, hex_mac, is_fresh, verifier_repr


class Stripe(msgspec.Struct, frozen=True):
    """The `Verifier` of Stripe."""

    secrets: tuple[Secret, ...]
    kept: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return verifier_repr("stripe", self.secrets)

    def key(self, secret: str) -> bytes:
        """See `Verifier`. The key includes the prefix `whsec_`."""
        return secret.encode()

    def signed_by(self, arrived: ReceivedRequest, keys: Sequence[bytes], now: float) -> int | None:
        """See `Verifier`."""
        timestamp, given = "", []
        for part in arrived.headers.get("stripe-signature", "").split(","):
            name, _, value = part.strip().partition("=")
            if name == "v1":
                given.append(value)
            elif name == "t" and not timestamp:
                timestamp = value
        signed = timestamp.encode() + b"." + arrived.body
        found = find_match([hex_mac(key, signed) for key in keys], given)
        return found if is_fresh(timestamp, now) else None

    def identity(self, _arrived: ReceivedRequest, event: object) -> Identity:
        """See `Verifier`."""
        return Identity(check_event_id(text_at("id", event), "id in its JSON"), text_at("type", event))


def stripe(*, secrets: Iterable[Secret]) -> Stripe:
    """Verifies events of Stripe, signed with an endpoint's secret, `whsec_…`; during a rotation, with both secrets."""
    return Stripe(check_secrets(secrets))
