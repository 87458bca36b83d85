"""How a request reaches the server: whether a password and a session's cookie are safe on the way."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Literal
from urllib.parse import urlsplit

from starlette.requests import Request

from todoku.api.local_requests import is_direct_request
from todoku.core.proxies import Proxies

Transport = Literal["https", "local", "plain"]
"""By TLS, as this server or a trusted proxy saw it; on this machine; or by plain HTTP over a network."""


def transport_of(request: Request, proxies: Proxies) -> Transport:
    """Returns how a request came. Browsers keep secure cookies for `https` and for `local`."""
    if scheme_of(request, proxies) == "https":
        return "https"
    return "local" if is_direct_request(request.headers) and _is_loopback(_peer(request)) else "plain"


def scheme_of(request: Request, proxies: Proxies) -> str:
    """Returns the scheme in the URL that the browser shows."""
    return proxies.scheme(_peer(request), request.headers.getlist("x-forwarded-proto"), request.scope["scheme"])


def own_url(request: Request, proxies: Proxies, path: str) -> str:
    """Returns the URL of a path of this dashboard, as the browser reaches it."""
    host = urlsplit(f"//{request.headers.get('host', '')}").netloc
    return f"{scheme_of(request, proxies)}://{host}{request.scope.get('root_path', '')}{path}"


def _peer(request: Request) -> str:
    return request.client.host if request.client is not None else ""


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False
