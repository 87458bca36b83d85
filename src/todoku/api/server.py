"""The whole of HTTP as one ASGI application: health, the QStash API, ingest, the admin API."""

from __future__ import annotations

from starlette.types import ASGIApp

from todoku.api.admin.table import admin_routes
from todoku.api.auth import Gate, Guarded
from todoku.api.condition import Watched
from todoku.api.context import Context
from todoku.api.frame import Framed
from todoku.api.health import health_routes
from todoku.api.ingest import ingest_routes
from todoku.api.local import ThisMachine
from todoku.api.qstash.routes import qstash_routes
from todoku.api.routing import Routing
from todoku.app import App
from todoku.core.development import is_public
from todoku.engine.http.tokens import Tokens
from todoku.engine.together import Together


def server_app(box: App, watched: Watched, *, local: bool = False) -> ASGIApp:
    """What a daemon serves. `local`: to this machine alone. It is used from one event loop."""
    routing: ASGIApp = Routing(server_routes(context_of(box), watched, local=local))
    public = is_public(box.settings.token, box.settings.signing_keys)
    return Framed(ThisMachine(routing) if public else routing)


def context_of(box: App) -> Context:
    """What the endpoints of an App are handed."""
    gate = Gate(Tokens(box.store, box.settings), rate=box.settings.api_rate)
    return Context(box, gate, Together(box.outbox))


def server_routes(context: Context, watched: Watched, *, local: bool = False) -> list[Guarded]:
    """Every route there is."""
    return [
        *health_routes(watched, local=local),
        *qstash_routes(context),
        *ingest_routes(context),
        *admin_routes(context),
    ]
