"""MODE=queue: the worker. It updates the payment and answers what the queue is to do next (the seed's contract).

| answer | meaning |
|---|---|
| 204 | done, or done before |
| 489 with Upstash-NonRetryable-Error | never: not signed by the queue, no event, or it does not say whose |
| 503 | not now: the database is away |
"""

from __future__ import annotations

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from qstash import Receiver
from qstash.errors import SignatureError

import todoku
from payments_example.application import UNAVAILABLE, Payments
from payments_example.events import StripeEvent, participant_of
from payments_example.problem import request_id
from todoku.client import FailedEvents
from todoku.engine.observability.log import Log
from todoku.integrations.receiver import ack, dead, retry

_EVENT = msgspec.json.Decoder(StripeEvent)


def add_worker(api: FastAPI, payments: Payments) -> None:
    """`POST /worker`."""
    settings = payments.settings
    receiver = Receiver(current_signing_key=settings.signing_keys[0], next_signing_key=settings.signing_keys[1])

    failed = FailedEvents(payments.box)

    def answered(body: bytes, signature: str, correlation: str, lines: Log) -> tuple[Response, str]:
        try:
            receiver.verify(signature=signature, body=body.decode(), url=settings.worker_url)
        except (SignatureError, UnicodeDecodeError):
            lines.error("payment", error_type="SignatureError", reason="BAD_SIGNATURE")
            return dead("BAD_SIGNATURE", request_id=correlation), ""
        try:
            event = _EVENT.decode(body)
        except msgspec.MsgspecError as error:
            lines.error("payment", error_type=type(error).__name__, reason="BAD_PAYLOAD")
            return dead("BAD_PAYLOAD", request_id=correlation), ""
        lines = lines.bind(event_id=event.id, participant_id=participant_of(event))
        try:
            with payments.sessions.begin() as tx:
                payments.record(tx, event, lines, correlation=correlation)
                # It may have failed before, and Stripe has sent it again.
                failed.close(tx, event.id, by="stripe", why="the event came again, and was recorded")
        except todoku.Abort as never:
            lines.error("payment", error_type="Abort", reason=never.reason)
            return dead(never.reason, request_id=correlation), event.id
        except UNAVAILABLE as error:
            lines.warning("payment", error_type=type(error).__name__)
            return retry(request_id=correlation), event.id
        return ack(), event.id

    @api.post("/worker")
    async def worker(request: Request) -> Response:
        body = await request.body()
        correlation = request.headers.get("x-correlation-id") or request_id(request)
        message_id = request.headers.get("upstash-message-id", "")
        log = Log(correlation_id=correlation, message_id=message_id)
        signature = request.headers.get("upstash-signature", "")
        response, event_id = await run_in_threadpool(answered, body, signature, correlation, log)
        ids = {"x-request-id": correlation, "x-event-id": event_id, "upstash-message-id": message_id}
        response.headers.update({name: value for name, value in ids.items() if value})
        return response
