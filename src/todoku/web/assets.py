"""The static files of the dashboard: read once, compressed once, named with a version, so that browsers keep them."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from todoku.api.auth import GuardedRoute
from todoku.api.problem import Refused

STATIC: Final = Path(__file__).parent / "static"
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FOREVER: Final = {"cache-control": "public, max-age=31536000, immutable", "x-content-type-options": "nosniff"}


class Asset(msgspec.Struct, frozen=True):
    """A static file, as it is and compressed."""

    type: str
    plain: bytes
    compressed: bytes
    version: str


class Assets:
    """The static files by name."""

    def __init__(self) -> None:
        self._assets = {file.name: _read(file) for file in STATIC.iterdir() if file.suffix in _TYPES}

    def version(self, name: str) -> str:
        """Returns the version of a file, for its URL: another content has another URL."""
        return self._assets[name].version

    def route(self) -> GuardedRoute:
        """Returns the route of the files. They are the same for every installation, and need no sign-in."""
        return GuardedRoute("/static/{name}", self._serve, methods=["GET", "HEAD"], access="open")

    async def _serve(self, request: Request) -> Response:
        asset = self._assets.get(request.path_params["name"])
        if asset is None:
            raise Refused(404, "there is no such file")
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers = {**_FOREVER, "content-encoding": "gzip", "vary": "accept-encoding"}
            return Response(asset.compressed, 200, headers, asset.type)
        return Response(asset.plain, 200, {**_FOREVER, "vary": "accept-encoding"}, asset.type)


def _read(file: Path) -> Asset:
    plain = file.read_bytes()
    version = hashlib.sha256(plain).hexdigest()[:12]
    return Asset(_TYPES[file.suffix], plain, gzip.compress(plain, 9, mtime=0), version)
