"""MODE=queue: the worker. It updates the payment and answers what the queue is to do next (the seed's contract).

| answer | meaning |
|---|---|
| 204 | done, or done before |
| 489 with Upstash-NonRetryable-Error | never: not signed by the queue, no event, or it does not say whose |
| 503 | not now: the database is away |
"""

from __future__ import annotations

from uuid import uuid4

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from qstash import Receiver
from qstash.errors import SignatureError

import todoku
from payments_example.application import UNAVAILABLE, Payments
from payments_example.events import StripeEvent
from todoku.engine.observability.log import Log
from todoku.integrations.receiver import ack, dead, retry

_EVENT = msgspec.json.Decoder(StripeEvent)


def add_worker(api: FastAPI, payments: Payments) -> None:
    """`POST /worker`."""
    settings = payments.settings
    receiver = Receiver(current_signing_key=settings.signing_keys[0], next_signing_key=settings.signing_keys[1])

    def answered(body: bytes, signature: str, log: Log) -> tuple[Response, str]:
        try:
            receiver.verify(signature=signature, body=body.decode(), url=settings.worker_url)
        except (SignatureError, UnicodeDecodeError):
            return dead("BAD_SIGNATURE"), ""
        try:
            event = _EVENT.decode(body)
        except msgspec.MsgspecError:
            return dead("BAD_PAYLOAD"), ""
        try:
            with payments.sessions.begin() as tx:
                payments.record(tx, event, log)
        except todoku.Abort as never:
            log.bind(event_id=event.id).error("payment", error_type="Abort", reason=never.reason)
            return dead(never.reason), event.id
        except UNAVAILABLE as error:
            log.bind(event_id=event.id).warning("payment", error_type=type(error).__name__)
            return retry(), event.id
        return ack(), event.id

    @api.post("/worker")
    async def worker(request: Request) -> Response:
        body = await request.body()
        correlation = request.headers.get("x-correlation-id") or str(uuid4())
        message_id = request.headers.get("upstash-message-id", "")
        log = Log(correlation_id=correlation, message_id=message_id)
        signature = request.headers.get("upstash-signature", "")
        response, event_id = await run_in_threadpool(answered, body, signature, log)
        ids = {"x-request-id": correlation, "x-event-id": event_id, "upstash-message-id": message_id}
        response.headers.update({name: value for name, value in ids.items() if value})
        return response
