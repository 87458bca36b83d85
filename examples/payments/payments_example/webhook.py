"""MODE=queue: the webhook verifies what Stripe posts, hands it to the queue, and answers 204. Nothing else."""

from __future__ import annotations

from uuid import uuid4

import stripe
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool

from payments_example.application import RETRIES
from payments_example.problem import problem
from payments_example.settings import Settings
from todoku.client import Queue, QueueUnavailable

_LARGEST = 1 << 20


def add_webhook(api: FastAPI, settings: Settings, queue: Queue) -> None:
    """`POST /webhooks/stripe`."""
    # 1, 2, 4 s: as QStash reads it, the milliseconds before the next attempt.
    waits = f"pow(2, retried) * {round(settings.first_wait * 1000)}"

    @api.post("/webhooks/stripe")
    async def webhook(request: Request) -> Response:
        request_id = request.headers.get("x-request-id") or str(uuid4())
        body = await _read(request)
        event = None if body is None else _verified(body, request.headers.get("stripe-signature", ""), settings)
        if body is None or event is None:
            return problem(400, "this was not signed by Stripe, or is too old or too large", request_id)
        try:
            published = await run_in_threadpool(
                queue.publish,
                settings.worker_url,
                body,
                deduplication_id=event.id,
                retries=RETRIES,
                retry_delay=waits,
                headers={"Content-Type": "application/json", "X-Event-Id": event.id, "X-Correlation-Id": request_id},
            )
        except QueueUnavailable:
            return problem(503, "the queue cannot take it now; please send it again", request_id)
        ids = {"X-Request-Id": request_id, "X-Event-Id": event.id, "Upstash-Message-Id": published.id}
        return Response(status_code=204, headers=ids)


def _verified(body: bytes, signature: str, settings: Settings) -> stripe.Event | None:
    """The event, if one of our secrets signed it within five minutes."""
    for secret in settings.stripe_secrets:
        try:
            return stripe.Webhook.construct_event(body, signature, secret)
        except (stripe.SignatureVerificationError, ValueError, KeyError):
            continue
    return None


async def _read(request: Request) -> bytes | None:
    """The raw body: what was signed are bytes. None: it is larger than any event."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _LARGEST:
            return None
    return bytes(body)
