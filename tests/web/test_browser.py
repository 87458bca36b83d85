"""The browser of the tests leaves asyncio alone, and complains of what a page must not do."""

from __future__ import annotations

import asyncio
import time

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


SCRIPTS = {
    "document.head.append(Object.assign(document.createElement('script'), {textContent: '1'}))": "Security Policy",
    "fetch('http://127.0.0.1:9/').catch(() => 0)": "http://127.0.0.1:9/",
    "console.error('broken')": "error: broken",
    "setTimeout(() => { throw new Error('thrown') })": "thrown",
}
"""What a page must not do, and a part of the complaint."""


def test_it_complains_of_errors_inline_scripts_and_requests_to_elsewhere(
    browser_page: Page, complaints: Complaints
) -> None:
    browser_page.goto("/")
    for script, complaint in SCRIPTS.items():
        complaints.found.clear()
        browser_page.evaluate(f"{{ {script}; undefined }}")
        deadline = time.monotonic() + 60
        while not any(complaint in one for one in complaints.found):
            assert time.monotonic() < deadline, (script, complaints.found)
            browser_page.wait_for_timeout(10)  # in which Playwright takes in what the browser says
        with pytest.raises(AssertionError):
            complaints.check()
    browser_page.goto("about:blank")  # what the last script says more than once is said now
    complaints.found.clear()
