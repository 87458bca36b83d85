"""The page where people sign in, and the sentence instead of it where others could read a password."""

from __future__ import annotations

import asyncio
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from todoku.api.problem import Refused
from todoku.api.request_context import RequestContext
from todoku.web.cookies import FORM_COOKIE, set_cookie
from todoku.web.language import LANGUAGES
from todoku.web.page import PAGE_HEADERS, language_of, route_path, with_language
from todoku.web.rendering import Rendering
from todoku.web.view import PageAnswer, View
from todoku.web.viewer import Viewer

_FORM_LASTS: Final = 86_400.0


class SignInChoices(msgspec.Struct, frozen=True, kw_only=True):
    """What the page offers: the provider's host name, the path to go on to, and what went wrong."""

    secure: bool
    provider: str | None = None
    next: str = "/"
    problem: str = ""


class SignInForm:
    """Renders the page."""

    def __init__(self, context: RequestContext, rendering: Rendering, provider: str | None) -> None:
        self._context, self._rendering, self._provider = context, rendering, provider

    async def show(self, request: Request, then: str, csrf: str, cookie: str, refused: Refused | None) -> Response:
        """Returns the page with the form, for the browser that has `cookie`; `refused`: why the last try failed."""
        if (code := request.query_params.get("lang")) in LANGUAGES and request.method == "GET":
            return with_language(request, str(code))
        choices = SignInChoices(
            secure=True, provider=self._provider, next=then,
            problem="" if refused is None else str(refused),
        )  # fmt: skip
        response = await self._render(request, choices, 200 if refused is None else refused.status, csrf)
        if refused is not None:
            response.headers.update(refused.headers)
        set_cookie(response, FORM_COOKIE, cookie, lasts=_FORM_LASTS)
        return response

    async def refuse_plain(self, request: Request) -> Response:
        """Returns the page without a form: on this way a password could be read by others."""
        return await self._render(request, SignInChoices(secure=False), 403)

    async def _render(self, request: Request, choices: SignInChoices, status: int, csrf: str = "") -> Response:
        view = View(
            context=self._context, viewer=Viewer("", (), csrf), language=language_of(request), path={},
            query=dict(request.query_params.items()), prefix=request.scope.get("root_path", ""),
        )  # fmt: skip
        answer = PageAnswer("sign_in.html", choices, {}, status)
        text = await asyncio.to_thread(self._rendering.page, answer, view, route_path(request))
        return Response(text, status, PAGE_HEADERS, "text/html")
