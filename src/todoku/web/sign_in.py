"""Sign-in with an API token, a password or an OpenID provider: the entrance of a dashboard that is not open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from todoku.api.auth import Access, GuardedRoute
from todoku.api.problem import NO_STORE, Refused
from todoku.api.request_context import RequestContext
from todoku.core.proxies import proxies
from todoku.core.role import SCOPE_OF
from todoku.engine.sign_in.form_key import FormKey
from todoku.engine.sign_in.sessions import Sessions, person_of_token
from todoku.store.sessions import Person, SessionRow
from todoku.web.cookies import (
    OIDC_COOKIE,
    SESSION_COOKIE,
    drop_cookie,
    form_cookie,
    session_id,
    set_cookie,
)
from todoku.web.entrance import admit_program, is_program
from todoku.web.oidc import LASTS, OidcSignIn
from todoku.web.page import error_page, read_form, route_path, wants_json
from todoku.web.password_gate import PasswordGate
from todoku.web.rendering import Rendering
from todoku.web.sign_in_form import SignInForm
from todoku.web.transport import own_url, transport_of
from todoku.web.view import own_path
from todoku.web.viewer import Viewer, check_access, check_csrf, check_origin

CALLBACK: Final = "/sign-in/oidc/callback"
_READS: Final = ("GET", "HEAD")


class SignInEntrance:
    """Admits people with a session, and programs with a bearer token. Others are sent to the sign-in. For one loop."""

    def __init__(self, context: RequestContext) -> None:
        self._context, settings = context, context.settings
        self._settings, self._gate = settings, context.gate
        self._sessions = Sessions(context.store, settings)
        self._passwords = PasswordGate(context.store)
        self._proxies = proxies(settings.trusted_proxies)
        self._key = FormKey(context.store, settings)
        self._oidc = None if settings.oidc_issuer is None else OidcSignIn(settings, self._key)

    async def admit(self, request: Request, access: Access) -> Viewer | Response:
        """See `Entrance`."""
        read_only = self._settings.web_read_only
        if is_program(request):
            return await admit_program(self._gate, request, access, read_only=read_only)
        session = await self._session(request)
        if session is None:
            return Viewer("", ()) if access == "open" else _to_sign_in(request)
        person = session.person
        viewer = Viewer(person.name, (SCOPE_OF[person.role],), session.csrf, has_session=True, read_only=read_only)
        return check_access(viewer, request, access)

    def routes(self, context: RequestContext, rendering: Rendering) -> Sequence[GuardedRoute]:
        """See `Entrance`: the pages where people sign in and out."""
        self._form = SignInForm(context, rendering, None if self._oidc is None else self._oidc.provider)

        def route(method: str, path: str, endpoint: Callable[[Request], Awaitable[Response]]) -> GuardedRoute:
            async def served(request: Request) -> Response:
                try:
                    return await endpoint(request)
                except Exception as error:
                    if wants_json(request):
                        raise
                    return error_page(error, request, None, rendering)

            served.__name__ = endpoint.__name__
            methods = ["GET", "HEAD"] if method == "GET" else [method]
            return GuardedRoute(path, served, methods=methods, access="open")

        own = [
            route("GET", "/sign-in", self._show),
            route("POST", "/sign-in", self._sign_in),
            route("POST", "/sign-out", self._sign_out),
        ]
        return own if self._oidc is None else [
            *own, route("GET", "/sign-in/oidc", self._depart), route("GET", CALLBACK, self._arrive)
        ]  # fmt: skip

    # ------------------------------------------------------------------------------------------ sign in

    async def _show(self, request: Request) -> Response:
        if self._is_plain(request):
            return await self._form.refuse_plain(request)
        then = own_path(request.query_params.get("next", "")) or "/"
        if await self._session(request) is not None and "lang" not in request.query_params:
            return _redirect(request, then)
        return await self._answer(request, then)

    async def _sign_in(self, request: Request) -> Response:
        if self._is_plain(request):
            return await self._form.refuse_plain(request)
        form = {name: values[-1] for name, values in (await read_form(request)).items()}
        check_origin(request.headers)
        await self._check_form(request, form.get("csrf", ""))
        then = own_path(form.get("next", "")) or "/"
        try:
            person = await self._identify(request, form)
        except Refused as refused:
            return await self._answer(request, then, refused)
        return await self._enter(request, person, then)

    async def _identify(self, request: Request, form: dict[str, str]) -> Person:
        """Returns who the form names. Raises Refused: 401, 403 or 429."""
        if text := form.get("token", "").strip():
            token = await self._gate.identify(request, text)
            person = person_of_token(token, text)
            if person is None:
                raise Refused(403, "this token may not read")
            return person
        network = self._gate.network(request)
        try:
            found = await self._passwords.check(form.get("user", "").strip(), form.get("password", ""), network)
        except Refused as refused:
            self._gate.note_failure(refused.status, network)
            raise
        if found is None:
            self._gate.note_failure(401, network)
            raise Refused(401, "the name or the password is wrong")
        return found

    async def _enter(self, request: Request, person: Person, then: str) -> Response:
        """Opens a session with a new id, which replaces the browser's old one."""
        opened = await asyncio.to_thread(self._sessions.open, person, replaces=session_id(request))
        response = _redirect(request, then)
        set_cookie(response, SESSION_COOKIE, opened.id, lasts=self._settings.web_session_sec)
        return response

    async def _answer(self, request: Request, then: str, refused: Refused | None = None) -> Response:
        text = form_cookie(request)
        csrf = await asyncio.to_thread(self._key.sign, "sign-in", text)
        return await self._form.show(request, then, csrf, text, refused)

    async def _check_form(self, request: Request, csrf: str) -> None:
        """Raises Refused (403) unless this browser was given the form, so that no site signs it in as another."""
        if not await asyncio.to_thread(self._key.is_signed, csrf, "sign-in", form_cookie(request)):
            raise Refused(403, "the form is too old", hint="load the page again; cookies must be allowed")

    # ----------------------------------------------------------------------------------------- sign out

    async def _sign_out(self, request: Request) -> Response:
        """Ends this session, or with the field `everywhere` all sessions of the person."""
        form = {name: values[-1] for name, values in (await read_form(request)).items()}
        session = await self._session(request)
        response = _redirect(request, "/sign-in")
        if session is not None:
            check_csrf(Viewer(session.person.name, (), session.csrf), request.headers, form.get("csrf", ""))
            if "everywhere" in form:
                await asyncio.to_thread(self._sessions.end_all, session.person)
            else:
                await asyncio.to_thread(self._sessions.end, session_id(request) or "")
        drop_cookie(response, SESSION_COOKIE)
        return response

    # --------------------------------------------------------------------------------- OpenID provider

    async def _depart(self, request: Request) -> Response:
        if self._oidc is None or self._is_plain(request):
            return await self._form.refuse_plain(request)
        then = own_path(request.query_params.get("next", "")) or "/"
        try:
            url, kept = await self._oidc.depart(own_url(request, self._proxies, CALLBACK), then)
        except Refused as refused:
            return await self._answer(request, then, refused)
        response = RedirectResponse(url, 303, NO_STORE)
        set_cookie(response, OIDC_COOKIE, kept, lasts=LASTS)
        return response

    async def _arrive(self, request: Request) -> Response:
        if self._oidc is None or self._is_plain(request):
            return await self._form.refuse_plain(request)
        try:
            kept, here = request.cookies.get(OIDC_COOKIE, ""), own_url(request, self._proxies, CALLBACK)
            person, then = await self._oidc.arrive(request, kept, here)
        except Refused as refused:
            self._gate.note_failure(refused.status, self._gate.network(request))
            response = await self._answer(request, "/", refused)
        else:
            response = await self._enter(request, person, then)
        drop_cookie(response, OIDC_COOKIE)
        return response

    # ---------------------------------------------------------------------------------------- a session

    async def _session(self, request: Request) -> SessionRow | None:
        id = session_id(request)
        if id is None or self._is_plain(request):
            return None
        return await asyncio.to_thread(self._sessions.find, id)

    def _is_plain(self, request: Request) -> bool:
        return transport_of(request, self._proxies) == "plain"


def _to_sign_in(request: Request) -> Response:
    """Sends a browser to the sign-in. Raises Refused (401) for a program, a live region or a form."""
    headers = request.headers
    navigates = headers.get("sec-fetch-mode", "navigate") == "navigate" and "x-todoku-live" not in headers
    if wants_json(request) or not navigates or request.method not in _READS:
        raise Refused(
            401, "sign in first", hint="at /sign-in, or send a token: Authorization: Bearer …",
            headers={"www-authenticate": 'Bearer realm="todoku"'},
        )  # fmt: skip
    query = request.scope["query_string"].decode("latin-1")
    here = route_path(request) + (f"?{query}" if query else "")
    return _redirect(request, "/sign-in" + (f"?{urlencode({'next': here})}" if here != "/" else ""))


def _redirect(request: Request, path: str) -> Response:
    return RedirectResponse(request.scope.get("root_path", "") + path, 303, NO_STORE)
