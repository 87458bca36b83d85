"""A running dashboard on both databases, and a browser that looks at it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.serving import Server, serving
from tests.support.world import World
from tests.web.browser import Complaints, opened_page, running_browser
from todoku.app import App

expect.set_options(timeout=60_000)  # the machine may be busy


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with running_browser() as browser:
        yield browser


@pytest.fixture
def box(world: World) -> Iterator[App]:
    """An App on the world's database."""
    box = App(world.url)
    yield box
    box.close()


@pytest.fixture
def served(box: App) -> Iterator[Server]:
    """The dashboard, without sign-in."""
    with serving(box, local=True) as server:
        yield server


@pytest.fixture
def looked_at(browser: Browser, served: Server) -> Iterator[tuple[Page, Complaints]]:
    """A page of the browser, and what it complains of; the test fails if that is anything."""
    with opened_page(browser, served.url) as opened:
        yield opened


@pytest.fixture
def browser_page(looked_at: tuple[Page, Complaints]) -> Page:
    """A page of the browser on the dashboard; an error, refused content or a request to elsewhere fails the test."""
    return looked_at[0]


@pytest.fixture
def complaints(looked_at: tuple[Page, Complaints]) -> Complaints:
    """What the browser complained of: a test that provokes a complaint names it in `expected`."""
    return looked_at[1]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A browser takes seconds, so what it looks at is slow."""
    for item in items:
        if "tests/web/" in item.nodeid and "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
