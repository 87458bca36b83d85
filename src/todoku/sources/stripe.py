"""Stripe: `Stripe-Signature: t=…,v1=…`, one `v1` for each secret of the endpoint. The id is the event's own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from todoku.core.ingest import Arrived, Identity, Secret, checked_id, text_at
from todoku.sources.signing import checked, hexed, is_fresh, matching, shown


class Stripe(msgspec.Struct, frozen=True):
    """A `Verifier`."""

    secrets: tuple[Secret, ...]
    kept: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return shown("stripe", self.secrets)

    def key(self, secret: str) -> bytes:
        """The whole secret, `whsec_` included."""
        return secret.encode()

    def signed_by(self, arrived: Arrived, keys: Sequence[bytes], now: float) -> int | None:
        """See `Verifier`."""
        timestamp, given = "", []
        for part in arrived.headers.get("stripe-signature", "").split(","):
            name, _, value = part.strip().partition("=")
            if name == "v1":
                given.append(value)
            elif name == "t" and not timestamp:
                timestamp = value
        signed = timestamp.encode() + b"." + arrived.body
        wanted = [hexed(key, signed) for key in keys]
        found = matching(wanted, given)
        return found if is_fresh(timestamp, now) else None

    def identity(self, _arrived: Arrived, event: object) -> Identity:
        """See `Verifier`."""
        return Identity(checked_id(text_at("id", event), "id in its JSON"), text_at("type", event))


def stripe(*, secrets: Iterable[Secret]) -> Stripe:
    """Events of Stripe, signed with an endpoint's secret, `whsec_…`; while it is rolled, with the new and the old."""
    return Stripe(checked(secrets))
