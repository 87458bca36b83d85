"""`POST /ingest/{source}`: what a source posts is verified, stored in one commit, and then answered with 204.

The one endpoint that is paid for by the thousand a second, so it takes ASGI as it comes: an object for the request, for
its headers and for the answer would cost as much as storing the event.
"""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from todoku.api.auth import Guarded
from todoku.api.body import read_bytes
from todoku.api.context import Context
from todoku.api.frame import Framed, id_of
from todoku.api.problem import NOT_STORED, Refused, told
from todoku.app import App
from todoku.core.ingest import Arrived, Challenge
from todoku.engine.ingest.keys import NoSecret
from todoku.engine.ingest.receive import Ingest, Unverified
from todoku.engine.ingest.visit import Visit, Visits
from todoku.engine.together import Together

_PATH: Final = "/ingest/"
_TAKEN: Final = frozenset({"", "application/json", "text/json", "text/plain", "application/octet-stream"})
"""Content types of bodies that may be JSON, beside whatever ends with +json: not every source says what it sends."""

_UNVERIFIED: Final = "the request cannot be accepted: there is no such source, it did not sign this, or it is no JSON"
_NO_SECRET: Final = "this source cannot be verified now; try again later"  # noqa: S105  # a sentence
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.:-]*", re.ASCII)
_PRINTABLE: Final = "!\"#$&'()*+,/:;<=>?@[\\]^`{|}"


def ingest_routes(context: Context) -> list[Guarded]:
    """The routes of a daemon. Open: whoever posts proves by its signature who it is."""
    return [IngestRoute(context)]


def ingest_app(box: App, *, within: float | None = None) -> ASGIApp:
    """The same to mount in an application of one's own: `POST /{source}` below wherever that is.

    `within`: so many seconds a body may take to arrive.
    """
    endpoint = Endpoint(box.receiver(Together(box.outbox)), within=within)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            raise HTTPException(405, headers={"allow": "POST"})
        source = scope["path"].removeprefix(scope.get("root_path", "")).strip("/")
        if not source:
            raise HTTPException(404, "name a source")
        await endpoint.serve(source, scope, receive, send)

    return Framed(app)


class IngestRoute(Guarded):
    """The route of a daemon's sources, found without a pattern."""

    def __init__(self, context: Context) -> None:
        super().__init__(f"{_PATH}{{source}}", _never, methods=["POST"], access="open", gate=context.gate)
        self._endpoint = Endpoint(context.box.receiver(context.together))

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether a request is for a source, and posts to it."""
        path: str = scope["path"]
        if not path.startswith(_PATH) or path.count("/") > _PATH.count("/") or len(path) == len(_PATH):
            return Match.NONE, {}
        return (Match.FULL if scope["method"] == "POST" else Match.PARTIAL), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one."""
        await self._endpoint.serve(scope["path"][len(_PATH) :], scope, receive, send)


def _never(_: Any) -> Response:
    """What Starlette wants of a route; `handle` answers before it is asked."""
    raise AssertionError("IngestRoute.handle answers by itself")


class Endpoint:
    """Answers the requests to one App's sources."""

    def __init__(self, ingest: Ingest, *, within: float | None = None) -> None:
        self._ingest = ingest
        self._within = within
        self._visits = Visits(ingest.outbox.telemetry)

    async def serve(self, source: str, scope: Scope, receive: Receive, send: Send) -> None:
        """204, or what a source asked to be answered; or an error that says what is wrong."""
        visit = self._ingest.visit(source, id_of(scope))
        try:
            found = await self._received(source, scope, receive, visit)
        except Exception as error:
            self._visits.end(visit, told(refusal := _refusal(error)).status, error)
            raise refusal from error
        if found is not None:
            self._visits.end(visit, 200)
            await Response(found.text, 200, NOT_STORED, "text/plain")(scope, receive, send)
            return
        self._visits.end(visit, 204)
        headers = [
            (b"x-event-id", _shown(visit.event_id or "")), (b"upstash-message-id", (visit.message_id or "").encode())
        ]  # fmt: skip
        await send({"type": "http.response.start", "status": 204, "headers": headers})
        await send({"type": "http.response.body"})

    async def _received(self, source: str, scope: Scope, receive: Receive, visit: Visit) -> Challenge | None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        _refuse_other_types(headers.get("content-type", ""))
        limit = self._ingest.outbox.settings.max_payload_bytes
        body = await read_bytes(headers, receive, limit=limit, seconds=self._within)
        return await self._ingest.receive(source, Arrived(headers, body), visit)


def _refusal(error: Exception) -> Exception:
    match error:
        case Unverified():
            return Refused(400, _UNVERIFIED)
        case NoSecret():
            return Refused(503, _NO_SECRET, headers={"retry-after": "10"})
        case _:
            return error


def _refuse_other_types(given: str) -> None:
    kind = given.partition(";")[0].strip().lower()
    if kind not in _TAKEN and not kind.endswith("+json"):
        raise Refused(415, f"a body of type {kind[:80]!r} is not accepted", hint="let the source send application/json")


def _shown(event_id: str) -> bytes:
    """An id as a header can carry it: what is not ASCII is percent-encoded."""
    return (event_id if _PLAIN.fullmatch(event_id) else quote(event_id, safe=_PRINTABLE)).encode()
