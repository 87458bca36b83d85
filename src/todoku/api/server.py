"""The daemon's ASGI application: health, the QStash API, ingest and the admin API; and its routing."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from todoku.api.admin.table import admin_routes
from todoku.api.auth import COUNTS_APART, AuthFailures, Gate, GateCounts, GuardedRoute, deny_undeclared
from todoku.api.condition import HealthSource
from todoku.api.connections import bounds_of
from todoku.api.health import health_routes
from todoku.api.ingest import IngestEndpoint, IngestRoute, ingest_endpoint
from todoku.api.ingest_fast_path import ServedApp
from todoku.api.local_requests import LocalOnly
from todoku.api.problem import NO_STORE
from todoku.api.qstash.routes import qstash_routes
from todoku.api.request_context import RequestContext
from todoku.api.request_frame import RequestFrame
from todoku.api.shared_port import PATHS, IntakeOnly
from todoku.app import App
from todoku.core.proxies import proxies
from todoku.core.scope import is_public
from todoku.engine.diagnostics.shared_numbers import SharedNumbers
from todoku.engine.group_commit import GroupCommit
from todoku.engine.http.api_tokens import TokenChecker
from todoku.engine.observability.count_report import CountReports
from todoku.engine.observability.exposition import CONTENT_TYPE


class Routing:
    """An ASGI application over routes. Answers 404 for an unknown path, 405 with all methods of the path."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self.routes = deny_undeclared(routes)
        parts = {_first_part(route.path) for route in self.routes}
        self._by_part = {part: [route for route in self.routes if _may_match(route, part)] for part in parts}
        self._without_part = [route for route in self.routes if _may_match(route, None)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        methods: set[str] = set()
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        for route in self._by_part.get(_first_part(path), self._without_part):
            match, child = route.matches(scope)
            if match is Match.FULL:
                scope.update(child)
                return await route.handle(scope, receive, send)
            if match is Match.PARTIAL:
                methods |= route.methods or set()
        if methods:
            raise HTTPException(405, headers={"allow": ", ".join(sorted(methods))})
        raise HTTPException(404, "this path does not exist")


def _may_match(route: Route, part: str | None) -> bool:
    """Returns whether the route may match paths that begin with this part."""
    first = _first_part(route.path)
    return first == part or "{" in first


def _first_part(path: str) -> str:
    return path.split("/", 2)[1] if path.startswith("/") else ""


MoreRoutes = Callable[[RequestContext], Iterable[GuardedRoute]]
"""Makes routes of an upper layer, such as the dashboard's."""


def _no_routes(_: RequestContext) -> Iterable[GuardedRoute]:
    return ()


def server_app(
    box: App,
    watched: HealthSource,
    *,
    local: bool = False,
    more: MoreRoutes = _no_routes,
    counts: GateCounts = COUNTS_APART,
) -> ServedApp:
    """Returns the application of a daemon, for one event loop. `local`: only this machine can connect.

    `counts`: where all serving processes of the daemon count requests and wrong tokens together.
    """
    context = msgspec.structs.replace(context_of(box, counts), condition=watched.condition)
    endpoint = ingest_endpoint(context)
    routing = Routing([*server_routes(context, endpoint, watched, local=local), *more(context)])
    return _served(box, routing, endpoint)


def intake_app(box: App, counts: GateCounts) -> ServedApp:
    """Returns what the further serving processes of a daemon serve: requests that store messages, and no others."""
    context = context_of(box, counts)
    endpoint = ingest_endpoint(context)
    publishing = [route for route in qstash_routes(context) if route.path.startswith(PATHS)]
    return _served(box, IntakeOnly(Routing([IngestRoute(context, endpoint), *publishing])), endpoint)


def _served(box: App, routing: ASGIApp, endpoint: IngestEndpoint) -> ServedApp:
    bounds = bounds_of(box.settings)
    if is_public(box.settings.token, box.settings.signing_keys):
        return ServedApp(
            RequestFrame(LocalOnly(routing), within=bounds.receive), bounds=bounds
        )  # no fast path: it would bypass the check
    return ServedApp(RequestFrame(routing, within=bounds.receive), endpoint, bounds)


def metrics_app(box: App) -> ASGIApp:
    """Returns the metrics of this process as an ASGI application: whatever the path, GET or HEAD.

    It needs a token with the scope `read`, unless the setting `metrics_open` is on.
    """
    gate = context_of(box).gate

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            raise HTTPException(405, headers={"allow": "GET, HEAD"})
        if not box.settings.metrics_open:
            await gate.admit(Request(scope, receive), "read")
        await Response(box.telemetry.render(), headers=NO_STORE, media_type=CONTENT_TYPE)(scope, receive, send)

    return RequestFrame(LocalOnly(app) if is_public(box.settings.token, box.settings.signing_keys) else app)


def context_of(box: App, counts: GateCounts = COUNTS_APART) -> RequestContext:
    """Returns the context of the endpoints of an App."""
    settings = box.settings
    gate = Gate(
        TokenChecker(box.store, settings),
        rate=settings.api_rate,
        proxies=proxies(settings.trusted_proxies),
        failures=AuthFailures(box.telemetry.metrics),
        counts=counts,
    )
    return RequestContext(box, gate, GroupCommit(box.outbox), SharedNumbers(box.store, settings))


def server_routes(
    context: RequestContext, endpoint: IngestEndpoint, watched: HealthSource, *, local: bool = False
) -> list[GuardedRoute]:
    """Returns all routes."""
    return [
        *health_routes(
            watched,
            context.gate,
            CountReports(context.box.telemetry.metrics),
            local=local,
            metrics_open=context.settings.metrics_open,
        ),
        *qstash_routes(context),
        IngestRoute(context, endpoint),
        *admin_routes(context),
    ]
