"""The daemon's status endpoints: `/healthz`, `/readyz`, `/metrics`, and the last deliveries as JSON.

Health is read from memory in the server's event loop, so that neither a hanging database nor many viewers delay it.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from todoku.api.auth import Endpoint, Gate, GuardedRoute
from todoku.api.body import read_json
from todoku.api.condition import Condition, HealthSource
from todoku.api.local_requests import is_direct_request
from todoku.api.problem import Refused
from todoku.core.control_characters import encode_json
from todoku.engine.observability.count_report import CountReport, CountReports
from todoku.engine.observability.exposition import CONTENT_TYPE
from todoku.store.deliveries import Delivery
from todoku.store.statistics import Counts

_NEWEST = 50
_MOST = 500
_METHODS = ["GET", "HEAD"]
_LARGEST_REPORT = 256 << 10


def health_routes(
    daemon: HealthSource, gate: Gate, reports: CountReports, *, local: bool = False, metrics_open: bool = False
) -> list[GuardedRoute]:
    """Returns the routes. Health needs no token, a report of metrics the scope `publish`, the rest the scope `read`.

    `local`: only this machine can connect, and its own programs and browsers need no token.
    """
    access = _LocalAccess(local=local)
    of = _Health(daemon, gate, access)

    async def report(request: Request) -> Response:
        """Adds what another process has counted to the metrics of this daemon."""
        reports.add(await read_json(request, CountReport, limit=_LARGEST_REPORT))
        return Response(status_code=204)

    def guarded(path: str, endpoint: Endpoint) -> GuardedRoute:
        return GuardedRoute(path, endpoint, methods=_METHODS, access="read", gate=gate, unless=access.needs_no_token)

    return [
        _open("/healthz", of.healthz),
        _open("/readyz", of.readyz),
        _open("/metrics", of.metrics) if metrics_open else guarded("/metrics", of.metrics),
        GuardedRoute("/metrics", report, methods=["POST"], access="publish", gate=gate, unless=access.needs_no_token),
        guarded("/api/messages", of.messages),
    ]


class _LocalAccess:
    """Distinguishes requests of this machine's programs and browsers from those of others.

    A request with another host name, or one that a proxy forwarded, counts as foreign: the host name of a page on the
    Internet may resolve to this machine (DNS rebinding).
    """

    def __init__(self, *, local: bool) -> None:
        self._local = local

    def needs_no_token(self, request: Request) -> bool:
        """Returns whether the request needs no token. Raises Refused (403) if it is foreign and has none."""
        if not self._local:
            return False
        is_direct = is_direct_request(request.headers)
        if not is_direct and "authorization" not in request.headers:
            raise Refused(403, "only this machine needs no token", hint="send a token, or use http://localhost on it")
        return is_direct


class _Health:
    """The endpoints. Those that are not async may query the database and run in threads."""

    def __init__(self, daemon: HealthSource, gate: Gate, access: _LocalAccess) -> None:
        self._daemon, self._gate, self._access = daemon, gate, access

    async def healthz(self, _: Request) -> Response:
        """Returns whether the daemon is alive."""
        condition = self._daemon.condition()
        return _json({"live": condition.live, "state": condition.state}, 200 if condition.live else 503)

    async def readyz(self, request: Request) -> Response:
        """Returns whether the daemon is ready; with `?verbose`, also the condition of each part."""
        verbose = "verbose" in request.query_params
        if verbose and not self._access.needs_no_token(request):
            await self._gate.admit(request, "read")
        condition = self._daemon.condition()
        body = {"ready": not condition.reasons, "reasons": condition.reasons}
        return _json(body | (_verbose(condition) if verbose else {}), 503 if condition.reasons else 200)

    def metrics(self, _: Request) -> Response:
        """Returns the metrics as Prometheus text."""
        return Response(self._daemon.metrics(), media_type=CONTENT_TYPE)

    def messages(self, request: Request) -> Response:
        """Returns the last changed deliveries as JSON."""
        limit = request.query_params.get("limit", str(_NEWEST))
        if not (limit.isdecimal() and 0 < int(limit) <= _MOST):
            return _json({"title": f"limit must be 1 to {_MOST}", "status": 400}, 400)
        found = self._daemon.newest(int(limit))
        known = self._daemon.correlations(found)
        rows = [delivery_fields(one, None if one.message_id is None else known.get(one.message_id)) for one in found]
        return _json({"counts": _numbers(self._daemon.counts()), "deliveries": rows}, 200)


def _open(path: str, endpoint: Endpoint) -> GuardedRoute:
    return GuardedRoute(path, endpoint, methods=_METHODS, access="open")


def _verbose(condition: Condition) -> dict[str, Any]:
    return {
        "state": condition.state,
        "checks": condition.checks,
        "workers": condition.workers,
        "serving": condition.serving,
        "blocked": condition.blocked,
        "breakers": condition.breakers,
        "pings": condition.pings,
    }


def delivery_fields(delivery: Delivery, correlation: str | None = None) -> dict[str, object]:
    """Returns the fields of a delivery for programs. No payload."""
    return {
        "id": delivery.id,
        "message_id": delivery.message_id,
        "topic": delivery.topic,
        "destination": delivery.destination,
        "status": delivery.status,
        "attempts": delivery.attempts,
        "max_attempts": delivery.max_attempts,
        "reason": delivery.reason,
        "error": delivery.error,
        "created_at": delivery.created_at,
        "updated_at": delivery.updated_at,
        "next_run_at": delivery.next_run_at,
        "correlation_id": correlation,
    }


def _numbers(counts: Counts) -> dict[str, int]:
    return {status: counts.of(status) for status in ("pending", "sending", "succeeded", "failed", "aborted")}


def _json(body: object, status: int) -> Response:
    headers = {"cache-control": "no-store", "x-content-type-options": "nosniff"}
    return Response(encode_json(body), status, headers, "application/json")
