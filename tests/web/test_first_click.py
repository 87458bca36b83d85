"""A newcomer's first minute with `todoku up`: from the first page to a message that failed and now succeeds."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.web.browser import needs_browser, opened_page
from tests.web.first_click import MOST_CLICKS, demonstration, walk

pytestmark = [pytest.mark.slow, needs_browser]


def test_the_failed_message_is_found_read_and_run_again_with_few_clicks(browser: Browser, tmp_path: Path) -> None:
    """Issue 13: at most four clicks. How long it takes is for `make show-web`, not for a test."""
    with demonstration(tmp_path) as url, opened_page(browser, url) as (page, _):
        assert walk(page).clicks <= MOST_CLICKS
