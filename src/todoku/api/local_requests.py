"""Protects a server with publicly known credentials: refuses requests that foreign web pages send through a browser."""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from todoku.api.problem import Refused


class LocalOnly:
    """An ASGI application that refuses requests which a foreign page makes a browser send.

    Such a request has another host name (DNS rebinding), or a foreign origin.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        if scope["type"] == "http" and not _is_local(Headers(scope=scope)):
            raise Refused(
                403, "only local requests are served", hint="use localhost or 127.0.0.1, from no foreign page"
            )
        await self._app(scope, receive, send)


def is_local_host(host: str) -> bool:
    """Returns whether a host name, without port, always denotes the local machine."""
    try:
        return host == "localhost" or host.endswith(".localhost") or ip_address(host).is_loopback
    except ValueError:
        return False


def is_direct_request(headers: Headers) -> bool:
    """Returns whether a request has a local host name and no header of a proxy."""
    hosts = headers.getlist("host")
    is_forwarded = any(name == "forwarded" or name.startswith("x-forwarded-") for name in headers)
    return len(hosts) == 1 and is_local_host(_host(f"http://{hosts[0]}")) and not is_forwarded


def _is_local(headers: Headers) -> bool:
    hosts = [f"http://{host}" for host in headers.getlist("host")]
    return (
        len(hosts) == 1
        and all(is_local_host(_host(origin)) for origin in (*hosts, *headers.getlist("origin")))
        and headers.get("sec-fetch-site") != "cross-site"
    )


def _host(origin: str) -> str:
    try:
        return urlsplit(origin).hostname or ""
    except ValueError:
        return ""
