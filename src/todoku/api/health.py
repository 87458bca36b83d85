"""What a daemon answers about itself: `/healthz`, `/readyz`, `/metrics`, the page at `/`, and its JSON.

Health is read from memory, in the server's own event loop: neither a database that hangs nor many readers of the page
keep it from answering.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from todoku.api.auth import Endpoint, Gate, Guarded
from todoku.api.condition import Condition, Watched
from todoku.api.local_requests import came_straight
from todoku.api.page import CSP, Listed, listed_row, page
from todoku.api.problem import Refused, told
from todoku.core.control_characters import encode_json
from todoku.core.errors import TodokuError
from todoku.store.deliveries import Delivery
from todoku.store.statistics import Counts

_NEWEST = 50
_MOST = 500
_METHODS = ["GET", "HEAD"]


def health_routes(daemon: Watched, gate: Gate, *, local: bool = False, metrics_open: bool = False) -> list[Guarded]:
    """The routes. Everything in them only reads. Health is open to everybody, the rest needs the scope `read`.

    `local`: only this machine can connect, and its own programs and browsers need no token.
    """
    near = _Nearby(local=local)
    of = _Health(daemon, gate, near)

    def reading(path: str, endpoint: Endpoint) -> Guarded:
        return Guarded(path, endpoint, methods=_METHODS, access="read", gate=gate, unless=near.asks)

    return [
        reading("/", of.first_page),
        _open("/healthz", of.healthz),
        _open("/readyz", of.readyz),
        _open("/metrics", of.metrics) if metrics_open else reading("/metrics", of.metrics),
        reading("/api/messages", of.messages),
    ]


class _Nearby:
    """Tells requests of this machine's own programs and browsers from others.

    What asks under another machine's name, or was passed on by a proxy, comes from elsewhere: a page on the Internet
    may let its own name point here.
    """

    def __init__(self, *, local: bool) -> None:
        self._local = local

    def asks(self, request: Request) -> bool:
        """Whether the request needs no token. Refused: it comes from elsewhere, and has none."""
        if not self._local:
            return False
        straight = came_straight(request.headers)
        if not straight and "authorization" not in request.headers:
            raise Refused(403, "without a token this is for this machine alone", hint="ask for http://localhost here")
        return straight


class _Health:
    """The endpoints. Those that are not async may wait for the database, so they run in threads."""

    def __init__(self, daemon: Watched, gate: Gate, near: _Nearby) -> None:
        self._daemon, self._gate, self._near = daemon, gate, near

    async def healthz(self, _: Request) -> Response:
        """Whether it lives."""
        condition = self._daemon.condition()
        return _json({"live": condition.live, "state": condition.state}, 200 if condition.live else 503)

    async def readyz(self, request: Request) -> Response:
        """Whether it may be given work; with `?verbose`, how each of its parts is."""
        verbose = "verbose" in request.query_params
        if verbose and not self._near.asks(request):
            await self._gate.admit(request, "read")
        condition = self._daemon.condition()
        body = {"ready": not condition.reasons, "reasons": condition.reasons}
        return _json(body | (_verbose(condition) if verbose else {}), 503 if condition.reasons else 200)

    def metrics(self, _: Request) -> Response:
        """Prometheus text."""
        return Response(self._daemon.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")

    def messages(self, request: Request) -> Response:
        """What changed last, as JSON."""
        given = request.query_params.get("limit", str(_NEWEST))
        if not (given.isdecimal() and 0 < int(given) <= _MOST):
            return _json({"title": f"limit must be 1 to {_MOST}", "status": 400}, 400)
        rows = [listed_row(delivery) for delivery in self._daemon.newest(int(given))]
        return _json({"counts": _numbers(self._daemon.counts()), "deliveries": rows}, 200)

    def first_page(self, _: Request) -> Response:
        """What changed last, for people."""
        headers = {"content-security-policy": CSP, "x-content-type-options": "nosniff", "cache-control": "no-store"}
        return Response(page(_listed(self._daemon)), media_type="text/html", headers=headers)


def _open(path: str, endpoint: Endpoint) -> Guarded:
    return Guarded(path, endpoint, methods=_METHODS, access="open")


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
        problem = told(error).detail
    blocked = [f"{worker.blocked} blocks its worker" for worker in condition.workers if worker.blocked]
    return Listed(daemon.title, condition.state, (*condition.reasons, *blocked), numbers, rows, problem)


def _numbers(counts: Counts) -> dict[str, int]:
    return {status: counts.of(status) for status in ("pending", "sending", "succeeded", "failed", "aborted")}


def _json(body: object, status: int) -> Response:
    headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
    return Response(encode_json(body), status, headers, "application/json")
