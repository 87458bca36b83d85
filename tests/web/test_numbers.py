"""Overview, queues, endpoints: what they show, and what can be done on them."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.support.serving import Server
from tests.support.world import World, aborted, failed
from tests.web.browser import needs_browser
from todoku.app import App
from todoku.core.decision import SUCCEEDED
from todoku.engine.http import url_groups
from todoku.engine.http.url_groups import EndpointName
from todoku.store.audit import Signed
from todoku.web import charts
from todoku.web.charts import Band

TICK = """new Promise((seen) => {
  const stream = new EventSource("/live");
  stream.addEventListener("tick", () => { stream.close(); setTimeout(seen, 200); });
})"""
"""In the page: until it was told to fetch itself again, and has."""

HOSTILE = "<img src=x onerror=alert(1)>"


def fill(world: World) -> int:
    """Three successes, a retry, a dead letter with a hostile error, one delivery that waits. Returns the dead one."""
    worker = world.worker(name=HOSTILE)
    world.publish(5)
    claims = world.claim(worker)
    world.store.claims.settle([(claim, SUCCEEDED) for claim in claims[:3]], {claim.id: 40 for claim in claims})
    world.settle(claims[3:4], failed("HTTP_5XX", delay=3600))
    world.settle(claims[4:5], aborted("REFUSED"))
    world.publish(1)
    return claims[4].id


def test_a_line_across_bars_scales_them() -> None:
    bars = charts.bars(
        (Band("done", "succeeded", (1.0, 0.0)),), ("a", "b"), line=Band("came", "arrived", (4, 0)), label="l"
    )
    assert bars.count("<rect") == 1
    assert "<title>a: done 1, came 4</title>" in bars
    assert '<polyline class="arrived" points="180.0,4.0 540.0,140.0"' in bars


@pytest.mark.parametrize("path", ["/", "/?per=hour", "/queues", "/endpoints"])
def test_pages_of_an_empty_database_are_pages(served: Server, path: str) -> None:
    assert served.client().get(path, headers={"accept": "text/html"}).status_code == 200


@pytest.mark.parametrize(("path", "status"), [("/?per=day", 422), ("/endpoints?search=%00", 422)])
def test_bad_parameters_are_refused(served: Server, path: str, status: int) -> None:
    assert served.client().get(path, headers={"accept": "text/html"}).status_code == status


def test_acts_need_their_scope(served: Server) -> None:
    form = {"name": "warehouse", "why": "a test"}
    for path, scope in (("/queues/pause", "read"), ("/queues/limit", "read"), ("/endpoints/rotate", "operate")):
        assert served.client(scope).post(path, data=form).status_code == 403, path  # type: ignore[arg-type]
    assert served.client("operate").post("/queues/pause", data=form).status_code == 303


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("/queues/pause", {"name": "warehouse"}),
        ("/queues/pause", {"why": "a test"}),
        ("/queues/limit", {"name": "warehouse", "why": "a test", "concurrency": "0"}),
        ("/queues/limit", {"name": "warehouse", "why": "a test", "rate": "fast"}),
        ("/endpoints/disable", {"url": "not a url", "why": "a test"}),
    ],
)
def test_wrong_forms_are_refused_and_change_nothing(
    served: Server, world: World, path: str, form: dict[str, str]
) -> None:
    answer = served.client("admin").post(path, data=form, headers={"accept": "text/html"})
    assert answer.status_code == 422
    assert world.store.limits.read().queues == ()


@needs_browser
def test_the_overview_shows_everything_and_leads_on(browser_page: Page, world: World) -> None:
    dead = fill(world)
    browser_page.goto("/")
    expect(browser_page.locator("#chart .legend")).to_contain_text("6 arrived")
    expect(browser_page.locator("#chart .legend")).to_contain_text("3 succeeded")
    expect(browser_page.locator("#durations")).to_contain_text("40 ms")
    expect(browser_page.locator("#dead")).to_contain_text("REFUSED")
    expect(browser_page.locator(f"#dead a[href='/deliveries/{dead}']").last).to_have_text(str(dead))
    expect(browser_page.locator("#queues")).to_contain_text("warehouse")
    expect(browser_page.locator("#destinations")).to_contain_text("60.0 %")
    expect(browser_page.locator("#workers")).to_contain_text(HOSTILE)
    expect(browser_page.locator("#alerts")).to_contain_text("1 dead letters wait for a person")
    browser_page.locator("#chart a", has_text="48 hours").click()
    expect(browser_page.locator("#chart a[aria-current]")).to_have_text("48 hours")


@needs_browser
def test_a_queue_is_paused_limited_and_resumed_in_place(browser_page: Page, world: World) -> None:
    fill(world)
    browser_page.goto("/queues")
    row = browser_page.locator("tr", has_text="warehouse")
    row.locator("summary", has_text="Pause").click()
    row.locator("form[action$='/queues/pause'] input[name=why]").fill("a deploy")
    row.locator("form[action$='/queues/pause'] button").click()
    expect(browser_page.locator(".flash")).to_have_text("warehouse is paused")
    expect(row.locator(".status")).to_have_text("paused")
    row.locator("summary", has_text="Limit").click()
    form = row.locator("form[action$='/queues/limit']")
    form.locator("input[name=concurrency]").fill("3")
    form.locator("input[name=why]").fill("gently")
    form.locator("button").click()
    expect(row).to_contain_text("3 at once")
    row.locator("summary", has_text="Resume").click()
    row.locator("form[action$='/queues/resume'] input[name=why]").fill("deployed")
    row.locator("form[action$='/queues/resume'] button").click()
    expect(browser_page.locator(".flash")).to_have_text("warehouse goes on")
    whys = [one.act.why for one in world.store.audit.page(target="queue:warehouse")]
    assert whys == ["deployed", "gently", "a deploy"]


@needs_browser
def test_an_open_form_is_not_taken_away_by_live_numbers(browser_page: Page, world: World) -> None:
    fill(world)
    browser_page.goto("/queues")
    row = browser_page.locator("tr", has_text="warehouse")
    row.locator("summary", has_text="Limit").click()
    field = row.locator("form[action$='/queues/limit'] input[name=why]")
    field.fill("half a sen")
    browser_page.evaluate(TICK)
    expect(field).to_have_value("half a sen")
    expect(field).to_be_focused()


@needs_browser
def test_endpoints_are_disabled_and_keys_rotated(browser_page: Page, world: World, box: App) -> None:
    fill(world)
    url_groups.put(box.store, "shops", [EndpointName(url="https://example.com/a")], Signed("ada", "a test"))
    browser_page.goto("/endpoints")
    expect(browser_page.locator("#endpoints")).to_contain_text("REFUSED")
    group = browser_page.locator("#groups tr", has_text="shops")
    group.locator("summary").click()
    group.locator("input[name=why]").fill("it is gone")
    group.locator("form button").click()
    expect(group.locator(".status")).to_have_text("disabled")
    browser_page.locator("summary", has_text="Rotate").click()
    browser_page.locator("form[action$='/endpoints/rotate'] input[name=why]").fill("a key leaked")
    browser_page.locator("form[action$='/endpoints/rotate'] button").click()
    expect(browser_page.locator("#signing-keys")).to_contain_text("QSTASH_CURRENT_SIGNING_KEY=sig_")


@needs_browser
def test_pages_fit_a_phone_in_every_language(browser_page: Page, world: World) -> None:
    fill(world)
    browser_page.set_viewport_size({"width": 360, "height": 700})
    for path in ("/", "/queues", "/endpoints"):
        for language in ("ja", "zh"):
            browser_page.goto(f"{path}?lang={language}")
            assert browser_page.evaluate("document.documentElement.scrollWidth") <= 360, (path, language)
