"""`/v2/workflows/hooks/{user}/{run}/{token}`: webhooks of workflow runs, for callers that have no other token."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from todoku.api.body import read_body
from todoku.api.problem import Refused
from todoku.api.qstash.answers import empty_response
from todoku.api.qstash.parsing import segment
from todoku.api.request_context import RequestContext
from todoku.core.workflow_webhook import WebhookRequest
from todoku.engine.http.run_webhooks import RunWebhooks


class WebhookEndpoint:
    """The endpoint of webhooks."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context
        self._webhooks = RunWebhooks(context.outbox)

    async def receive(self, request: Request) -> Response:
        """Stores a request for the run that has created the webhook, whatever it carries. It changes nothing else."""
        run_id, token = segment(request, "run"), segment(request, "token")
        digest = await self._context.gate.admit_by_secret(request, lambda: self._webhooks.find(run_id, token))
        body = await read_body(request, limit=self._context.settings.max_payload_bytes)
        raw, query = request.scope["raw_path"].decode("latin-1"), request.scope["query_string"].decode("latin-1")
        received = WebhookRequest(
            method=request.method,
            path=f"{raw}?{query}" if query else raw,
            headers=request.scope["headers"],
            body=body,
        )
        if not await asyncio.to_thread(self._webhooks.receive, run_id, digest, received):
            hint = "wait until the workflow run has taken some of them"
            raise Refused(429, "too many requests wait for this run", hint=hint, headers={"retry-after": "60"})
        return empty_response()
