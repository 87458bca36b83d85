"""The browser of the tests leaves asyncio alone, and complains of what a page must not do."""

from __future__ import annotations

import asyncio

import pytest
from playwright.sync_api import Page

from tests.web.browser import Complaints, needs_browser
from todoku.app import App

pytestmark = needs_browser


def test_blocking_calls_work_beside_the_browser(browser_page: Page, box: App) -> None:
    browser_page.goto("/")
    box.route("**", to="warehouse")
    box.publish("order.created", {}, tx=None)
    assert asyncio.run(asyncio.sleep(0, "ran")) == "ran"
    browser_page.goto("/")
    assert browser_page.title() == "Overview · todoku"


@pytest.mark.parametrize(
    "script",
    [
        "document.head.append(Object.assign(document.createElement('script'), {textContent: '1'}))",
        "fetch('http://127.0.0.1:9/').catch(() => 0)",
        "console.error('broken')",
        "setTimeout(() => { throw new Error('broken') })",
    ],
)
def test_it_complains_of_errors_inline_scripts_and_requests_to_elsewhere(
    browser_page: Page, complaints: Complaints, script: str
) -> None:
    browser_page.goto("/")
    browser_page.evaluate(f"{{ {script}; undefined }}")
    browser_page.wait_for_timeout(100)
    assert complaints.found
    with pytest.raises(AssertionError):
        complaints.check()
    complaints.found.clear()
