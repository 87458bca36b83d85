"""The cookies of the sign-in. `__Host-`: only this host sets them, only by TLS or on this machine."""

from __future__ import annotations

import re
import secrets
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

SESSION_COOKIE: Final = "__Host-todoku"
FORM_COOKIE: Final = "__Host-todoku-form"
OIDC_COOKIE: Final = "__Host-todoku-oidc"

_ID: Final = re.compile(r"[A-Za-z0-9_-]{20,64}")
_FORM_STATE: Final = "todoku_form"


def set_cookie(response: Response, name: str, value: str, *, lasts: float) -> None:
    """Gives the browser a cookie that no script reads and no other site's form carries."""
    response.set_cookie(name, value, max_age=int(lasts), path="/", secure=True, httponly=True, samesite="lax")


def drop_cookie(response: Response, name: str) -> None:
    """Takes a cookie from the browser."""
    response.delete_cookie(name, path="/", secure=True, httponly=True, samesite="lax")


def session_id(request: Request) -> str | None:
    """Returns the id of the browser's session; None: it has none, or one that todoku never gave."""
    id = request.cookies.get(SESSION_COOKIE, "")
    return id if _ID.fullmatch(id) else None


def form_cookie(request: Request) -> str:
    """Returns what binds the sign-in form to this browser: its cookie, or a new one for the response to set."""
    found = request.cookies.get(FORM_COOKIE, "")
    if not _ID.fullmatch(found):
        found = getattr(request.state, _FORM_STATE, None) or secrets.token_urlsafe(24)
        setattr(request.state, _FORM_STATE, found)
    return found
