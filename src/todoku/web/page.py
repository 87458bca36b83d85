"""One page of the dashboard: a function from a view to an answer, and the route that serves it.

The function runs in a thread and may block. Nothing is decided here: a page calls operations of the admin API or of the
engine, and a template renders what they return.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final
from urllib.parse import parse_qs, quote, unquote

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from todoku.api.auth import Access, GuardedRoute
from todoku.api.body import read_body
from todoku.api.problem import NO_STORE, Refused, error_response
from todoku.api.request_context import RequestContext
from todoku.api.request_frame import handle_error, request_id
from todoku.core.control_characters import encode_json
from todoku.web.language import LANGUAGES, choose_language
from todoku.web.live_pages import LivePage, LivePages, live_page, live_response
from todoku.web.rendering import Rendering
from todoku.web.view import PageAnswer, Redirect, View, own_path
from todoku.web.viewer import NO_VIEWER, Entrance, Viewer, check_csrf

CSP: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""No inline script or style, no eval, nothing from elsewhere: whatever a payload contains stays text."""

PAGE_HEADERS: Final = {**NO_STORE, "content-security-policy": CSP, "referrer-policy": "same-origin"}
LARGEST_FORM: Final = 2 << 20
LANGUAGE_COOKIE: Final = "todoku_language"
FLASH_COOKIE: Final = "todoku_flash"
_LONGEST_FLASH: Final = 500

Run = Callable[[View], PageAnswer | Redirect]


class WebPage(msgspec.Struct, frozen=True, kw_only=True):
    """A page or an act: what serves a method and path, and the scope that it needs."""

    method: str
    path: str
    access: Access
    name: str
    run: Run
    for_all: bool = False
    """The live regions are the same for every viewer who may open the page: a live fetch has no viewer."""


def page(method: str, path: str, *, access: Access, for_all: bool = False) -> Callable[[Run], WebPage]:
    """Declares a function as a page (GET) or as an act (POST), with the scope that it needs."""

    def declare(run: Run) -> WebPage:
        return WebPage(method=method, path=path, access=access, name=run.__name__, run=run, for_all=for_all)

    return declare


def page_route(declared: WebPage, context: RequestContext, entrance: Entrance, rendering: Rendering) -> GuardedRoute:
    """Returns the route of a page. The entrance admits the viewer; a POST must come from a form of the dashboard."""
    live_pages = LivePages()

    async def endpoint(request: Request) -> Response:
        viewer = None
        try:
            admitted = await entrance.admit(request, declared.access)
            if isinstance(admitted, Response):
                return admitted
            viewer = admitted
            if (code := request.query_params.get("lang")) in LANGUAGES and declared.method == "GET":
                return with_language(request, str(code))
            if declared.for_all and is_live(request) and not wants_json(request):
                view = await _view(declared, request, context, NO_VIEWER)
                shared = await _for_all(declared, view, route_path(request), rendering, live_pages)
                return live_response(shared, request, PAGE_HEADERS)
            answered = await _serve(declared, await _view(declared, request, context, viewer), request, rendering)
        except Exception as error:
            if wants_json(request):
                raise
            answered = error_page(error, request, viewer, rendering)
        return answered

    endpoint.__name__ = declared.name
    methods = ["GET", "HEAD"] if declared.method == "GET" else [declared.method]
    return GuardedRoute(declared.path, endpoint, methods=methods, access="open")


async def _view(declared: WebPage, request: Request, context: RequestContext, viewer: Viewer) -> View:
    choices = {} if declared.method == "GET" else await read_form(request)
    form = {name: values[-1] for name, values in choices.items()}
    if declared.method != "GET":
        check_csrf(viewer, request.headers, form.get("csrf", ""))
    return View(
        context=context,
        viewer=viewer,
        language=language_of(request),
        path={name: str(value) for name, value in request.path_params.items()},
        query=dict(request.query_params.items()),
        form=form,
        choices=choices,
        prefix=request.scope.get("root_path", ""),
    )


async def read_form(request: Request) -> dict[str, list[str]]:
    """Returns all values of each field of a form. Raises Refused: it is too large, or not a form."""
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    body = await read_body(request, limit=LARGEST_FORM)
    if body and kind != "application/x-www-form-urlencoded":
        raise Refused(415, f"the form is {kind or 'of no type'}", hint="send application/x-www-form-urlencoded")
    try:
        return parse_qs(body.decode(), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=10_000)
    except ValueError:
        raise Refused(400, "the form cannot be read", hint="send application/x-www-form-urlencoded in UTF-8") from None


async def _serve(declared: WebPage, view: View, request: Request, rendering: Rendering) -> Response:
    flash = unquote(request.cookies.get(FLASH_COOKIE, ""))[:_LONGEST_FLASH]
    as_json = wants_json(request)

    def run() -> tuple[PageAnswer | Redirect, str]:
        answer = declared.run(view)
        if isinstance(answer, Redirect) or as_json:
            return answer, ""
        return answer, rendering.page(answer, view, route_path(request), flash)

    answer, text = await asyncio.to_thread(run)
    if isinstance(answer, Redirect):
        return _redirect(view.prefix + answer.path, answer.flash)
    if as_json:
        return Response(encode_json(answer.value), answer.status, NO_STORE, "application/json")
    if is_live(request):
        return live_response(live_page(text, answer.status), request, PAGE_HEADERS)
    response = Response(text, answer.status, PAGE_HEADERS, "text/html")
    if flash:
        response.delete_cookie(FLASH_COOKIE)
    return response


async def _for_all(declared: WebPage, view: View, path: str, rendering: Rendering, live_pages: LivePages) -> LivePage:
    """Returns the page that all viewers of this language share. Its view has no viewer, so nothing of one is in it."""

    def render() -> LivePage:
        answer = declared.run(view)
        if isinstance(answer, Redirect):
            raise TypeError(f"{declared.path} is the same for all viewers, so it sends none of them elsewhere")
        return live_page(rendering.page(answer, view, path), answer.status)

    name = (view.language, view.prefix, path, *view.query.items())
    return await live_pages.get(name, view.context.numbers.forgotten, render)


def is_live(request: Request) -> bool:
    """Returns whether an open page asks for its live regions again."""
    return "x-todoku-live" in request.headers


def error_page(error: Exception, request: Request, viewer: Viewer | None, rendering: Rendering) -> Response:
    """Returns the page that says why a request failed; logs an unexpected error."""
    described = handle_error(error, request_id(request), request.method, request.scope["path"])
    text = rendering.error(
        described, viewer, language=language_of(request), prefix=request.scope.get("root_path", ""),
        path=route_path(request), request_id=request_id(request),
    )  # fmt: skip
    return Response(text, described.status, {**PAGE_HEADERS, **error_response(error).headers}, "text/html")


def wants_json(request: Request) -> bool:
    """Returns whether the client accepts JSON and no page."""
    accept = request.headers.get("accept", "")
    return "application/json" in accept and "text/html" not in accept


def language_of(request: Request) -> str:
    """Returns the language of the viewer."""
    return choose_language(request.cookies.get(LANGUAGE_COOKIE), request.headers.get("accept-language", ""))


def with_language(request: Request, code: str) -> Response:
    """Stores the language in a cookie, and sends the browser to the same page."""
    query = [(name, value) for name, value in request.query_params.multi_items() if name != "lang"]
    path = own_path(request.scope["path"]) or "/"
    target = path + ("?" + "&".join(f"{quote(name)}={quote(value)}" for name, value in query) if query else "")
    response = RedirectResponse(target, 303, NO_STORE)
    response.set_cookie(LANGUAGE_COOKIE, code, max_age=365 * 86_400, samesite="lax")
    return response


def _redirect(path: str, flash: str) -> Response:
    response = RedirectResponse(path, 303, NO_STORE)
    if flash:
        response.set_cookie(FLASH_COOKIE, quote(flash[:_LONGEST_FLASH]), max_age=60, httponly=True, samesite="lax")
    return response


def route_path(request: Request) -> str:
    """Returns the path of a request without the prefix below which the dashboard is mounted."""
    path: str = request.scope["path"]
    return path.removeprefix(request.scope.get("root_path", "")) or "/"
