"""Entrances without a sign-in of todoku's own: the open one of this machine, and that of an application around it."""

from __future__ import annotations

import asyncio
import getpass
import os
import secrets
from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable, iscoroutinefunction
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from todoku.api.auth import Access, Gate, GuardedRoute
from todoku.api.local_requests import is_direct_request
from todoku.api.problem import Refused
from todoku.core.role import Role
from todoku.core.settings import Settings
from todoku.engine.sign_in.form_key import FormKey
from todoku.web.viewer import Viewer, check_access

if TYPE_CHECKING:
    from todoku.api.request_context import RequestContext
    from todoku.web.rendering import Rendering

Admission = Viewer | Role | Response | None
"""Who makes a request: a viewer, a role for a person without a name, a response to send instead, or nobody (None)."""

Auth = Callable[[Request], Admission | Awaitable[Admission]]
"""How an application says who makes a request to the dashboard that it mounts."""


def is_program(request: Request) -> bool:
    """Whether a request has a bearer token. `Basic`, which a proxy may ask browsers for, is none."""
    return request.headers.get("authorization", "").strip().lower().startswith("bearer ")


async def admit_program(gate: Gate, request: Request, access: Access, *, read_only: bool) -> Viewer:
    """Returns the viewer of a request with a bearer token. Raises Refused: 401, 403 or 429."""
    token = await gate.admit(request, "read" if access == "open" else access)
    return check_access(Viewer(token.name, token.scopes, is_program=True, read_only=read_only), request, access)


class OpenEntrance:
    """Admits every direct request from this machine as an admin, without sign-in; a bearer token works everywhere."""

    def __init__(self, gate: Gate, *, read_only: bool = False) -> None:
        self._gate = gate
        self._viewer: Final = Viewer(_local_name(), ("admin",), secrets.token_urlsafe(24), read_only=read_only)

    async def admit(self, request: Request, access: Access) -> Viewer | Response:
        """See `Entrance`."""
        if is_program(request):
            return await admit_program(self._gate, request, access, read_only=self._viewer.read_only)
        if not is_direct_request(request.headers):
            raise Refused(
                403, "only this machine is served without sign-in",
                hint="use http://localhost on it, or start todoku without --open",
            )  # fmt: skip
        return check_access(self._viewer, request, access)

    def routes(self, context: RequestContext, rendering: Rendering) -> Sequence[GuardedRoute]:  # noqa: ARG002 - protocol
        """See `Entrance`: there is nothing to sign in to."""
        return ()


class GuestEntrance:
    """Admits those whom an application knows, which mounts the dashboard and signs people in itself."""

    def __init__(self, auth: Auth, key: FormKey, settings: Settings) -> None:
        self._auth, self._key, self._read_only = auth, key, settings.web_read_only

    async def admit(self, request: Request, access: Access) -> Viewer | Response:
        """See `Entrance`."""
        found = await self._ask(request)
        if isinstance(found, Response):
            return found
        if found is None:
            raise Refused(403, "you are not signed in, or may not see this", hint="sign in to the application first")
        viewer = found if isinstance(found, Viewer) else Viewer.of_role(found, found)
        if not viewer.csrf:  # bound to the name: the form of one person is no other's
            viewer = msgspec.structs.replace(viewer, csrf=await asyncio.to_thread(self._key.sign, "guest", viewer.name))
        viewer = msgspec.structs.replace(viewer, read_only=viewer.read_only or self._read_only)
        return check_access(viewer, request, access)

    def routes(self, context: RequestContext, rendering: Rendering) -> Sequence[GuardedRoute]:  # noqa: ARG002 - protocol
        """See `Entrance`: people sign in elsewhere."""
        return ()

    async def _ask(self, request: Request) -> Admission:
        """Asks the application; a function that is not async may block, and runs in a thread."""
        is_async = iscoroutinefunction(self._auth)
        found = self._auth(request) if is_async else await asyncio.to_thread(self._auth, request)
        return await found if isawaitable(found) else found


def _local_name() -> str:
    """The name in the audit of the person at this machine."""
    try:
        return os.environ.get("TODOKU_BY") or getpass.getuser()
    except (KeyError, OSError, ImportError):  # a container without a passwd entry; Windows without USERNAME
        return "this machine"
