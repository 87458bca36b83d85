"""Which route a request is for: by the first part of its path, then in the order they were declared."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Receive, Scope, Send

from todoku.api.auth import denying


class Routing:
    """An ASGI application over routes. 404: there is no such path. 405: with all methods that the path has."""

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        self.routes = denying(routes)
        parts = {_first_part(route.path) for route in self.routes}
        self._by_part = {part: [route for route in self.routes if _may_be(route, part)] for part in parts}
        self._elsewhere = [route for route in self.routes if _may_be(route, None)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        methods: set[str] = set()
        for route in self._by_part.get(_first_part(scope["path"]), self._elsewhere):
            match, child = route.matches(scope)
            if match is Match.FULL:
                scope.update(child)
                return await route.handle(scope, receive, send)
            if match is Match.PARTIAL:
                methods |= route.methods or set()
        if methods:
            raise HTTPException(405, headers={"allow": ", ".join(sorted(methods))})
        raise HTTPException(404, "there is nothing here")


def _may_be(route: Route, part: str | None) -> bool:
    """Whether a path that begins with this part may be the route's."""
    own = _first_part(route.path)
    return own == part or "{" in own


def _first_part(path: str) -> str:
    return path.split("/", 2)[1] if path.startswith("/") else ""
