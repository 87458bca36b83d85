"""A real browser: Debian's Chromium, driven by Playwright, which reports everything that a page must not do."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar
from unittest.mock import patch
from urllib.parse import urlsplit

import pytest
from playwright._impl import _sync_base
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Error,
    Page,
    Playwright,
    Request,
    sync_playwright,
)

T = TypeVar("T")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium: `make system-packages`")

_ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip


@contextmanager
def running_browser() -> Iterator[Browser]:
    with sync_playwright() as playwright, _loop_of_playwright_alone(playwright):
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(_ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def _loop_of_playwright_alone(playwright: Playwright) -> Iterator[None]:
    """Playwright's event loop counts as running only while Playwright runs.

    It lives in a greenlet of the thread of the test, where asyncio takes it for running all the time: blocking calls of
    todoku and async tests would be refused in the whole process.
    """
    loop = playwright._loop
    entries = [
        (_sync_base, "wait_for_future"),
        *((_sync_base.SyncBase, name) for name in ("on", "once", "remove_listener")),
    ]

    def in_loop(function: Callable[..., T]) -> Callable[..., T]:
        def call(*arguments: Any, **named: Any) -> T:
            before = asyncio._get_running_loop()
            asyncio._set_running_loop(loop)
            try:
                return function(*arguments, **named)
            finally:
                asyncio._set_running_loop(before)

        return call

    with ExitStack() as stack:
        stack.callback(asyncio._set_running_loop, loop)
        for owner, name in entries:
            stack.enter_context(patch.object(owner, name, in_loop(getattr(owner, name))))
        asyncio._set_running_loop(None)
        yield


class Complaints:
    """What the pages of a context did that they must not: errors, refused content, requests to elsewhere."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.found: list[str] = []
        self.expected: set[str] = set()
        """Parts of complaints that a test provokes on purpose."""
        self._home = urlsplit(url).netloc
        context.on("console", self._console)
        context.on("weberror", lambda error: self.found.append(f"error: {error.error}"))
        context.on("request", self._request)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.found.append(f"{message.type}: {message.text} ({message.location.get('url', '')})")

    def _request(self, request: Request) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in ("http", "https") and parts.netloc != self._home:
            self.found.append(f"request to {request.url}")

    def check(self) -> None:
        """Fails if there is any that no test expects."""
        left = [one for one in self.found if not any(part in one for part in self.expected)]
        assert not left, left


@contextmanager
def opened_page(browser: Browser, url: str, **options: object) -> Iterator[tuple[Page, Complaints]]:
    """A page of a new context at `url`; options are those of a Playwright context."""
    context = browser.new_context(base_url=url, **options)  # type: ignore[arg-type]
    context.set_default_timeout(60_000)
    complaints = Complaints(context, url)
    try:
        yield context.new_page(), complaints
    finally:
        try:
            context.close()
        except Error:
            complaints.found.append("the browser ended")
    complaints.check()
