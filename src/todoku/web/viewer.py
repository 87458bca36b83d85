"""Who looks at the dashboard: the viewer of a request, and the protocol of the entrance that admits viewers."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit

import msgspec
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from todoku.api.auth import Access, GuardedRoute
from todoku.api.problem import Refused
from todoku.core.role import SCOPE_OF, Role, role, role_of_scopes
from todoku.core.scope import Scope, allows

if TYPE_CHECKING:
    from todoku.api.request_context import RequestContext
    from todoku.web.rendering import Rendering

_READS: Final = ("GET", "HEAD")
_PORTS: Final = {"http": 80, "https": 443}


class Viewer(msgspec.Struct, frozen=True):
    """A person or program that looks at the dashboard. `name` is the author of the viewer's acts in the audit."""

    name: str
    scopes: tuple[Scope, ...]
    csrf: str = ""
    """The token that the forms of this viewer carry."""
    is_program: bool = False
    """The request has a bearer token, which no browser adds by itself: it needs no token of a form."""
    has_session: bool = False
    """The viewer has signed in here, and can sign out."""
    read_only: bool = False
    """The setting `web_read_only`: the viewer sees everything that the scopes allow, and changes nothing."""

    @classmethod
    def of_role(cls, name: str, named: Role) -> Viewer:
        """Returns the viewer with this role: viewer, operator or admin. InvalidAct: there is no such role."""
        return cls(name, (SCOPE_OF[role(named)],))

    @property
    def role(self) -> Role | None:
        """The role that the scopes amount to; None: none of them."""
        return role_of_scopes(self.scopes)

    def can(self, scope: Scope) -> bool:
        """Returns whether the viewer has this scope, and may use it now."""
        return allows(self.scopes, scope) and (scope == "read" or not self.read_only)

    def sees(self, access: Access) -> bool:
        """Returns whether the viewer may open pages that need this. While nothing may be changed, forms are none."""
        return access == "open" or (allows(self.scopes, access) and not (self.read_only and access == "operate"))


NO_VIEWER: Final = Viewer("", ())
"""Stands for all viewers where a page is the same for each of them: it has no name, no scope and no token."""


class Entrance(Protocol):
    """Decides who is admitted to a page."""

    async def admit(self, request: Request, access: Access) -> Viewer | Response:
        """Returns the viewer, or a response to send instead of the page (a redirect to the sign-in).

        Raises Refused (403) if the viewer lacks the scope `access`.
        """

    def routes(self, context: RequestContext, rendering: Rendering) -> Sequence[GuardedRoute]:
        """Returns the routes that the entrance itself needs, such as the page where people sign in."""


def check_access(viewer: Viewer, request: Request, access: Access) -> Viewer:
    """Returns the viewer. Raises Refused (403) without the scope, and for every act if the dashboard is read-only."""
    if access == "open":
        return viewer
    if not allows(viewer.scopes, access):
        needed = next((each for each, scope in SCOPE_OF.items() if allows((scope,), access)), "admin")
        has = viewer.role or "no role"
        raise Refused(403, f"this needs the role {needed}, and {viewer.name} has {has}", hint="ask an admin")
    if viewer.read_only and (request.method not in _READS or not viewer.sees(access)):
        raise Refused(403, "this dashboard is read-only", hint="the setting web_read_only; the command line still acts")
    return viewer


def check_csrf(viewer: Viewer, headers: Headers, token: str) -> None:
    """Raises Refused (403) unless a form was sent by a page of this dashboard.

    A program with a bearer token has no form, and needs no token of one: no browser adds that header by itself.
    """
    if viewer.is_program:
        return
    check_origin(headers)
    if not viewer.csrf or not hmac.compare_digest(viewer.csrf.encode(), token.encode("utf-8", "replace")):
        raise Refused(403, "the form is too old", hint="load the page again, then send it once more")


def check_origin(headers: Headers) -> None:
    """Raises Refused (403) unless the browser says that a page of this site sent the form.

    `Sec-Fetch-Site` decides where there is one; browsers send it to HTTPS and to this machine. Otherwise `Origin` has
    to be the host of the request. A request with neither comes from no browser of today.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    own = site == "same-origin" if site is not None else origin is not None and _is_own_origin(origin, headers)
    if not own or (origin is not None and origin == "null"):
        raise Refused(403, "the request comes from another site", hint="use the form on the page itself")


def _is_own_origin(origin: str, headers: Headers) -> bool:
    scheme = origin.partition("://")[0]
    own, host = _place(origin, scheme), _place(f"{scheme}://{headers.get('host', '')}", scheme)
    return own is not None and own == host


def _place(url: str, scheme: str) -> tuple[str, int | None] | None:
    """Returns the host name and the port of a URL; None if it has none."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # a port that is none
        return None
    return None if parts.hostname is None else (parts.hostname, port or _PORTS.get(scheme))
