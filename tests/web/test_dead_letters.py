"""Dead letters: groups, selections and filters are counted first, then run again or deleted, with who and why."""

from __future__ import annotations

import re
import time

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.serving import Server
from tests.support.world import World
from tests.web.browser import needs_browser, opened_page
from tests.web.filled import bury
from todoku.app import App

pytestmark = needs_browser


def acts_of(world: World) -> list[tuple[str, str]]:
    """(action, why) of every act on a delivery."""
    rows = [row.act for row in reversed(world.store.audit.page())]
    return [(row.action, row.why) for row in rows if row.target.startswith("delivery:")]


def confirm(page: Page, why: str, **fields: str) -> None:
    page.get_by_label("Why").fill(why)
    for name, value in fields.items():
        page.locator(f"input[name={name}]").fill(value)
    page.locator("main form button").click()


def test_a_group_opens_to_its_letters_and_is_run_again(browser_page: Page, world: World) -> None:
    refused = bury(world, 2, "REFUSED", error="no such card")
    bury(world, 1, "HTTP_5XX", error="HTTP 503")
    browser_page.goto("/dead-letters")
    group = browser_page.locator("#groups tbody tr", has_text="REFUSED")
    expect(group).to_contain_text("no such card")
    group.locator("td.number a").click()
    expect(browser_page).to_have_url(re.compile("reason=REFUSED&destination=warehouse&fingerprint=f00d"))
    expect(browser_page.locator("#letters tbody tr")).to_have_count(2)
    browser_page.go_back()
    group.get_by_text("Run again…").click()
    expect(browser_page.locator("h1")).to_have_text("Run again: 2 deliveries")
    assert len(world.deliveries(status="aborted")) == 3, "a preview changes nothing"
    confirm(browser_page, "the bank is back")
    expect(browser_page.locator(".state")).to_have_text("finished")
    expect(browser_page.locator("#act")).to_contain_text("2 of 2 changed")
    assert sorted(row.id for row in world.deliveries(status="pending")) == refused
    assert acts_of(world) == [("replay", "the bank is back")] * 2


@pytest.mark.parametrize("script", [True, False])
def test_a_selection_is_deleted_with_and_without_javascript(
    browser: Browser, served: Server, world: World, script: bool
) -> None:
    first, second, third = bury(world, 3)
    with opened_page(browser, served.url, java_script_enabled=script) as (page, _):
        page.goto("/dead-letters?reason=REFUSED")
        page.locator(f"#pick-{first}").check()
        page.locator(f"#pick-{third}").check()
        page.locator("#bulk").get_by_role("button", name="Delete").click()
        expect(page.locator("h1")).to_have_text("Delete: 2 deliveries")
        confirm(page, "junk")
        page.wait_for_url(re.compile("/acts/[0-9a-f-]{36}$"))
        deadline = time.monotonic() + 60
        while not script and page.locator(".state").inner_text() != "finished" and time.monotonic() < deadline:
            page.reload()  # nothing else brings the page up to date
        expect(page.locator(".state")).to_have_text("finished")
    assert [row.id for row in world.deliveries(status="aborted")] == [second]


def test_nothing_selected_says_so(browser_page: Page, world: World) -> None:
    bury(world, 1)
    browser_page.goto("/dead-letters?reason=REFUSED")
    browser_page.locator("#bulk").get_by_role("button", name="Run again").click()
    expect(browser_page.locator(".flash")).to_have_text("Nothing is selected.")
    expect(browser_page).to_have_url(re.compile(r"/dead-letters\?reason=REFUSED$"))


def test_a_filter_of_the_form_is_in_the_url_and_can_be_taken_out(browser_page: Page, world: World) -> None:
    bury(world, 1, topic="order.paid")
    bury(world, 1, topic="order.lost")
    browser_page.goto("/dead-letters")
    browser_page.get_by_text("Filter").first.click()
    browser_page.locator(".panel input[name=topic]").fill("order.lost")
    browser_page.locator(".panel button").click()
    expect(browser_page).to_have_url(re.compile("topic=order.lost"))
    expect(browser_page.locator("#letters tbody tr")).to_have_count(1)
    browser_page.locator("a.chip", has_text="topic").click()
    expect(browser_page.locator("#letters tbody tr")).to_have_count(2)


def test_an_act_is_paced_shows_its_progress_and_is_stopped(browser_page: Page, world: World) -> None:
    bury(world, 3)
    browser_page.goto("/dead-letters")
    browser_page.get_by_text("Run all again…").click()
    confirm(browser_page, "slowly", rate="0.05", limit="2")
    expect(browser_page.locator("#act")).to_contain_text("1 of 2 changed")
    expect(browser_page.locator(".state")).to_have_text("running")
    browser_page.locator("details.act summary").click()
    confirm(browser_page, "wrong bank")
    expect(browser_page.locator(".flash")).to_contain_text("It stops")
    expect(browser_page.locator(".state")).to_have_text("stopped")
    assert len(world.deliveries(status="aborted")) == 2
    browser_page.goto("/acts")
    expect(browser_page.locator("#acts tbody tr")).to_contain_text("slowly")


def test_bad_values_are_refused_with_a_sentence(served: Server, world: World) -> None:
    bury(world, 1)
    client = served.client()
    for path in ("/acts/new?act=explode", "/dead-letters?cursor=x", "/acts/new?act=replay&since=yesterday"):
        assert client.get(path).status_code == 422, path
    assert client.get("/acts/nonsense").status_code == 404
    assert client.post("/acts", data={"act": "purge", "why": "x"}).status_code == 403, "without a form's token"
    assert len(world.deliveries(status="aborted")) == 1


def test_who_may_only_look_has_no_buttons_and_is_refused(served: Server, world: World) -> None:
    bury(world, 1)
    reader = served.client("read")
    shown = reader.get("/dead-letters")
    assert shown.status_code == 200
    for part in ("/acts/new", '<form id="bulk"', 'type="checkbox"'):
        assert part not in shown.text
    assert reader.get("/acts/new?act=replay").status_code == 403
    assert reader.post("/acts", data={"act": "purge", "why": "x"}).status_code == 403
    assert reader.post("/acts/new", data={"id": "1"}).status_code == 403


def test_selection_focus_and_scroll_survive_live_updates(browser_page: Page, world: World) -> None:
    ids = bury(world, 60)
    browser_page.set_viewport_size({"width": 1200, "height": 500})
    browser_page.goto("/dead-letters?reason=REFUSED&limit=500")
    chosen = browser_page.locator(f"#pick-{ids[30]}")
    chosen.scroll_into_view_if_needed()
    chosen.check()
    browser_page.locator(f"#pick-{ids[28]}").click(modifiers=["Shift"])
    expect(browser_page.locator("[data-picked]")).to_have_text("3 selected")
    browser_page.locator(f"#pick-{ids[30]}").focus()
    top = browser_page.evaluate(f"document.getElementById('pick-{ids[30]}').getBoundingClientRect().top")
    browser_page.mouse.move(600, 5)  # what is under the pointer waits
    (new,) = bury(world, 1)
    expect(browser_page.locator(f"#row-{new}")).to_be_attached()
    for id in ids[28:31]:
        expect(browser_page.locator(f"#pick-{id}")).to_be_checked()
    expect(browser_page.locator(f"#pick-{new}")).not_to_be_checked()
    assert browser_page.evaluate("document.activeElement.id") == f"pick-{ids[30]}"
    moved = browser_page.evaluate(f"document.getElementById('pick-{ids[30]}').getBoundingClientRect().top")
    assert abs(moved - top) <= 2, "what is read does not move"
    browser_page.locator("[data-pick-all]").check()
    expect(browser_page.locator("[data-picked]")).to_have_text("61 selected")


def test_everything_is_reached_by_keys(browser_page: Page, world: World, box: App) -> None:
    _, second = bury(world, 2)
    browser_page.goto("/dead-letters?reason=REFUSED")
    press = browser_page.keyboard.press
    press("?")
    expect(browser_page.locator("dialog#keys")).to_be_visible()
    press("Escape")
    press("/")
    assert browser_page.evaluate("document.activeElement.id") == "find"
    press("j")
    expect(browser_page.locator("#find")).to_have_value("j")
    press("Escape")
    press("j")
    press("j")
    press("k")
    expect(browser_page.locator("tr[aria-selected=true]")).to_have_id(f"row-{second}")
    press("x")
    expect(browser_page.locator(f"#pick-{second}")).to_be_checked()
    press("r")
    expect(browser_page.locator("h1")).to_have_text("Run again: one delivery")
    browser_page.locator("main").click()
    press("g")
    press("o")
    expect(browser_page.locator("h1")).to_have_text("Overview")


def test_what_a_search_finds_is_selected_or_taken_as_a_whole(browser_page: Page, world: World) -> None:
    first, second, third = bury(world, 3, topic="order.paid")
    browser_page.goto("/deliveries?q=status:aborted")
    browser_page.locator(f"#pick-{first}").check()
    expect(browser_page.locator("[data-picked]")).to_have_text("1 selected")
    browser_page.locator("#bulk").get_by_role("button", name="Delete").click()
    expect(browser_page.locator("h1")).to_have_text("Delete: one delivery")
    confirm(browser_page, "junk")
    expect(browser_page.locator(".state")).to_have_text("finished")
    browser_page.goto("/deliveries?q=status:aborted")
    browser_page.get_by_text("Run again: all found…").click()
    expect(browser_page.locator("h1")).to_have_text("Run again: 2 deliveries")
    confirm(browser_page, "mended")
    expect(browser_page.locator(".state")).to_have_text("finished")
    expect(browser_page.locator("#act")).to_contain_text("status:aborted")
    assert sorted(row.id for row in world.deliveries(status="pending")) == [second, third]
