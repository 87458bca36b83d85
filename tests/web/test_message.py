"""A message's page: why, timeline, attempts, payload, acts; edit and run; a new message; opening what is masked."""

from __future__ import annotations

from typing import Any
from uuid import UUID

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
    acts = [each.act for each in reversed(box.store.audit.page())]
    return [(act.action, act.why) for act in acts if not act.target.startswith("token:")]


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


def test_a_message_without_javascript_and_as_json(served: Server, box: App) -> None:
    number = dead(box)
    client = served.client("read")
    page = client.get(f"/deliveries/{number}", headers={"accept": "text/html"})
    assert page.status_code == 200
    assert "todoku_box.jobs[" in page.text
    assert "<img" not in page.text
    assert "\u202e" not in page.text
    assert "\x1b" not in page.text
    assert "hunter2" not in page.text
    assert 'action="/deliveries/' not in page.text, "a viewer has no buttons"
    shown = client.get(f"/deliveries/{number}", headers={"accept": "application/json"}).json()
    assert shown["chosen"]["delivery"]["id"] == number
    assert [span["kind"] for span in shown["timeline"]["spans"]] == ["published", "queue", "attempt", "dead"]
    by_id = client.get(f"/messages/{shown['message']['id']}", headers={"accept": "application/json"}).json()
    assert by_id["chosen"]["delivery"]["id"] == number
    for path in ("/messages/nonsense", "/messages/00000000-0000-0000-0000-000000000000", "/deliveries/999999"):
        assert client.get(path, headers={"accept": "text/html"}).status_code == 404


@pytest.mark.parametrize("act", ["replay", "cancel", "delete", "edit"])
def test_a_viewer_may_look_but_not_act(served: Server, box: App, act: str) -> None:
    number = dead(box)
    assert served.client("read").post(f"/deliveries/{number}/{act}", data={"why": "x"}).status_code == 403
    assert served.client("read").get("/new").status_code == 403
    assert (
        served.client("operate").post(f"/messages/{message_of(box, number)}/open", data={"why": "x"}).status_code == 403
    )
    assert audit(box) == []


def message_of(box: App, number: int) -> Any:
    return box.deliveries.get(number).message_id


def test_each_delivery_of_a_fan_out_has_its_tab(browser_page: Page, box: App) -> None:
    @box.on("order.created", max_attempts=1)
    def mail(event: dict[str, int]) -> None:
        raise ValueError("no mail")

    @box.on("order.created")
    def points(event: dict[str, int]) -> None: ...

    message = box.publish("order.created", {"n": 1}, tx=None)
    box.drain()
    browser_page.goto(f"/messages/{message.id}")
    expect(browser_page.locator("h1")).to_contain_text("mail")
    browser_page.locator(".tabs a", has_text="points").click()
    expect(browser_page.locator("h1")).to_contain_text("points")
    expect(browser_page.locator("#state .status")).to_have_text("succeeded")
    expect(browser_page.locator("summary", has_text="Run again as new")).to_be_visible()


def test_a_success_runs_again_as_a_new_message(browser_page: Page, box: App) -> None:
    handle = box.jobs["charge"].enqueue(amount=5, password="x")
    box.drain()
    browser_page.goto(f"/messages/{handle.id}")
    expect(browser_page.locator("#attempts pre")).to_contain_text('"charged": 5')
    browser_page.keyboard.press("r")
    browser_page.locator("details.act[open] input[name=why]").fill("once more")
    browser_page.locator("details.act[open] button").click()
    expect(browser_page.locator(".flash")).to_contain_text("It runs again as this new message.")
    assert str(handle.id) not in browser_page.url
    expect(browser_page.locator(".label")).to_contain_text(f"todoku.again_of:{handle.id}")
    browser_page.locator("dl.facts a", has_text=str(handle.id)).first.click()
    expect(browser_page.locator("#timeline")).to_contain_text("run again as")


def test_a_waiting_delivery_is_cancelled_then_deleted(browser_page: Page, box: App) -> None:
    handle = box.jobs["charge"].using(delay=3600).enqueue(amount=5, password="x")
    number = handle.delivery().id
    browser_page.goto(f"/deliveries/{number}")
    expect(browser_page.locator("#timeline")).to_contain_text("waits for its time")
    for label, after in (("Cancel", "is cancelled"), ("Delete", "was deleted")):
        browser_page.locator("details.act > summary", has_text=label).click()
        browser_page.locator("details.act[open] input[name=why]").fill("not wanted")
        browser_page.locator("details.act[open] button").click()
        expect(browser_page.locator(".flash")).to_contain_text(f"Delivery {number} {after}")
    expect(browser_page.locator("#state")).to_contain_text("no delivery any more")
    assert [action for action, _ in audit(box)] == ["cancel", "purge", "purge"]


def test_editing_shows_the_difference_then_runs_it(browser_page: Page, box: App, complaints: Any) -> None:
    complaints.expected.add("422")
    number = dead(box, note="tip\u0085\u202e")
    browser_page.goto(f"/deliveries/{number}")
    browser_page.locator("a", has_text="Edit and run").click()
    editor = browser_page.locator("textarea[name=payload]")
    payload = msgspec.json.decode(editor.input_value())
    assert payload == {"amount": -5, "password": "***", "note": "tip\u0085\u202e"}
    editor.fill(msgspec.json.encode(payload | {"amount": "five"}).decode())
    browser_page.locator("button[value=preview]").click()
    expect(browser_page.locator("#wrong")).to_contain_text("amount: Expected `int`, got `str`")
    editor.fill("{")
    browser_page.locator("button[value=preview]").click()
    expect(browser_page.locator("#wrong")).to_contain_text("this is not JSON")
    editor.fill(msgspec.json.encode(payload | {"amount": 5}).decode())
    browser_page.locator("button[value=preview]").click()
    expect(browser_page.locator(".diff del").last).to_contain_text('"amount": -5')
    expect(browser_page.locator(".diff ins").last).to_contain_text('"amount": 5')
    browser_page.locator("input[name=purge]").check()
    browser_page.locator("input[name=why]").fill("the sign was wrong")
    browser_page.locator("button[value=run]").click()
    expect(browser_page.locator(".flash")).to_contain_text("It runs, edited, as this new message.")
    box.drain()
    new = browser_page.url.rsplit("/", 1)[1]
    (row,) = box.deliveries.find(message_id=UUID(new)).items
    assert row.status == "succeeded"
    opened = box.store.messages.story(row.message_id)  # type: ignore[arg-type]
    assert opened is not None
    assert msgspec.json.decode(opened.message.payload or "") == payload | {"amount": 5, "password": "hunter2"}
    assert box.store.deliveries.get(number) is None


def test_a_new_job_from_its_own_form(browser_page: Page, box: App, complaints: Any) -> None:
    complaints.expected.add("422")
    browser_page.goto("/new")
    expect(browser_page.locator("main")).to_contain_text("Charges a card.")
    browser_page.locator("input[name='arg.amount']").fill("five")
    browser_page.locator("form.form input[name=why]").fill("a customer rang")
    browser_page.locator("button", has_text="Publish").click()
    expect(browser_page.locator("#wrong-amount")).to_contain_text("Expected `int`, got `str`")
    expect(browser_page.locator("#wrong-password")).to_contain_text("is required")
    browser_page.locator("input[name='arg.amount']").fill("7")
    browser_page.locator("input[name='arg.password']").fill("***")
    browser_page.locator("summary", has_text="Options").click()
    browser_page.locator("input[name=key]").fill("k")
    browser_page.locator("input[name=delay]").fill("60")
    browser_page.locator("button", has_text="Publish").click()
    expect(browser_page.locator(".flash")).to_contain_text("It is published.")
    (row,) = box.deliveries.find(status="pending").items
    assert (row.destination, row.key) == ("charge", "k")
    assert audit(box) == [("publish", "a customer rang")]


def test_a_daemon_without_an_app_publishes_to_a_destination(browser_page: Page, box: App, complaints: Any) -> None:
    complaints.expected.add("422")
    box.jobs._jobs.clear()
    browser_page.goto("/new")
    expect(browser_page.locator(".nothing")).to_contain_text("knows no jobs")
    browser_page.locator("input[name=topic]").fill("order.created")
    browser_page.locator("textarea[name=payload]").fill("{nonsense")
    browser_page.locator("form.form input[name=why]").fill("a test")
    browser_page.locator("button", has_text="Publish").click()
    expect(browser_page.locator("#wrong-payload")).to_contain_text("this is not JSON")
    browser_page.locator("textarea[name=payload]").fill('{"n": 1}')
    browser_page.locator("button", has_text="Publish").click()
    expect(browser_page.locator(".problem")).to_contain_text("no route takes 'order.created'")
    browser_page.locator("input[name=to]").fill("warehouse")
    browser_page.locator("button", has_text="Publish").click()
    expect(browser_page.locator("h1")).to_contain_text("order.created → warehouse")


def test_what_is_masked_opens_with_a_reason(browser_page: Page, box: App) -> None:
    number = dead(box)
    browser_page.goto(f"/deliveries/{number}")
    browser_page.locator("summary", has_text="Open what is masked").click()
    browser_page.locator("details.act[open] input[name=why]").fill("case 12")
    browser_page.locator("details.act[open] button").click()
    expect(browser_page.locator("#opened-payload")).to_contain_text('"password": "hunter2"')
    assert browser_page.locator("main img").count() == 0
    assert audit(box) == [("open", "case 12")]
    browser_page.goto(f"/deliveries/{number}")
    assert "hunter2" not in browser_page.content()
    expect(browser_page.locator("#timeline")).to_contain_text("case 12")


def test_why_is_said_in_the_language_of_the_viewer(browser_page: Page, box: App) -> None:
    number = dead(box)
    for language, text in (("ja", "からデッドレター"), ("zh", "起为死信"), ("en", "dead letter since")):
        browser_page.goto(f"/deliveries/{number}?lang={language}")
        expect(browser_page.locator(".because")).to_contain_text(text)


def test_it_fits_its_window(browser_page: Page, box: App) -> None:
    number = dead(box)
    for path in (f"/deliveries/{number}", f"/deliveries/{number}/edit", "/new"):
        browser_page.goto(path)
        for width in (360, 1600):
            browser_page.set_viewport_size({"width": width, "height": 800})
            wide = browser_page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, (path, width)


def test_a_text_is_copied(browser_page: Page, box: App) -> None:
    browser_page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    number = dead(box)
    browser_page.goto(f"/deliveries/{number}")
    browser_page.locator("summary", has_text="CLI").click()
    browser_page.locator("details.snippet[open] button").click()
    expect(browser_page.locator("details.snippet[open] button")).to_have_text("✓")
    assert browser_page.evaluate("navigator.clipboard.readText()").startswith(f"todoku show {number}")
