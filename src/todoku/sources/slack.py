"""Slack's Events API: `X-Slack-Signature: v0=…` signs the timestamp and the body. The id is `event_id`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from todoku.core.ingest import Challenge, Identity, ReceivedRequest, Secret, check_event_id, text_at
from todoku.sources.signing import check_secrets, find_match, hex_mac, is_fresh, verifier_repr


class Slack(msgspec.Struct, frozen=True):
    """The `Verifier` of Slack."""

    secrets: tuple[Secret, ...]
    kept: tuple[str, ...] = ("x-slack-retry-num", "x-slack-retry-reason")

    def __repr__(self) -> str:
        return verifier_repr("slack", self.secrets)

    def key(self, secret: str) -> bytes:
        """See `Verifier`."""
        return secret.encode()

    def signed_by(self, arrived: ReceivedRequest, keys: Sequence[bytes], now: float) -> int | None:
        """See `Verifier`."""
        timestamp = arrived.headers.get("x-slack-request-timestamp", "")
        signed = f"v0:{timestamp}:".encode() + arrived.body
        expected = [f"v0={hex_mac(key, signed)}" for key in keys]
        found = find_match(expected, [arrived.headers.get("x-slack-signature", "")])
        return found if is_fresh(timestamp, now) else None

    def identity(self, _arrived: ReceivedRequest, event: object) -> Identity | Challenge:
        """See `Verifier`. The type is that of the inner event. Slack sends a challenge once, to verify the URL."""
        kind = text_at("type", event)
        if kind == "url_verification" and (challenge := text_at("challenge", event)) is not None:
            return Challenge(challenge)
        id = check_event_id(text_at("event_id", event), "event_id in its JSON")
        return Identity(id, text_at("event.type", event) or kind)


def slack(*, secrets: Iterable[Secret]) -> Slack:
    """Verifies events of a Slack app, with its signing secret. `{type}` is that of the event: `reaction_added`."""
    return Slack(check_secrets(secrets))
