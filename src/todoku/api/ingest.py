"""`POST /ingest/{source}`: what a source posts is verified, stored in one commit, and then answered with 204.

The one endpoint that is paid for by the thousand a second. A plain event is taken straight from the wire; the rest, and
everything where the endpoint is mounted in somebody's application, takes ASGI as it comes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from todoku.api.auth import Guarded
from todoku.api.body import READ_WITHIN, read_bytes
from todoku.api.ingest_fast_path import RawHeaders
from todoku.api.ingest_fast_path import Send as Answer
from todoku.api.problem import NOT_STORED, Refused, answer, told
from todoku.api.request_context import RequestContext
from todoku.api.request_frame import Framed, id_for, id_of, said_of
from todoku.app import App
from todoku.core.ingest import Challenge, ReceivedRequest
from todoku.engine.group_commit import GroupCommit
from todoku.engine.ingest.receive import Ingest, Unverified, Visit, Visits
from todoku.engine.ingest.source import NoSecret

_PATH: Final = "/ingest/"
_TAKEN: Final = frozenset({"", "application/json", "text/json", "text/plain", "application/octet-stream"})
"""Content types of bodies that may be JSON, beside whatever ends with +json: not every source says what it sends."""

_UNVERIFIED: Final = "the request cannot be accepted: there is no such source, it did not sign this, or it is no JSON"
_NO_SECRET: Final = "this source cannot be verified now; try again later"  # noqa: S105  # a sentence
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.:-]*", re.ASCII)
_PRINTABLE: Final = "!\"#$&'()*+,/:;<=>?@[\\]^`{|}"


def ingest_endpoint(context: RequestContext) -> IngestEndpoint:
    """The endpoint of a daemon."""
    return IngestEndpoint(context.box.receiver(context.together), within=context.settings.api_receive_sec)


def ingest_app(box: App, *, within: float = READ_WITHIN) -> ASGIApp:
    """The same to mount in an application of one's own: `POST /{source}` below wherever that is.

    `within`: so many seconds a body may take to arrive.
    """
    endpoint = IngestEndpoint(box.receiver(GroupCommit(box.outbox)), within=within)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            raise HTTPException(405, headers={"allow": "POST"})
        source = scope["path"].removeprefix(scope.get("root_path", "")).strip("/")
        if not source:
            raise HTTPException(404, "name a source")
        await endpoint.serve(source, scope, receive, send)

    return Framed(app)


class IngestRoute(Guarded):
    """The route of a daemon's sources, found without a pattern. Open: whoever posts proves by a signature who it is."""

    def __init__(self, context: RequestContext, endpoint: IngestEndpoint) -> None:
        super().__init__(f"{_PATH}{{source}}", _never, methods=["POST"], access="open", gate=context.gate)
        self._endpoint = endpoint

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


class IngestEndpoint:
    """Answers the requests to one App's sources."""

    below = _PATH.encode()

    def __init__(self, ingest: Ingest, *, within: float) -> None:
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
        await send({"type": "http.response.start", "status": 204, "headers": _naming(visit)})
        await send({"type": "http.response.body"})

    def take(self, source: str, raw: RawHeaders, body: bytes, send: Answer) -> bool:
        """As `serve`, of a request that is there already: see `Taker`."""
        headers = _texts(raw)
        if len(body) > self._ingest.outbox.settings.max_payload_bytes or not _is_plain(headers):
            return False
        visit = self._ingest.visit(source, id_for(raw))

        def told(error: Exception | None) -> None:
            request_id = visit.request_id
            if error is None:
                self._visits.end(visit, 204)
                send(204, (*_naming(visit), (b"x-request-id", request_id.encode())))
                return
            said = said_of(error, request_id, "POST", _PATH + source)
            self._visits.end(visit, said.status, error)
            problem = answer(said, request_id)
            send(said.status, (*problem.raw_headers, (b"x-request-id", request_id.encode())), bytes(problem.body))

        return self._ingest.submit(source, ReceivedRequest(headers, body), visit, told)

    async def _received(self, source: str, scope: Scope, receive: Receive, visit: Visit) -> Challenge | None:
        headers = _texts(scope["headers"])
        _refuse_other_types(headers.get("content-type", ""))
        limit = self._ingest.outbox.settings.max_payload_bytes
        body = await read_bytes(headers, receive, limit=limit, seconds=self._within)
        return await self._ingest.receive(source, ReceivedRequest(headers, body), visit)


def _refusal(error: Exception) -> Exception:
    match error:
        case Unverified():
            return Refused(400, _UNVERIFIED)
        case NoSecret():
            return Refused(503, _NO_SECRET, headers={"retry-after": "10"})
        case _:
            return error


def _texts(raw: RawHeaders) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in raw}


def _is_plain(headers: Mapping[str, str]) -> bool:
    return "content-encoding" not in headers and _is_taken(_kind(headers.get("content-type", "")))


@lru_cache(maxsize=64)
def _kind(given: str) -> str:
    return given.partition(";")[0].strip().lower()


def _is_taken(kind: str) -> bool:
    return kind in _TAKEN or kind.endswith("+json")


def _refuse_other_types(given: str) -> None:
    if not _is_taken(kind := _kind(given)):
        raise Refused(415, f"a body of type {kind[:80]!r} is not accepted", hint="let the source send application/json")


def _naming(visit: Visit) -> list[tuple[bytes, bytes]]:
    """The headers of an answer that name what was stored."""
    return [
        (b"x-event-id", _shown(visit.event_id or "")), (b"upstash-message-id", (visit.message_id or "").encode())
    ]  # fmt: skip


def _shown(event_id: str) -> bytes:
    """An id as a header can carry it: what is not ASCII is percent-encoded."""
    return (event_id if _PLAIN.fullmatch(event_id) else quote(event_id, safe=_PRINTABLE)).encode()
