"""The pages of workers, schedules, sources, ledger, audit, settings, doctor and verify, in a browser."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.support.crew import Crew, until
from tests.support.serving import Server
from tests.support.world import SOMEBODY, World
from tests.web.browser import needs_browser
from todoku.app import App

HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m"
PATHS = (
    "/workers", "/schedules", "/sources", "/captures", "/projections", "/ledger", "/audit", "/settings", "/doctor",
    "/verify",
)  # fmt: skip


def act(page: Page, label: str, why: str) -> None:
    """Opens the form of an act, gives a reason and sends it."""
    form = page.locator("details.act").filter(has=page.get_by_text(label, exact=True)).first
    form.locator("summary").click()
    form.get_by_label("Why").fill(why)
    form.locator("form button").click()


@pytest.mark.parametrize("path", PATHS)
def test_every_page_is_html_and_the_operations_json(served: Server, path: str) -> None:
    served.client("admin")  # its token is made now, and audited
    client = served.client()
    page = client.get(path, headers={"accept": "text/html"})
    assert (page.status_code, "<h1>" in page.text) == (200, True)
    answer = client.get(path, headers={"accept": "application/json"})
    assert answer.status_code == 200
    if path not in ("/ledger", "/doctor"):  # the one needs a key, the other has the time
        assert answer.json() == served.ask("GET", path)


@needs_browser
@pytest.mark.parametrize("language", ["en", "ja", "zh"])
def test_every_page_fits_and_says_nothing_to_the_console(
    browser_page: Page, world: World, box: App, language: str
) -> None:
    """Hostile names stay text, at every width, in every language."""
    world.publish(1, topic="order.created")
    world.claim(world.worker(name=f"{HOSTILE}:7"))
    box.route("**", to="warehouse")
    box.schedules.add("tidy <b>/up", "tidy.up", {}, cron="0 9 * * 1-5", tz="Asia/Tokyo", by="ada", why=HOSTILE)
    browser_page.goto(f"/?lang={language}")
    for path in PATHS:
        browser_page.goto(path)
        expect(browser_page.locator("h1")).to_be_visible()
        assert browser_page.locator("main img").count() == 0, path
        for width in (360, 1600):
            browser_page.set_viewport_size({"width": width, "height": 900})
            assert browser_page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (path, width)


@needs_browser
def test_a_worker_is_drained_and_resumed_with_a_reason(browser_page: Page, world: World) -> None:
    id = world.worker(name="host:7")
    browser_page.goto("/workers")
    expect(browser_page.locator("article .status")).to_have_text("running")
    act(browser_page, "Drain", "the host is moved")
    expect(browser_page.locator(".flash")).to_contain_text("drains")
    expect(browser_page.locator("article .status")).to_have_text("drained")
    act(browser_page, "Resume", "it is back")
    expect(browser_page.locator("article .status")).to_have_text("running")
    acts = [(row.act.action, row.act.target, row.act.why) for row in world.store.audit.page()]
    assert acts == [("resume", f"worker:{id}", "it is back"), ("drain", f"worker:{id}", "the host is moved")]


@needs_browser
def test_the_stack_of_a_running_handler_is_shown(browser_page: Page, world: World) -> None:
    crew = Crew(world)
    go = crew_waits(crew)
    world.publish(1)
    try:
        with crew.running() as worker:
            until(lambda: worker.health().running == 1, what="it to run")
            browser_page.goto("/workers")
            browser_page.get_by_role("link", name=worker.name).first.click()
            expect(browser_page.locator("tbody tr")).to_contain_text("warehouse")
            act(browser_page, "Where do its handlers stand?", "it seems to hang")
            expect(browser_page.locator("#stacks ~ article pre")).to_contain_text("release.wait(60)")
            go()
    finally:
        go()


def crew_waits(crew: Crew) -> Callable[[], None]:
    import threading

    release = threading.Event()

    def handler(_ctx: object) -> None:
        release.wait(60)

    crew.handles("warehouse", handler, run="thread")
    return release.set


@needs_browser
def test_a_schedule_is_run_paused_and_resumed(browser_page: Page, box: App, world: World) -> None:
    box.route("**", to="warehouse")
    box.schedules.add("daily/report", "report.due", {}, cron="0 9 * * *", tz="Asia/Tokyo", by="ada", why="daily")
    browser_page.goto("/schedules")
    card = browser_page.locator("article")
    expect(card).to_contain_text("At 09:00")
    assert card.locator("ol li").count() == 5
    expect(card.locator("ol li").first).to_contain_text("09:00:00+09:00")
    expect(card.locator("ol li").first).to_contain_text("00:00:00 UTC")
    act(browser_page, "Run now", "the first was lost")
    expect(browser_page.locator(".flash")).to_contain_text("daily/report published the message")
    expect(card.get_by_role("link", name="its message")).to_be_visible()
    assert len(world.deliveries()) == 1
    act(browser_page, "Pause", "too many")
    expect(card.locator(".status")).to_have_text("paused")
    act(browser_page, "Resume", "enough")
    expect(card.locator(".status")).to_have_text("on")
    browser_page.goto("/schedules?lang=ja")
    expect(card).to_contain_text("次回")


@needs_browser
def test_the_ledger_finds_a_key(browser_page: Page, world: World) -> None:
    (message,) = world.publish(1, topic="order.paid", idempotency_key="o-1")
    browser_page.goto("/ledger")
    browser_page.get_by_label("Scope").fill("publish:order.paid")
    browser_page.get_by_label("Key, or its hash").fill("o-1")
    browser_page.get_by_role("button", name="Look up").click()
    expect(browser_page.locator("main dl.facts")).to_contain_text(str(message.id))


def test_a_key_that_the_ledger_lacks_is_said_to_be_missing(served: Server) -> None:
    answer = served.client().get("/ledger?scope=publish:x&key=nope", headers={"accept": "text/html"})
    assert answer.status_code == 404
    assert "no entry for this key" in answer.text
    assert served.client().get("/ledger?scope=x", headers={"accept": "text/html"}).status_code == 422


@needs_browser
def test_the_audit_is_filtered_and_paged(browser_page: Page, world: World) -> None:
    for number in range(60):
        world.store.queues.pause(f"q{number}", SOMEBODY, paused=True)
    browser_page.goto("/audit")
    rows = browser_page.locator("tbody tr")
    expect(rows).to_have_count(50)
    browser_page.get_by_role("link", name="Older").click()
    expect(rows).to_have_count(10)
    browser_page.get_by_label("Target").fill("queue:q7")
    browser_page.get_by_role("button", name="Filter").click()
    expect(rows).to_have_count(1)
    expect(rows).to_contain_text("queue:q7")


@needs_browser
def test_settings_show_their_origin_and_no_password(browser_page: Page, world: World) -> None:
    browser_page.goto("/settings")
    row = browser_page.locator("tr").filter(has=browser_page.get_by_text("database", exact=True))
    expect(row).to_contain_text("argument")
    token = browser_page.locator("tr").filter(has=browser_page.get_by_text("token", exact=True))
    expect(token).to_contain_text("not set")


@needs_browser
def test_the_doctor_and_the_verification_are_pages(browser_page: Page, world: World) -> None:
    browser_page.goto("/doctor")
    expect(browser_page.locator("tbody")).to_contain_text("none is alive")
    browser_page.goto("/verify")
    browser_page.get_by_role("button", name="Verify now").click()
    expect(browser_page.locator("#verify")).to_contain_text("Every invariant holds.")
    assert browser_page.locator("#verify tbody tr").count() > 20
