"""A message's page: why, timeline, attempts, payload, acts; edit and run; a new message; opening what is masked."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from playwright.sync_api import Page, expect

from tests.support.serving import Server
from tests.support.world import World
from tests.web.browser import needs_browser
from todoku.app import App

pytestmark = needs_browser

HOSTILE = "</script><img src=x onerror=alert(1)>\u202e\x1b[31m"


@pytest.fixture
def box(world: World) -> Any:
    box = App(world.url)

    @box.job(max_attempts=1, keep_result=True)
    def charge(amount: int, password: str, note: str = "") -> dict[str, int]:
        """Charges a card."""
        if amount < 0:
            raise ValueError(f"cannot charge {amount}: {note}")
        return {"charged": amount}

    yield box
    box.close()


def dead(box: App, **arguments: Any) -> int:
    """A dead letter of `charge`."""
    given = {"amount": -5, "password": "hunter2", "note": HOSTILE} | arguments
    handle = box.jobs["charge"].enqueue(**given)
    box.drain()
    delivery = handle.delivery()
    assert delivery.status == "aborted"
    return delivery.id


def audit(box: App) -> list[tuple[str, str]]:
    return [(each.act.action, each.act.why) for each in reversed(box.store.audit.page())]


def test_a_dead_letter_says_why_shows_its_line_of_code_and_runs_again(browser_page: Page, box: App) -> None:
    number = dead(box)
    browser_page.goto(f"/deliveries/{number}")
    expect(browser_page.locator("h1")).to_contain_text("charge")
    expect(browser_page.locator(".because")).to_contain_text("it has been a dead letter since")
    expect(browser_page.locator(".because")).to_contain_text(f"todoku replay {number}")
    expect(browser_page.locator(".traceback")).to_contain_text("cannot charge -5")
    expect(browser_page.locator(".traceback")).to_contain_text("in charge")
    assert browser_page.locator("main img").count() == 0
    assert browser_page.locator("svg.fall").count() >= 3
    expect(browser_page.locator("#payload")).to_contain_text('"password": "***"')
    assert "hunter2" not in browser_page.content()
    browser_page.locator("summary", has_text="Run again").first.click()
    browser_page.locator("details.act[open] input[name=why]").fill("the sign was wrong")
    browser_page.locator("details.act[open] button").click()
    expect(browser_page.locator(".flash")).to_contain_text(f"Delivery {number} runs again.")
    expect(browser_page.locator("#state .status")).to_have_text("pending")
    assert audit(box) == [("replay", "the sign was wrong")]
