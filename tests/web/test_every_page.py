"""Every page, as the table of pages lists them: nothing breaks, overflows, complains or runs what it shows.

The long walk (sizes, languages, themes, axe) is slow and goes over one database; the short one over both.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from tests.support.serving import Server
from tests.support.world import World
from tests.web.browser import needs_browser, opened_page
from tests.web.filled import fill, paths
from todoku.app import App

pytestmark = needs_browser

WIDTHS = (360, 800, 1600)
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture
def filled(world: World, box: App) -> Iterator[list[str]]:
    """The paths of all pages over a database with one of everything."""
    fill(world, box)
    yield paths(world, box)
    for act in box.deliveries.bulk_acts.list():
        assert act.state != "failed", act.error


def assert_inert(page: Page, path: str) -> None:
    """Nothing that a text contains became an element, ran, or hides what stands beside it."""
    assert page.evaluate("document.harmed") is None, path
    assert page.locator("img[src=x], main script, main b:text-is('more')").count() == 0, path
    shown = page.locator("body").inner_text()
    assert not {"\x1b", "\u202e", "\u2066"} & set(shown), path


def test_every_page_answers_in_html_and_json_and_shows_texts_as_texts(
    browser_page: Page, served: Server, filled: list[str]
) -> None:
    for path in filled:
        answer = browser_page.goto(path)
        assert answer is not None
        assert answer.status == 200, (path, browser_page.locator("main").inner_text())
        assert browser_page.locator("h1").count() == 1, path
        assert browser_page.title().endswith("· todoku"), path
        assert_inert(browser_page, path)
        as_json = served.client().get(path, headers={"accept": "application/json"})
        assert as_json.status_code == 200, path
        as_json.json()


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("language", ["en-US", "ja-JP", "zh-CN"])
def test_every_page_fits_every_width_and_axe_has_no_objection(
    browser: Browser, served: Server, filled: list[str], language: str, theme: str
) -> None:
    axe, objections = Axe(), list[str]()
    with opened_page(browser, served.url, locale=language, color_scheme=theme) as (page, _):
        for path in filled:
            page.goto(path)
            assert page.locator("html").get_attribute("lang") == language[:2]
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 900})
                if (over := page.evaluate(OVERFLOW)) > 0:
                    objections.append(f"{path} is {over} px too wide for {width}")
                if width != 800:
                    objections += [
                        f"{path} at {width}: {one['id']}: {node['html']}"
                        for one in axe.run(page).response["violations"]
                        for node in one["nodes"]
                    ]
    assert not objections, "\n".join(objections)


def test_a_page_works_without_javascript(browser: Browser, served: Server, filled: list[str]) -> None:
    with opened_page(browser, served.url, java_script_enabled=False) as (page, _):
        for path in filled:
            answer = page.goto(path)
            assert answer is not None
            assert answer.status == 200, path
            assert page.locator("h1").is_visible(), path
