"""The HTTP side of the example: the webhook, the worker, the admin page, and a payment to look at."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from fastapi import FastAPI, Response
from sqlalchemy.exc import DBAPIError

import todoku
from payments_example.admin import add_admin
from payments_example.application import Payments
from payments_example.failed import Failed
from payments_example.payments import payment
from payments_example.problem import problem
from todoku.client import Queue


def make_api(payments: Payments, queue: Queue) -> FastAPI:
    """The API on an application that is prepared."""
    settings = payments.settings
    api = FastAPI(title="payments", docs_url=None, redoc_url=None)
    for kind in (DBAPIError, todoku.DatabaseUnavailable):
        api.exception_handler(kind)(_away)
    if settings.mode == "embedded":
        api.mount("/ingest", payments.box.ingest_app)  # POST /ingest/stripe: verify, one commit, 204
    else:
        from payments_example.webhook import add_webhook  # noqa: PLC0415 - only where Stripe's library is used
        from payments_example.worker import add_worker  # noqa: PLC0415 - and QStash's

        add_webhook(api, settings, queue)
        add_worker(api, payments)
    add_admin(api, settings, Failed(payments, queue))

    @api.get("/payments/{intent}", response_model=None)
    def get_payment(intent: str) -> dict[str, Any] | Response:
        with payments.sessions() as tx:
            found = payment(tx, intent)
        return problem(404, f"there is no payment {intent}", str(uuid4())) if found is None else found

    return api


def _away(_request: object, error: Exception) -> Response:
    return problem(503, f"the database cannot do this now ({type(error).__name__})", str(uuid4()))
