"""The HTTP side of the example: the webhook, the worker, the dashboard, the metrics, and a payment to look at."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request, Response

from payments_example.admin import add_admin
from payments_example.application import Payments
from payments_example.failed import Failed
from payments_example.payments import payment
from payments_example.problem import add_problems, problem, request_id
from todoku.client import Queue


def make_api(payments: Payments, queue: Queue) -> FastAPI:
    """The API on an application that is prepared."""
    settings = payments.settings
    api = FastAPI(title="payments", docs_url=None, redoc_url=None)
    add_problems(api)
    api.add_route("/metrics", payments.box.metrics_app)  # needs a token of todoku with the scope `read`
    if settings.mode == "embedded":
        api.mount("/ingest", payments.box.ingest_app)  # POST /ingest/stripe: verify, one commit, 204
    else:
        from payments_example.webhook import add_webhook  # noqa: PLC0415 - only where Stripe's library is used
        from payments_example.worker import add_worker  # noqa: PLC0415 - and QStash's

        add_webhook(api, settings, queue)
        add_worker(api, payments)
    add_admin(api, payments, Failed(payments, queue))

    @api.get("/payments/{intent}", response_model=None)
    def get_payment(intent: str, request: Request) -> dict[str, Any] | Response:
        with payments.sessions() as tx:
            found = payment(tx, intent)
        return problem(404, f"there is no payment {intent}", request_id(request)) if found is None else found

    return api
