"""The admin console: todoku's dashboard at /admin, and `failed_webhook_events` as JSON. For whoever has ADMIN_TOKEN."""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import Annotated, Any

from fastapi import Body, FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

import todoku
from payments_example.application import Payments
from payments_example.failed import Failed
from payments_example.problem import problem, request_id
from todoku.web.viewer import Viewer

_ASKED = {"WWW-Authenticate": "Basic"}


class Gate:
    """Lets in whoever has the token: any name, and the token as its password. The name goes into the audit."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()

    def name(self, request: Request) -> str | None:
        """Who it is; None: somebody without the token."""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        try:
            name, _, password = base64.b64decode(given).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        known = scheme.lower() == "basic" and hmac.compare_digest(password.encode(), self._token)
        return (name or "admin") if known else None

    def viewer(self, request: Request) -> Viewer | None:
        """Who looks at the dashboard."""
        name = self.name(request)
        return None if name is None else Viewer.of_role(name, "operator")

    def admitted(self, request: Request) -> str:
        """Who asks for JSON, or 401."""
        if (name := self.name(request)) is None:
            raise HTTPException(401, headers=_ASKED)
        return name


class Guarded:
    """An ASGI application behind the gate: whoever has no token is asked for the password."""

    def __init__(self, gate: Gate, app: ASGIApp) -> None:
        self._gate, self._app = gate, app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        request = Request(scope)
        refused = problem(401, "Unauthorized", request_id(request), _ASKED)
        await (self._app if self._gate.name(request) is not None else refused)(scope, receive, send)


def add_admin(api: FastAPI, payments: Payments, failed: Failed) -> None:
    """The dashboard at /admin; `GET /admin/failed`, `POST /admin/failed/{event_id}/rerun`. Without a token: nothing."""
    if payments.settings.admin_token is None:
        return
    gate = Gate(payments.settings.admin_token)

    @api.get("/admin/failed")
    async def listed(request: Request) -> list[dict[str, Any]]:
        gate.admitted(request)
        return await run_in_threadpool(failed.rows)

    @api.post("/admin/failed/{event_id}/rerun", status_code=204, response_class=Response)
    async def rerun(event_id: str, request: Request, why: Annotated[str, Body(embed=True)]) -> Response:
        # The body is JSON, which no form of another site sends: a browser sends the password along, whoever made it.
        by = gate.admitted(request)
        try:
            await run_in_threadpool(failed.rerun, event_id, by=by, why=why)
        except todoku.DatabaseUnavailable:
            raise
        except todoku.TodokuError as error:  # there is no such event, or it was sent again already
            return problem(409, str(error), request_id(request))
        return Response(status_code=204)

    api.mount("/admin", Guarded(gate, payments.box.web(auth=gate.viewer)))
