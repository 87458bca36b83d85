"""The page of deliveries: one search in the URL, rows with why they wait, suggestions, and what it did not look at."""

from __future__ import annotations

import re

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.support.serving import Server
from tests.support.world import SOMEBODY, World, aborted
from tests.web.browser import Complaints, needs_browser
from todoku.web.pages import search

HOSTILE = '"><script>document.title = "stolen"</script><img src=x onerror="document.title=1">\u202e\x1b[31m'


def get(served: Server, path: str, **headers: str) -> httpx.Response:
    return httpx.get(served.url + path, headers=headers, timeout=60)


def test_the_page_is_also_json(served: Server, world: World) -> None:
    world.publish(2)
    found = get(served, "/deliveries?q=status:pending&limit=1", accept="application/json").json()
    assert (found["query"], len(found["items"]), found["complete"]) == ("status:pending", 1, True)
    assert found["items"][0]["why"]["cause"] == "no_worker"
    refused = get(served, "/deliveries?q=colour:red", accept="application/json")
    assert (refused.status_code, "there is no word 'colour'" in refused.json()["error"]) == (422, True)
    assert get(served, "/suggestions?q=stat", accept="application/json").json()["items"][0]["word"] == "status:"


@pytest.mark.parametrize("path", ["/deliveries?q=colour:red", "/deliveries?cursor=x", "/deliveries?limit=x"])
def test_a_wrong_search_is_refused_on_the_page(served: Server, path: str) -> None:
    refused = get(served, path, accept="text/html")
    assert refused.status_code == 422
    assert 'role="alert"' in refused.text


def test_the_page_works_without_a_script(served: Server, world: World) -> None:
    world.publish(3, topic="order.created")
    text = get(served, "/deliveries?q=topic:order.*&limit=2", accept="text/html").text
    assert text.count("/deliveries/") >= 2
    assert 'rel="next"' in text
    assert 'action="/deliveries"' in text
    assert "topic:order.*" in text


def test_what_was_not_looked_at_is_said(served: Server, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("todoku.store.search.LOOKED_INTO", 3)
    world.publish(7)
    text = get(served, "/deliveries?q=payload.n:99", accept="text/html").text
    assert "Looked at 3 deliveries; older ones may match too." in text
    assert "Go on" in text


def test_an_expensive_search_is_not_repeated_by_itself(
    served: Server, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.publish(3)
    live = 'id="found" data-live'
    assert live in get(served, "/deliveries", accept="text/html").text
    monkeypatch.setattr(search, "_LIVE_UP_TO", 1)
    assert live not in get(served, "/deliveries", accept="text/html").text


@needs_browser
def test_rows_say_why_they_wait_and_tabs_narrow_them(browser_page: Page, world: World) -> None:
    world.publish(2, topic="order.created")
    world.settle(world.claim(world.worker(), 1), aborted("REFUSED"))
    world.store.queues.pause("warehouse", SOMEBODY, paused=True)
    browser_page.goto("/deliveries")
    expect(browser_page.locator("#found tbody tr")).to_have_count(2)
    expect(browser_page.get_by_text("the queue warehouse is paused")).to_be_visible()
    browser_page.locator("#tabs").get_by_role("link", name="aborted").click()
    expect(browser_page.locator("#found tbody tr")).to_have_count(1)
    expect(browser_page).to_have_url(re.compile(r"/deliveries\?q=status%3Aaborted$"))
    expect(browser_page.locator("#find")).to_have_value("status:aborted")
    expect(browser_page.locator("#found")).to_contain_text("REFUSED")


@needs_browser
def test_suggestions_follow_what_is_typed_by_keyboard(browser_page: Page, world: World) -> None:
    world.publish(2, topic="order.created")
    world.publish(1, topic="mail.sent")
    browser_page.goto("/deliveries")
    box = browser_page.locator("#find")
    box.press_sequentially("top")
    expect(browser_page.get_by_role("option")).to_have_count(1)
    box.press("ArrowDown")
    expect(browser_page.get_by_role("option", selected=True)).to_contain_text("topic:")
    box.press("Enter")
    expect(box).to_have_value("topic:")
    expect(browser_page.get_by_role("option")).to_have_count(2)
    box.press("ArrowDown")
    box.press("Tab")
    expect(box).to_have_value("topic:mail.sent ")
    box.press("Escape")
    expect(browser_page.locator("#suggestions")).to_be_hidden()
    box.press("Enter")
    expect(browser_page.locator("#found tbody tr")).to_have_count(1)
    assert "q=topic%3Amail.sent" in browser_page.url


@needs_browser
def test_escape_before_the_suggestions_have_come_leaves_the_text(browser_page: Page, world: World) -> None:
    world.publish(1, topic="mail.sent")
    browser_page.goto("/deliveries")
    box = browser_page.locator("#find")
    box.press_sequentially("top")
    expect(browser_page.get_by_role("option")).to_have_count(1)
    browser_page.route("**/suggestions**", lambda _route: None)  # the next answer never comes
    box.press("ArrowDown")
    box.press("Tab")
    expect(box).to_have_value("topic:")
    box.press("Escape")
    expect(box).to_have_value("topic:")
    box.press("Escape")
    expect(box).to_have_value("")


@needs_browser
def test_hostile_contents_are_inert(browser_page: Page, complaints: Complaints, world: World) -> None:
    world.publish(1, key=HOSTILE.replace("\x1b", ""), labels=[HOSTILE + ":1"])
    world.settle(world.claim(world.worker()), aborted("REFUSED"))
    with_error = "update todoku_delivery set error = " + ("%s" if world.backend == "postgres" else "?")
    world.sql(with_error, HOSTILE)
    browser_page.goto("/deliveries")
    expect(browser_page.locator("#found")).to_contain_text("<script>")
    browser_page.locator("#find").fill("label:")
    expect(browser_page.get_by_role("option")).to_have_count(1)
    browser_page.goto("/deliveries?q=" + httpx.QueryParams({"q": HOSTILE})["q"].replace("\x1b", "")[:60])
    assert "stolen" not in browser_page.evaluate("document.title").split("·")[-1]
    assert browser_page.locator("#found img, #content script, #suggestions img").count() == 0
    complaints.expected.add("422")


@needs_browser
def test_it_fits_the_screen(browser_page: Page, world: World) -> None:
    world.publish(3, topic="order.created.with.a.long.name", key="k" * 200)
    for path in ("/deliveries", "/tail"):
        browser_page.goto(path)
        for width in (360, 1600):
            browser_page.set_viewport_size({"width": width, "height": 800})
            assert browser_page.evaluate("document.documentElement.scrollWidth") <= width, (path, width)
