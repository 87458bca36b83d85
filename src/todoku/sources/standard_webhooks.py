"""Standard Webhooks: `webhook-id`, `webhook-timestamp`, `webhook-signature`, all three signed with the body.

Svix's own spelling of the headers, `svix-…`, is the same thing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from todoku.core.ingest import Arrived, Identity, Secret, checked_id, text_at
from todoku.core.signature import webhook_key
from todoku.sources.signing import based, checked, is_fresh, matching, shown

_SPELLINGS: Final = ("webhook-", "svix-")


class StandardWebhooks(msgspec.Struct, frozen=True):
    """A `Verifier`."""

    secrets: tuple[Secret, ...]
    kept: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return shown("standard_webhooks", self.secrets)

    def key(self, secret: str) -> bytes:
        """`whsec_` and base64, or InvalidSetting."""
        return webhook_key(secret)

    def signed_by(self, arrived: Arrived, keys: Sequence[bytes], now: float) -> int | None:
        """See `Verifier`. Of the versions only `v1` is made with a shared secret."""
        id, timestamp = _header(arrived, "id"), _header(arrived, "timestamp")
        signed = f"{id}.{timestamp}.".encode() + arrived.body
        found = matching([f"v1,{based(key, signed)}" for key in keys], _header(arrived, "signature").split(" "))
        # With a dot in the id, what was signed could be read in two ways.
        return found if is_fresh(timestamp, now) and "." not in id else None

    def identity(self, arrived: Arrived, event: object) -> Identity:
        """See `Verifier`."""
        return Identity(checked_id(_header(arrived, "id"), "the header webhook-id"), text_at("type", event))


def standard_webhooks(*, secrets: Iterable[Secret]) -> StandardWebhooks:
    """Webhooks as standardwebhooks.com describes them (Svix, Clerk, Resend, OpenAI …), with secrets `whsec_…`."""
    given = checked(secrets)
    for secret in given:
        if isinstance(secret, str):
            webhook_key(secret)
    return StandardWebhooks(given)


def _header(arrived: Arrived, name: str) -> str:
    """By one spelling for all three: a mixture was signed by nobody."""
    spelling = next((one for one in _SPELLINGS if f"{one}id" in arrived.headers), _SPELLINGS[0])
    return arrived.headers.get(f"{spelling}{name}", "")
