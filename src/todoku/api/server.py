"""The whole of HTTP as one ASGI application: health, the QStash API, ingest, the admin API; and its routing."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from todoku.api.admin.table import admin_routes
from todoku.api.auth import Gate, Guarded, denying
from todoku.api.auth_failures import Failures
from todoku.api.condition import Watched
from todoku.api.connections import bounds_of
from todoku.api.health import health_routes
from todoku.api.ingest import IngestEndpoint, IngestRoute, ingest_endpoint
from todoku.api.ingest_fast_path import Served
from todoku.api.local_requests import ThisMachine
from todoku.api.qstash.routes import qstash_routes
from todoku.api.request_context import RequestContext
from todoku.api.request_frame import Framed
from todoku.app import App
from todoku.core.proxies import proxies
from todoku.core.scope import is_public
from todoku.engine.group_commit import GroupCommit
from todoku.engine.http.api_tokens import TokenChecker


class Routing:
    """An ASGI application over routes. 404: there is no such path. 405: with all methods that the path has."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self.routes = denying(routes)
        parts = {_first_part(route.path) for route in self.routes}
        self._by_part = {part: [route for route in self.routes if _may_be(route, part)] for part in parts}
        self._elsewhere = [route for route in self.routes if _may_be(route, None)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        methods: set[str] = set()
        for route in self._by_part.get(_first_part(scope["path"]), self._elsewhere):
            match, child = route.matches(scope)
            if match is Match.FULL:
                scope.update(child)
                return await route.handle(scope, receive, send)
            if match is Match.PARTIAL:
                methods |= route.methods or set()
        if methods:
            raise HTTPException(405, headers={"allow": ", ".join(sorted(methods))})
        raise HTTPException(404, "there is nothing here")


def _may_be(route: Route, part: str | None) -> bool:
    """Whether a path that begins with this part may be the route's."""
    own = _first_part(route.path)
    return own == part or "{" in own


def _first_part(path: str) -> str:
    return path.split("/", 2)[1] if path.startswith("/") else ""


def server_app(box: App, watched: Watched, *, local: bool = False) -> Served:
    """What a daemon serves. `local`: to this machine alone. It is used from one event loop."""
    context = context_of(box)
    endpoint = ingest_endpoint(context)
    bounds = bounds_of(box.settings)
    routing: ASGIApp = Routing(server_routes(context, endpoint, watched, local=local))
    if is_public(box.settings.token, box.settings.signing_keys):
        return Served(Framed(ThisMachine(routing), within=bounds.receive), bounds=bounds)  # nothing may go past it
    return Served(Framed(routing, within=bounds.receive), endpoint, bounds)


def context_of(box: App) -> RequestContext:
    """What the endpoints of an App are handed."""
    settings = box.settings
    gate = Gate(
        TokenChecker(box.store, settings),
        rate=settings.api_rate,
        proxies=proxies(settings.trusted_proxies),
        failures=Failures(box.telemetry.metrics),
    )
    return RequestContext(box, gate, GroupCommit(box.outbox))


def server_routes(
    context: RequestContext, endpoint: IngestEndpoint, watched: Watched, *, local: bool = False
) -> list[Guarded]:
    """Every route there is."""
    return [
        *health_routes(watched, context.gate, local=local, metrics_open=context.settings.metrics_open),
        *qstash_routes(context),
        IngestRoute(context, endpoint),
        *admin_routes(context),
    ]
