"""The pages of captures and projections."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from tests.support.serving import Server
from tests.support.world import World
from tests.web.browser import needs_browser
from tests.web.test_inspection import act
from todoku.core.capture import table_rule
from todoku.store.capture_portions import Fence, Portion, TableProgress


def declare(world: World) -> Fence:
    """A capture of two tables, in the middle of the snapshot of one."""
    rules = [table_rule("orders", "orders.{op}", "id"), table_rule("lines", "lines", "id")]
    world.store.captures.declare("main", rules, snapshot=True)
    row = world.store.captures.take("main", world.worker(name="reader", lease=600))
    assert row is not None
    page = TableProgress(table="public.orders", position="[1]", copied=700, expected=1000, phase="reading")
    world.store.captures.store(row.fence, Portion(lsn=255, page=page), notify=False)
    world.store.captures.measure(row.fence, behind=1536, retained=2 << 20)
    world.store.captures.set_state("main", "snapshot", fence=row.fence)
    return row.fence


def audited(world: World) -> list[tuple[str, str, str]]:
    found = [(row.act.action, row.act.target, row.act.why) for row in world.store.audit.page()]
    return [act for act in found if act[1].startswith(("capture:", "projection:"))]


@needs_browser
def test_a_capture_is_shown_and_read_anew(browser_page: Page, world: World) -> None:
    fence = declare(world)
    browser_page.goto("/captures")
    card = browser_page.locator("article")
    expect(card.locator(".status")).to_have_text("snapshot")
    for text in ("reader", "1.5 KiB", "2.0 MiB", "0/FF", "700 / 1,000", "reads rows", "orders.{op}"):
        expect(card).to_contain_text(text)
    card.locator("summary").click()
    card.locator("select").select_option("public.lines")
    card.get_by_label("Why").fill("a bug")
    card.locator("form button").click()
    expect(browser_page.locator(".flash")).to_have_text("A worker will read public.lines")
    world.store.captures.set_state("main", "stopped", reason="SLOT_LOST", why="the log is gone", fence=None)
    browser_page.goto("/captures")
    expect(card.locator(".status")).to_have_text("stopped")
    expect(card.locator("p.problem")).to_have_text("SLOT_LOST the log is gone")
    act(browser_page, "Read its rows anew", "it was lost")
    expect(browser_page.locator(".flash")).to_have_text("A worker will read public.lines, public.orders")
    expect(card.locator(".status")).to_have_text("starting")
    assert world.store.captures.store(fence, Portion(lsn=999), notify=False) == "lost"
    assert [one for one in audited(world)[::-1] if one[0] != "stop"] == [
        ("snapshot of public.lines", "capture:main", "a bug"), ("snapshot", "capture:main", "it was lost")
    ]  # fmt: skip
    browser_page.goto("/captures?lang=ja")
    expect(card).to_contain_text("遅れ")


@needs_browser
def test_a_projection_is_shown_and_its_readers_are_turned_on_and_off(browser_page: Page, world: World) -> None:
    world.store.projections.declare("documents", "search", "docs-1")
    world.publish(3, to=["documents"], ordered=True, key="k")
    browser_page.goto("/projections")
    card = browser_page.locator("article")
    expect(card.locator(".status")).to_have_text("running")
    for text in ("docs-1", "readers see it", "search"):
        expect(card).to_contain_text(text)
    act(browser_page, "Turn readers on", "it is complete")
    expect(browser_page.locator(".flash")).to_have_text("documents is read")
    act(browser_page, "Turn readers off", "it is wrong")
    expect(browser_page.locator(".flash")).to_have_text("documents is not read")
    assert audited(world) == [
        ("readers off", "projection:documents", "it is wrong"), ("readers on", "projection:documents", "it is complete")
    ]  # fmt: skip
    world.store.projections.stop("documents", "its index is ahead")
    browser_page.goto("/projections")
    expect(card.locator("p.problem")).to_have_text("its index is ahead")


@pytest.mark.parametrize(
    ("path", "form"),
    [
        ("/captures/snapshot", {"name": "main"}),
        ("/captures/snapshot", {"why": "a test"}),
        ("/captures/snapshot", {"name": "main", "why": "a test", "table": "nothing"}),
        ("/projections/readers", {"name": "documents", "why": "a test"}),
        ("/projections/readers", {"name": "documents", "why": "a test", "on": "maybe"}),
        ("/projections/readers", {"on": "true", "why": "a test"}),
    ],
)
def test_a_form_that_lacks_something_changes_nothing(
    served: Server, world: World, path: str, form: dict[str, str]
) -> None:
    declare(world)
    world.store.projections.declare("documents", "search", "docs-1")
    answer = served.client("operate").post(path, data=form, headers={"accept": "text/html"})
    assert answer.status_code == 422
    assert audited(world) == []


@pytest.mark.parametrize("path", ["/captures/snapshot", "/projections/readers"])
def test_an_act_needs_a_token_that_may_operate(served: Server, path: str) -> None:
    form = {"name": "main", "why": "a test", "on": "true"}
    assert served.client("read").post(path, data=form).status_code == 403


def test_who_may_only_read_sees_no_act(served: Server, world: World) -> None:
    declare(world)
    world.store.projections.declare("documents", "search", "docs-1")
    for path in ("/captures", "/projections"):
        page = served.client("read").get(path, headers={"accept": "text/html"})
        assert (page.status_code, "<article" in page.text, 'details class="act"' in page.text) == (200, True, False)
        page = served.client("operate").get(path, headers={"accept": "text/html"})
        assert 'details class="act"' in page.text
