"""What a daemon answers about itself: `/healthz`, `/readyz`, `/metrics`, the page at `/`, and its JSON.

Health is read from memory, in the server's own event loop: neither a database that hangs nor many readers of the page
keep it from answering.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from todoku.api.auth import Endpoint, Guarded
from todoku.api.condition import Condition, Watched
from todoku.api.local import names_this_machine
from todoku.api.page import CSP, Listed, listed_row, page
from todoku.core.errors import TodokuError
from todoku.store.values import Counts, Delivery

_NEWEST = 50
_MOST = 500


def health_routes(daemon: Watched, *, local: bool = False) -> list[Guarded]:
    """The routes, open to everybody. Everything in them only reads.

    `local`: it is served to this machine alone, so what deliveries say is not told under another machine's name: a
    page on the Internet that lets its name point here would be the one who asks.
    """

    async def healthz(_: Request) -> Response:
        condition = daemon.condition()
        return _json({"live": condition.live, "state": condition.state}, 200 if condition.live else 503)

    async def readyz(request: Request) -> Response:
        condition = daemon.condition()
        body = {"ready": not condition.reasons, "reasons": condition.reasons}
        if "verbose" in request.query_params:
            body |= _verbose(condition)
        return _json(body, 503 if condition.reasons else 200)

    # Not async: these may wait for the database, so they run in threads.
    def metrics(_: Request) -> Response:
        return Response(daemon.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    def messages(request: Request) -> Response:
        given = request.query_params.get("limit", str(_NEWEST))
        if not (given.isdecimal() and 0 < int(given) <= _MOST):
            return _json({"title": f"limit must be 1 to {_MOST}", "status": 400}, 400)
        try:
            rows = [listed_row(delivery) for delivery in daemon.newest(int(given))]
            return _json({"counts": _numbers(daemon.counts()), "deliveries": rows}, 200)
        except TodokuError as error:
            return _json({"title": str(error), "status": 503}, 503)

    def first_page(_: Request) -> Response:
        headers = {"content-security-policy": CSP, "x-content-type-options": "nosniff", "cache-control": "no-store"}
        return Response(page(_listed(daemon)), media_type="text/html", headers=headers)

    return [
        _open("/", _guarded(first_page, local)),
        _open("/healthz", healthz),
        _open("/readyz", readyz),
        _open("/metrics", metrics),
        _open("/api/messages", _guarded(messages, local)),
    ]


def _open(path: str, endpoint: Endpoint) -> Guarded:
    return Guarded(path, endpoint, methods=["GET", "HEAD"], access="open")


def _verbose(condition: Condition) -> dict[str, Any]:
    blocked = [worker.blocked for worker in condition.workers if worker.blocked]
    return {
        "state": condition.state,
        "checks": condition.checks,
        "workers": condition.workers,
        "blocked": sorted(set(blocked)),
        "breakers": condition.breakers,
        "pings": condition.pings,
    }


def _listed(daemon: Watched) -> Listed:
    condition = daemon.condition()
    numbers: dict[str, int] = {}
    rows: tuple[Delivery, ...] = ()
    problem = ""
    try:
        rows, numbers = daemon.newest(_NEWEST), _numbers(daemon.counts())
    except TodokuError as error:
        problem = str(error)
    blocked = [f"{worker.blocked} blocks its worker" for worker in condition.workers if worker.blocked]
    return Listed(daemon.title, condition.state, (*condition.reasons, *blocked), numbers, rows, problem)


def _guarded(endpoint: Callable[[Request], Response], local: bool) -> Callable[[Request], Response]:
    def answer(request: Request) -> Response:
        if local and not names_this_machine(request.url.hostname or ""):
            return _json({"title": "ask for http://localhost here, or start with --host", "status": 403}, 403)
        return endpoint(request)

    return answer


def _numbers(counts: Counts) -> dict[str, int]:
    return {status: counts.of(status) for status in ("pending", "sending", "succeeded", "failed", "aborted")}


def _json(body: object, status: int) -> Response:
    headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
    return Response(msgspec.json.encode(body), status, headers, "application/json")
