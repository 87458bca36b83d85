"""`POST /ingest/{source}`: verifies the event of a source, stores it in one commit, and answers 204.

Built for thousands of requests per second. A daemon takes plain events directly from its HTTP protocol
(`ingest_fast_path`); all others, and those of an endpoint mounted in another application, go through ASGI.
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

from todoku.api.auth import GuardedRoute
from todoku.api.body import BODY_TIMEOUT, read_bytes
from todoku.api.ingest_fast_path import RawHeaders
from todoku.api.ingest_fast_path import Send as Answer
from todoku.api.problem import NO_STORE, Refused, error_response, problem_response
from todoku.api.request_context import RequestContext
from todoku.api.request_frame import RequestFrame, handle_error, request_id_from, request_id_of
from todoku.app import App
from todoku.core.ingest import Challenge, ReceivedRequest
from todoku.engine.group_commit import GroupCommit
from todoku.engine.ingest.receive import Ingest, Unverified, Visit, Visits
from todoku.engine.ingest.source import NoSecret

_PATH: Final = "/ingest/"
_JSON_TYPES: Final = frozenset({"", "application/json", "text/json", "text/plain", "application/octet-stream"})
"""Content types of bodies that may be JSON, besides those that end with +json: not every source declares its type."""

_UNVERIFIED: Final = (
    "the request is not accepted: the source is unknown, the signature is not valid, or the body is not JSON"
)
_NO_SECRET: Final = "this source cannot be verified now; try again later"  # noqa: S105  # a sentence
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.:-]*", re.ASCII)
_PRINTABLE: Final = "!\"#$&'()*+,/:;<=>?@[\\]^`{|}"


def ingest_endpoint(context: RequestContext) -> IngestEndpoint:
    """Returns the endpoint of a daemon."""
    return IngestEndpoint(context.box.receiver(context.group_commit), within=context.settings.api_receive_sec)


def ingest_app(box: App, *, within: float = BODY_TIMEOUT) -> ASGIApp:
    """Returns the endpoint as an ASGI application to mount in another one: `POST /{source}` below its mount path.

    `within`: the seconds a body may take to arrive.
    """
    endpoint = IngestEndpoint(box.receiver(GroupCommit(box.outbox)), within=within)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            raise HTTPException(405, headers={"allow": "POST"})
        source = scope["path"].removeprefix(scope.get("root_path", "")).strip("/")
        if not source:
            raise HTTPException(404, "the path must name a source")
        await endpoint.serve(source, scope, receive, send)

    return RequestFrame(app)


class IngestRoute(GuardedRoute):
    """The route of a daemon's sources, matched without a pattern. It needs no token: sources sign their requests."""

    def __init__(self, context: RequestContext, endpoint: IngestEndpoint) -> None:
        super().__init__(f"{_PATH}{{source}}", _never, methods=["POST"], access="open", gate=context.gate)
        self._endpoint = endpoint

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Returns whether a request posts to a source (partial: uses another method)."""
        path: str = scope["path"]
        if not path.startswith(_PATH) or path.count("/") > _PATH.count("/") or len(path) == len(_PATH):
            return Match.NONE, {}
        return (Match.FULL if scope["method"] == "POST" else Match.PARTIAL), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        await self._endpoint.serve(scope["path"][len(_PATH) :], scope, receive, send)


def _never(_: Any) -> Response:
    """Satisfies Starlette, which requires an endpoint; `handle` never calls it."""
    raise AssertionError("IngestRoute.handle answers by itself")


class IngestEndpoint:
    """Serves requests to the sources of one App."""

    below = _PATH.encode()

    def __init__(self, ingest: Ingest, *, within: float) -> None:
        self._ingest = ingest
        self._within = within
        self._visits = Visits(ingest.outbox.telemetry, ingest.counts)

    async def serve(self, source: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers 204, or 200 with the text that a source's challenge requests. Raises the error to answer with."""
        visit = self._ingest.visit(source, request_id_of(scope))
        try:
            challenge = await self._receive(source, scope, receive, visit)
        except Exception as error:
            self._visits.end(visit, error_response(refusal := _refusal(error)).status, error)
            raise refusal from error
        if challenge is not None:
            self._visits.end(visit, 200)
            await Response(challenge.text, 200, NO_STORE, "text/plain")(scope, receive, send)
            return
        self._visits.end(visit, 204)
        await send({"type": "http.response.start", "status": 204, "headers": _id_headers(visit)})
        await send({"type": "http.response.body"})

    def take(self, source: str, raw: RawHeaders, body: bytes, send: Answer) -> bool:
        """Like `serve`, for a request that has arrived completely: see `FastPathHandler`."""
        headers = _decode_headers(raw)
        if len(body) > self._ingest.outbox.settings.max_payload_bytes or not _is_plain(headers):
            return False
        visit = self._ingest.visit(source, request_id_from(raw))

        def respond(error: Exception | None) -> None:
            request_id = visit.request_id
            if error is None:
                self._visits.end(visit, 204)
                send(204, (*_id_headers(visit), (b"x-request-id", request_id.encode())))
                return
            described = handle_error(error, request_id, "POST", _PATH + source)
            self._visits.end(visit, described.status, error)
            problem = problem_response(described, request_id)
            send(described.status, (*problem.raw_headers, (b"x-request-id", request_id.encode())), bytes(problem.body))

        return self._ingest.submit(source, ReceivedRequest(headers, body), visit, respond)

    async def _receive(self, source: str, scope: Scope, receive: Receive, visit: Visit) -> Challenge | None:
        headers = _decode_headers(scope["headers"])
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


def _decode_headers(raw: RawHeaders) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in raw}


def _is_plain(headers: Mapping[str, str]) -> bool:
    return "content-encoding" not in headers and _may_be_json(_media_type(headers.get("content-type", "")))


@lru_cache(maxsize=64)
def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _may_be_json(kind: str) -> bool:
    return kind in _JSON_TYPES or kind.endswith("+json")


def _refuse_other_types(content_type: str) -> None:
    if not _may_be_json(kind := _media_type(content_type)):
        raise Refused(
            415, f"a body of type {kind[:80]!r} is not accepted", hint="configure the source to send application/json"
        )


def _id_headers(visit: Visit) -> list[tuple[bytes, bytes]]:
    """Returns the response headers with the ids of the stored event."""
    return [
        (b"x-event-id", _header_value(visit.event_id or "")), (b"upstash-message-id", (visit.message_id or "").encode())
    ]  # fmt: skip


def _header_value(event_id: str) -> bytes:
    """Returns an event id as a header value: characters outside ASCII are percent-encoded."""
    return (event_id if _PLAIN.fullmatch(event_id) else quote(event_id, safe=_PRINTABLE)).encode()
