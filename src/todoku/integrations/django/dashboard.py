"""The dashboard in a Django project, for its staff: `path("todoku/", include("todoku.integrations.django.urls"))`."""

from __future__ import annotations

from functools import cache
from http.cookies import SimpleCookie
from typing import TYPE_CHECKING, Any, Final

from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import HttpResponse
from django.views.decorators.csrf import csrf_exempt

from todoku.core.role import Role
from todoku.integrations.asgi_thread import AsgiThread, WsgiRequest
from todoku.integrations.django.project import get_box, option

if TYPE_CHECKING:
    from starlette.requests import Request

    from todoku.web.viewer import Viewer

_VIEWER: Final = "todoku.viewer"
_READS: Final = ("GET", "HEAD")


@csrf_exempt  # the dashboard's forms have tokens of their own, which it checks itself
def dashboard(request: Any, path: str = "") -> Any:
    """Serves every page of the dashboard to users who are staff; others are sent to the login, or refused."""
    from todoku.web.viewer import Viewer  # noqa: PLC0415 - needs the extra `server`

    user = request.user
    role = role_of(user)
    if role is None:
        if user.is_authenticated or request.method not in _READS:
            raise PermissionDenied
        return redirect_to_login(request.get_full_path())
    viewer = Viewer.of_role(user.get_username(), role)
    response = _thread().call(WsgiRequest(
        method=request.method, path=request.path, root=request.path[: len(request.path) - len(path)].rstrip("/"),
        query=request.META.get("QUERY_STRING", "").encode(), headers=_headers(request),
        body=request.body, scheme=request.scheme, client=request.META.get("REMOTE_ADDR", ""), more={_VIEWER: viewer},
    ))  # fmt: skip
    answer = HttpResponse(response.body, status=response.status)
    for name, value in response.headers:
        if name == "set-cookie":
            answer.cookies.update(SimpleCookie(value))
        else:
            answer[name] = value
    return answer


def _headers(request: Any) -> tuple[tuple[str, str], ...]:
    """The headers, with the host as Django knows it: behind a proxy that is the one in the browser's address bar."""
    return (*((name, value) for name, value in request.headers.items() if name != "Host"), ("Host", request.get_host()))


def role_of(user: Any) -> Role | None:
    """The role of a Django user: by the permissions that TODOKU names, else viewer for staff, else none."""
    if not (user.is_active and user.is_staff):
        return None
    if user.has_perm(option("ADMIN_PERMISSION")):
        return "admin"
    return "operator" if user.has_perm(option("OPERATOR_PERMISSION")) else "viewer"


@cache
def _thread() -> AsgiThread:
    return AsgiThread(lambda: get_box().web(auth=_viewer_of))


async def _viewer_of(request: Request) -> Viewer:
    found: Viewer = request.scope[_VIEWER]
    return found
