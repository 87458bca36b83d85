"""MODE=queue: the webhook verifies what Stripe posts, hands it to the queue, and answers 204. Nothing else."""

from __future__ import annotations

import msgspec
import stripe
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool

from payments_example.application import RETRIES
from payments_example.problem import problem, request_id
from payments_example.settings import Settings
from todoku.client import Queue, QueueRefused, QueueUnavailable
from todoku.engine.observability.log import Log

_LARGEST = 1 << 20


class _Identified(msgspec.Struct, frozen=True):
    """What the webhook must know of an event."""

    id: str


_EVENT = msgspec.json.Decoder(_Identified)


def add_webhook(api: FastAPI, settings: Settings, queue: Queue) -> None:
    """`POST /webhooks/stripe`."""
    # 1, 2, 4 s: as QStash reads it, the milliseconds before the next attempt.
    waits = f"pow(2, retried) * {round(settings.first_wait * 1000)}"

    @api.post("/webhooks/stripe")
    async def webhook(request: Request) -> Response:
        id = request_id(request)
        body = await _read(request)
        signature = request.headers.get("stripe-signature", "")
        if body is None or not _is_signed(body, signature, settings):
            return problem(400, "this was not signed by Stripe, or is too old or too large", id)
        event_id = _event_id(body)
        if event_id is None:
            return problem(400, "this is no event; it has no id", id)
        try:
            published = await run_in_threadpool(
                queue.publish,
                settings.worker_url,
                body,
                deduplication_id=event_id,
                retries=RETRIES,
                retry_delay=waits,
                headers={"Content-Type": "application/json", "X-Event-Id": event_id, "X-Correlation-Id": id},
            )
        except (QueueUnavailable, QueueRefused):  # and there is no spool that would keep it
            return problem(503, "the queue cannot take it now; please send it again", id)
        log = Log(correlation_id=id, event_id=event_id, message_id=published.id)
        log.info("webhook", how=published.how, duplicate=published.duplicate)
        return Response(status_code=204, headers=ids(id, event_id, published.id))


def ids(request_id: str, event_id: str, message_id: str) -> dict[str, str]:
    """By what everybody knows of it: for the headers of an answer."""
    return {"X-Request-Id": request_id, "X-Event-Id": event_id, "Upstash-Message-Id": message_id}


def _is_signed(body: bytes, signature: str, settings: Settings) -> bool:
    """Whether one of our secrets signed it within five minutes."""
    for secret in settings.stripe_secrets:
        try:
            stripe.WebhookSignature.verify_header(body.decode(), signature, secret, stripe.Webhook.DEFAULT_TOLERANCE)
        except (stripe.SignatureVerificationError, UnicodeDecodeError):
            continue
        return True
    return False


def _event_id(body: bytes) -> str | None:
    """The id of the event; None: it has none that can be in a header."""
    try:
        found = _EVENT.decode(body).id
    except msgspec.MsgspecError:
        return None
    return found if found.isascii() and found.isprintable() and found.strip() else None


async def _read(request: Request) -> bytes | None:
    """The raw body: what was signed are bytes. None: it is larger than any event."""
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > _LARGEST:
            return None
    return bytes(body)
