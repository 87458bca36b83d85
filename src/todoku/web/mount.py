"""The dashboard as an ASGI application, to be mounted in another: `app.mount("/todoku", box.web())`."""

from __future__ import annotations

from starlette.types import ASGIApp

from todoku.api.request_frame import RequestFrame
from todoku.api.server import Routing, context_of
from todoku.app import App
from todoku.core.errors import InvalidSetting
from todoku.core.scope import is_public
from todoku.engine.sign_in.form_key import FormKey
from todoku.web.entrance import Auth, GuestEntrance
from todoku.web.sign_in import SignInEntrance
from todoku.web.site import web_routes


def web_app(box: App, auth: Auth | None = None) -> ASGIApp:
    """Returns the dashboard of an App, for one event loop.

    `auth`: says who makes a request, for an application that signs people in itself. Without it, people sign in to the
    dashboard with a token, a password or the OpenID provider of the settings.
    """
    if auth is not None and not callable(auth):
        raise InvalidSetting(
            f"auth cannot be {auth!r}", hint="a function that takes the request and returns a Viewer, a role or None"
        )
    if auth is None and is_public(box.settings.token, box.settings.signing_keys):
        raise InvalidSetting(
            "the token of the settings is the public one of development", hint="set another TODOKU_TOKEN, or pass auth="
        )
    context = context_of(box)
    settings = box.settings
    entrance = (
        SignInEntrance(context) if auth is None else GuestEntrance(auth, FormKey(context.store, settings), settings)
    )
    return RequestFrame(Routing(web_routes(context, entrance)))
