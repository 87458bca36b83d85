"""The page of a run of a workflow: its steps as a waterfall, and what an operator does with it."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from tests.support.world import World, aborted
from tests.web.browser import needs_browser
from tests.web.test_inspection import act
from todoku.core.decision import Settlement, park
from todoku.core.flow import CHANGED, RUN, StepRow

pytestmark = needs_browser

HOSTILE = "<img src=x onerror=alert(1)>"
UNDO = '{"function":"shop:refund","arguments":[]}'
CHARGED = StepRow("charge:1", 1, "charge", "step", "done", '{"order":7}', '{"paid":7}', undo=UNDO, took=2.0)
ASKED = StepRow("wait:1", 2, "wait", "wait", "open", '"approval"', awaits="approval")
FAILED = StepRow("ship:1", 2, "ship", "step", "fatal", error=HOSTILE, attempts=3, took=1.0)


def run(world: World, step: StepRow, how: Settlement) -> str:
    """A run with two steps. Returns the path of its page."""
    (message,) = world.publish(topic="fulfil", to=["fulfil"], headers={RUN: "auto"})
    (claim,) = world.claim(world.worker(lease=600), destinations=["fulfil"])
    world.store.runs.store_steps([(claim, CHARGED), (claim, step)])
    world.settle([claim], how)
    return f"/messages/{message.id}"


def audited(world: World) -> list[tuple[str, str]]:
    acts = [row.act for row in world.store.audit.page() if row.act.target.startswith("delivery:")]
    return [(act.action, act.why) for act in acts[::-1]]


def test_a_run_shows_what_it_waits_for_and_gets_a_signal(browser_page: Page, world: World) -> None:
    browser_page.goto(run(world, ASKED, park(3600)))
    steps = browser_page.locator("#steps tbody tr")
    expect(steps.nth(0)).to_contain_text("charge")
    expect(steps.nth(1)).to_contain_text("approval")
    expect(steps.locator("svg.fall")).to_have_count(2)
    expect(browser_page.locator(".because")).to_contain_text("it is waiting for the signal approval")
    act(browser_page, "Send a signal", "she said so")
    expect(browser_page.locator(".flash")).to_have_text("The signal approval was sent.")
    assert audited(world) == [("signal approval", "she said so")]


def test_a_dead_run_is_rewound_to_a_step(browser_page: Page, world: World) -> None:
    browser_page.goto(run(world, FAILED, aborted("STEP_FAILED")))
    assert browser_page.locator("main img").count() == 0
    act(browser_page, "Run again from a step", "mended")
    expect(browser_page.locator(".flash")).to_have_text("Steps that run again: charge, ship")
    expect(browser_page.locator("#steps")).to_contain_text("taken back")
    assert audited(world) == [("rewind to 1", "mended"), ("replay", "mended")]


def test_a_dead_run_is_undone(browser_page: Page, world: World) -> None:
    browser_page.goto(run(world, FAILED, aborted("STEP_FAILED")))
    act(browser_page, "Undo its steps", "too late")
    expect(browser_page.locator(".flash")).to_have_text("Steps that are undone: charge")
    expect(browser_page.locator("#steps")).to_contain_text("Its steps are being undone.")
    expect(browser_page.locator("summary", has_text="Undo its steps")).to_have_count(0)
    assert audited(world) == [("undo", "too late")]


def test_a_run_that_died_before_its_first_step_is_not_offered_steps(browser_page: Page, world: World) -> None:
    (message,) = world.publish(topic="fulfil", to=["fulfil"], headers={RUN: "auto"})
    (claim,) = world.claim(world.worker(lease=600), destinations=["fulfil"])
    world.settle([claim], aborted("INVALID_STEP"))
    browser_page.goto(f"/messages/{message.id}")
    expect(browser_page.locator("#steps")).to_be_visible()
    expect(browser_page.locator("summary", has_text="Run again from a step")).to_have_count(0)


def test_R1_changed_steps_are_accepted(browser_page: Page, world: World) -> None:
    """What `todoku flow rewind --accept` does: the step runs with the new argument, and the others stay."""
    left_over = StepRow(CHANGED, 2, "changed", "value", "done", result='["charge:1"]')
    browser_page.goto(run(world, left_over, aborted("STEP_CHANGED")))
    expect(browser_page.locator("select[name=to] option").first).to_have_text("only those that have changed")
    act(browser_page, "Run again from a step", "the price is right now")
    expect(browser_page.locator(".flash")).to_contain_text("Steps that run again: ")
    assert [action for action, _ in audited(world)] == ["rewind to accept what has changed", "replay"]
