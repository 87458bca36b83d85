"""Live fetches: what an open page gets at each tick, once for all viewers where it is the same for all of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Mapping
from hashlib import blake2b
from typing import Final

import msgspec
from cachetools import LRUCache
from starlette.requests import Request
from starlette.responses import Response

_MOST_PAGES: Final = 64
"""Pages that are kept: by path, query, language and prefix."""

KEPT: Final = 1.0
"""Seconds for which a page is shared: less than a tick, so that each tick shows new numbers."""


class LivePage(msgspec.Struct, frozen=True):
    """A rendered page, and the tag that changes with it."""

    body: bytes
    tag: str
    status: int = 200


def live_page(text: str, status: int = 200) -> LivePage:
    """Returns a page with its tag."""
    body = text.encode()
    return LivePage(body, f'"{blake2b(body, digest_size=12).hexdigest()}"', status)


def live_response(page: LivePage, request: Request, headers: Mapping[str, str]) -> Response:
    """Returns the page; or 304, if the browser shows it already: then nothing is sent, parsed or morphed."""
    tagged = {**headers, "etag": page.tag}
    # A proxy that compresses marks the tag as weak.
    if request.headers.get("if-none-match", "").removeprefix("W/") == page.tag:
        return Response(None, 304, tagged)
    return Response(page.body, page.status, tagged, "text/html")


class _Shared(msgspec.Struct, frozen=True):
    """A page that is rendered or being rendered, the version of the numbers in it, and until when it is shared."""

    rendering: asyncio.Future[LivePage]
    version: int
    until: float


class LivePages:
    """Pages that are the same for every viewer: each is rendered once for a tick. For one event loop only."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._pages: LRUCache[Hashable, _Shared] = LRUCache(_MOST_PAGES)

    async def get(self, name: Hashable, version: int, render: Callable[[], LivePage]) -> LivePage:
        """Returns the page of this name; renders it, in a thread, if none was begun with this version a moment ago.

        `version`: changes with every act, so that no page from before it is shown after it.
        """
        found, now = self._pages.get(name), self._monotonic()
        if found is None or found.version != version or now >= found.until or _has_failed(found.rendering):
            begun = asyncio.ensure_future(asyncio.to_thread(render))
            found = self._pages[name] = _Shared(begun, version, now + KEPT)
        return await asyncio.shield(found.rendering)  # a viewer who leaves does not end it for the others


def _has_failed(rendering: asyncio.Future[LivePage]) -> bool:
    return rendering.done() and (rendering.cancelled() or rendering.exception() is not None)
