"""A server for this machine alone, whose credentials are no secret: no page from elsewhere may ask it by a browser."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from todoku.api.problem import Refused


class ThisMachine:
    """An ASGI application that refuses what a page of another machine makes a browser send.

    Such a request asks for another name (one that was made to point here), or says which page it is from.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http" and not _is_own(Headers(scope=scope)):
            raise Refused(403, "only this machine may ask here", hint="as localhost or 127.0.0.1, from no other's page")
        await self._app(scope, receive, send)


def names_this_machine(host: str) -> bool:
    """Whether a host name, without its port, can only mean the machine it is used on."""
    try:
        return host == "localhost" or host.endswith(".localhost") or ip_address(host).is_loopback
    except ValueError:
        return False


def came_straight(headers: Headers) -> bool:
    """Whether a request asks for this machine by its name, and no proxy says that it has passed it on."""
    hosts = headers.getlist("host")
    passed_on = any(name == "forwarded" or name.startswith("x-forwarded-") for name in headers)
    return len(hosts) == 1 and names_this_machine(_host(f"http://{hosts[0]}")) and not passed_on


def _is_own(headers: Headers) -> bool:
    asked = [f"http://{host}" for host in headers.getlist("host")]
    return (
        len(asked) == 1
        and all(names_this_machine(_host(origin)) for origin in (*asked, *headers.getlist("origin")))
        and headers.get("sec-fetch-site") != "cross-site"
    )


def _host(origin: str) -> str:
    try:
        return urlsplit(origin).hostname or ""
    except ValueError:
        return ""
