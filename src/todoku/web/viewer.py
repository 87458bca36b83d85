"""Who looks at the dashboard: the viewer of a request, and the entrance that admits viewers."""

from __future__ import annotations

import getpass
import hmac
import os
import secrets
from typing import Final, Protocol
from urllib.parse import urlsplit

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from todoku.api.auth import Access, Gate
from todoku.api.local_requests import is_direct_request
from todoku.api.problem import Refused
from todoku.core.scope import Scope, allows


class Viewer(msgspec.Struct, frozen=True):
    """A person or program that looks at the dashboard. `name` is the author of the viewer's acts in the audit."""

    name: str
    scopes: tuple[Scope, ...]
    csrf: str = ""
    """The token that the forms of this viewer carry."""

    def can(self, scope: Scope) -> bool:
        """Returns whether the viewer has this scope."""
        return allows(self.scopes, scope)


class Entrance(Protocol):
    """Decides who is admitted to a page."""

    async def admit(self, request: Request, access: Access) -> Viewer | Response:
        """Returns the viewer, or a response to send instead of the page (a redirect to the sign-in).

        Raises Refused (403) if the viewer lacks the scope `access`.
        """


class OpenEntrance:
    """Admits every direct request from this machine as an admin, without sign-in; a bearer token works everywhere."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._csrf: Final = secrets.token_urlsafe(24)

    async def admit(self, request: Request, access: Access) -> Viewer | Response:
        """See `Entrance`."""
        if "authorization" in request.headers and access != "open":
            token = await self._gate.admit(request, access)
            return Viewer(token.name, token.scopes)
        if not is_direct_request(request.headers):
            raise Refused(403, "only this machine is served without sign-in", hint="use http://localhost on it")
        return Viewer(os.environ.get("TODOKU_BY") or getpass.getuser(), ("admin",), self._csrf)


def check_csrf(viewer: Viewer, headers: Headers, token: str) -> None:
    """Raises Refused (403) unless a form was sent by a page of this dashboard.

    A request with a bearer token has no form token, and needs none: no browser adds that header by itself.
    """
    if "authorization" in headers:
        return
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none") or not _is_own_origin(headers):
        raise Refused(403, "the request comes from another site", hint="use the form on the page itself")
    if not viewer.csrf or not hmac.compare_digest(viewer.csrf.encode(), token.encode()):
        raise Refused(403, "the form is too old", hint="load the page again, then send it once more")


def _is_own_origin(headers: Headers) -> bool:
    origin = headers.get("origin")
    return origin is None or (origin != "null" and urlsplit(origin).netloc == headers.get("host"))
