"""Shopify: `X-Shopify-Hmac-Sha256` signs the body, in base64. The id and the type are headers that are not signed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from todoku.core.ingest import Identity, ReceivedRequest, Secret, check_event_id
from todoku.sources.signing import base64_mac, check_secrets, find_match, verifier_repr


class Shopify(msgspec.Struct, frozen=True):
    """The `Verifier` of Shopify."""

    secrets: tuple[Secret, ...]
    kept: tuple[str, ...] = ("x-shopify-topic", "x-shopify-shop-domain", "x-shopify-event-id", "x-shopify-triggered-at")

    def __repr__(self) -> str:
        return verifier_repr("shopify", self.secrets)

    def key(self, secret: str) -> bytes:
        """See `Verifier`."""
        return secret.encode()

    def signed_by(self, arrived: ReceivedRequest, keys: Sequence[bytes], _now: float) -> int | None:
        """See `Verifier`. Shopify signs no timestamp."""
        return find_match(
            [base64_mac(key, arrived.body) for key in keys], [arrived.headers.get("x-shopify-hmac-sha256", "")]
        )  # fmt: skip

    def identity(self, arrived: ReceivedRequest, _event: object) -> Identity:
        """See `Verifier`. Every attempt to deliver a webhook has the same id."""
        id = check_event_id(arrived.headers.get("x-shopify-webhook-id"), "the header X-Shopify-Webhook-Id")
        return Identity(id, arrived.headers.get("x-shopify-topic"))


def shopify(*, secrets: Iterable[Secret]) -> Shopify:
    """Verifies webhooks of Shopify, signed with the app's client secret. `{type}` of `orders/create` is
    `orders.create`."""
    return Shopify(check_secrets(secrets))
