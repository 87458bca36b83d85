"""Requests as sources send them: signed by their own libraries where there are some, else as they describe it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import standardwebhooks
import stripe

import todoku
from todoku.core.ingest import ReceivedRequest, Verifier

SECRET = "the-newest-secret"
OLD = "the-one-before-it"
WEBHOOK_SECRET = "whsec_" + base64.b64encode(b"a secret of 24 bytes ...").decode()
OLD_WEBHOOK_SECRET = "whsec_" + base64.b64encode(b"another of 24 bytes ....").decode()

Sign = Callable[..., dict[str, str]]


class Kind(msgspec.Struct, frozen=True):
    """A source: how its requests are verified, and how they are signed."""

    name: str
    make: Callable[..., Verifier]
    secrets: tuple[str, str]
    sign: Sign
    signature: str
    """The header that holds the signature."""
    timed: bool
    """Whether it signs a time."""

    def verifier(self) -> Verifier:
        return self.make(secrets=list(self.secrets))

    def keys(self) -> list[bytes]:
        verifier = self.verifier()
        return [verifier.key(secret) for secret in self.secrets]

    def arrived(self, body: bytes, *, secret: int = 0, at: float | None = None, id: str = "evt_1") -> ReceivedRequest:
        at = time.time() if at is None else at
        return ReceivedRequest(self.sign(body, self.secrets[secret], at=at, id=id), body)


def event(id: str = "evt_1", type: str = "payment_intent.succeeded", **more: Any) -> bytes:
    """The body of an event that every source could have sent."""
    return json.dumps({"id": id, "event_id": id, "type": type, "data": {"object": {"id": "pi_1"}}, **more}).encode()


def stripe_headers(body: bytes, secret: str, *, at: float, id: str = "") -> dict[str, str]:
    signed = stripe.WebhookSignature._compute_signature(f"{int(at)}.{body.decode()}", secret)
    return {"stripe-signature": f"t={int(at)},v1={signed},v0={'0' * 64}"}


def github_headers(body: bytes, secret: str, *, at: float, id: str) -> dict[str, str]:
    signed = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
    return {"x-hub-signature-256": f"sha256={signed}", "x-github-delivery": id, "x-github-event": "pull_request"}


def slack_headers(body: bytes, secret: str, *, at: float, id: str = "") -> dict[str, str]:
    signed = hmac.new(secret.encode(), f"v0:{int(at)}:".encode() + body, hashlib.sha256).hexdigest()
    return {"x-slack-request-timestamp": str(int(at)), "x-slack-signature": f"v0={signed}"}


def shopify_headers(body: bytes, secret: str, *, at: float, id: str) -> dict[str, str]:
    signed = base64.b64encode(hmac.new(secret.encode(), body, hashlib.sha256).digest()).decode()
    return {
        "x-shopify-hmac-sha256": signed, "x-shopify-webhook-id": id, "x-shopify-topic": "orders/create",
        "x-shopify-shop-domain": "example.myshopify.com",
    }  # fmt: skip


def standard_headers(body: bytes, secret: str, *, at: float, id: str) -> dict[str, str]:
    signed = standardwebhooks.Webhook(secret).sign(id, datetime.fromtimestamp(int(at), UTC), body.decode())
    return {"webhook-id": id, "webhook-timestamp": str(int(at)), "webhook-signature": signed}


def hmac_headers(body: bytes, secret: str, *, at: float, id: str = "") -> dict[str, str]:
    signed = hmac.new(secret.encode(), f"{int(at)}.".encode() + body, hashlib.sha512).hexdigest()
    return {"x-signature": f"sha512={signed}", "x-sent-at": str(int(at))}


def _hmac(secrets: list[str]) -> Verifier:
    return todoku.hmac(
        secrets=secrets, header="X-Signature", prefix="sha512=", algorithm="sha512", timestamp="X-Sent-At"
    )


PLAIN, WEBHOOK = (SECRET, OLD), (WEBHOOK_SECRET, OLD_WEBHOOK_SECRET)
KINDS = (
    Kind("stripe", todoku.stripe, PLAIN, stripe_headers, "stripe-signature", True),
    Kind("github", todoku.github, PLAIN, github_headers, "x-hub-signature-256", False),
    Kind("slack", todoku.slack, PLAIN, slack_headers, "x-slack-signature", True),
    Kind("shopify", todoku.shopify, PLAIN, shopify_headers, "x-shopify-hmac-sha256", False),
    Kind("standard", todoku.standard_webhooks, WEBHOOK, standard_headers, "webhook-signature", True),
    Kind("hmac", _hmac, PLAIN, hmac_headers, "x-signature", True),
)
TIMED = tuple(kind for kind in KINDS if kind.timed)
