"""The admin page: what failed for good, and a button that runs it again. For whoever has ADMIN_TOKEN."""

from __future__ import annotations

import hmac
from html import escape
from typing import Any
from urllib.parse import parse_qsl

from fastapi import FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from fastapi.security import HTTPBasic

import todoku
from payments_example.failed import Failed
from payments_example.problem import problem, request_id
from payments_example.settings import Settings

_LARGEST = 4096
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>failed webhook events</title>
<h1>failed_webhook_events</h1>{rows}</html>"""
_ROW = """<form method="post" action="/admin/failed/{id}/rerun"><code>{id}</code> {at} <b>{error}</b> {rerun}
<input name="why" placeholder="why" required><input type="hidden" name="csrf" value="{csrf}">
<button>Run it again</button></form>"""


class Gate:
    """Lets in whoever has the token: any name, and the token as its password. The name goes into the audit."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._asked = HTTPBasic(realm="payments")
        self.csrf = hmac.digest(self._token, b"csrf", "sha256").hex()

    async def admitted(self, request: Request) -> str:
        """Who it is, or 401."""
        given = await self._asked(request)
        if given is None or not hmac.compare_digest(given.password.encode(), self._token):
            raise HTTPException(401, headers={"WWW-Authenticate": "Basic"})
        return given.username or "admin"

    def check_form(self, form: dict[str, str]) -> None:
        """403, unless it is ours: a browser sends the password along, whoever made the form."""
        if not hmac.compare_digest(form.get("csrf", "").encode(), self.csrf.encode()):
            raise HTTPException(403, "this did not come from the admin page")


def add_admin(api: FastAPI, settings: Settings, failed: Failed) -> None:
    """`GET /admin`, `GET /admin/failed` (JSON), `POST /admin/failed/{event_id}/rerun`. Without ADMIN_TOKEN: nothing."""
    if settings.admin_token is None:
        return
    gate = Gate(settings.admin_token)

    @api.get("/admin")
    async def page(request: Request) -> HTMLResponse:
        await gate.admitted(request)
        rows = "".join(_shown(row, gate.csrf) for row in await run_in_threadpool(failed.rows))
        shown = _PAGE.format(rows=rows or "<p>Nothing has failed.</p>")
        return HTMLResponse(shown, headers={"Cache-Control": "no-store", "X-Frame-Options": "DENY"})

    @api.get("/admin/failed")
    async def listed(request: Request) -> list[dict[str, Any]]:
        await gate.admitted(request)
        return await run_in_threadpool(failed.rows)

    @api.post("/admin/failed/{event_id}/rerun")
    async def rerun(event_id: str, request: Request) -> Response:
        by = await gate.admitted(request)
        form = dict(parse_qsl((await request.body())[:_LARGEST].decode("utf-8", "replace")))
        gate.check_form(form)
        try:
            await run_in_threadpool(failed.rerun, event_id, by=by, why=form.get("why", ""))
        except todoku.DatabaseUnavailable:
            raise
        except todoku.TodokuError as error:  # there is no such event, or it was sent again already
            return problem(409, str(error), request_id(request))
        return RedirectResponse("/admin", status_code=303)


def _shown(row: dict[str, Any], csrf: str) -> str:
    again = f"run again {row['rerun_at']} by {row['rerun_by']}" if row["rerun_at"] else ""
    told = {"id": row["event_id"], "at": str(row["created_at"])[:19], "error": row["error"], "rerun": again}
    return _ROW.format(csrf=csrf, **{name: escape(str(value)) for name, value in told.items()})
