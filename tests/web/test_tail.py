"""The live tail: it shows what happens, holds back while the viewer reads, and counts what it drops."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from itertools import islice
from uuid import UUID

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.engine.test_wakeup import held_back
from tests.support.serving import Server
from tests.support.world import World, aborted
from tests.web.browser import needs_browser
from todoku.core.errors import InvalidAct
from todoku.engine.event_tail import EventTail, event_filter
from todoku.store.attempts import Event

HOSTILE = '<img src=x onerror="document.title=1"><script>1</script>\u202e'


def event(
    what: str = "published", *, delivery: int | None = None, message: UUID | None = None, told: str | None = None
) -> Event:
    return Event(datetime.now(UTC), what, delivery, message, "order.created", "bank, shop", told, "1")


ID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")


@pytest.mark.parametrize(
    ("text", "one", "matches"),
    [
        ("", event(), True),
        ("topic:order.*", event(), True),
        ("topic:mail", event(), False),
        ("destination:shop", event(), True),
        ("destination:sho", event(), False),
        ("status:pending", event(), True),
        ("status:failed", event("failed"), True),
        ("status:failed", event(), False),
        ("reason:TIMEOUT", event("failed", told="TIMEOUT: slow"), True),
        ("reason:TIME", event("failed", told="TIMEOUT: slow"), False),
        ("error:SLOW", event("failed", told="TIMEOUT: slow"), True),
        ("key:k1", event(told="k1"), True),
        ("slow", event("failed", told="TIMEOUT: slow"), True),
        ("7", event("failed", delivery=7), True),
        ("7", event("failed", delivery=8), False),
        (str(ID), event(message=ID), True),
        ("topic:order.* status:failed", event(), False),
    ],
)
def test_events_are_filtered_by_the_words_of_a_search(text: str, one: Event, matches: bool) -> None:
    assert event_filter(text)(one) is matches


@pytest.mark.parametrize("text", ["payload.a:1", "label:x", "since:1h", "colour:red"])
def test_words_that_events_do_not_have_are_refused(text: str) -> None:
    with pytest.raises(InvalidAct) as refused:
        event_filter(text)
    assert refused.value.hint


def test_each_event_is_told_once(world: World) -> None:
    tail = EventTail(world.store)
    world.publish(2)
    assert [one.what for one in tail.poll().events] == ["published", "published"]
    world.settle(world.claim(world.worker(), 1))
    assert [one.what for one in tail.poll().events] == ["succeeded"]
    assert tail.poll().events == []


def test_more_than_one_poll_reads_is_said(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("todoku.engine.event_tail.MOST", 3)
    tail = EventTail(world.store)
    world.publish(5)
    polled = tail.poll()
    assert (len(polled.events), polled.cut) == (3, True)
    world.publish(1)
    assert not tail.poll().cut


def test_the_page_begins_with_the_past_and_works_without_a_script(served: Server, world: World) -> None:
    world.publish(1, topic="order.created")
    world.publish(1, topic="mail")
    page = httpx.get(f"{served.url}/tail?q=topic:mail", headers={"accept": "text/html"}, timeout=60)
    assert '<td class="break">mail</td>' in page.text
    assert "order.created</td>" not in page.text
    refused = httpx.get(f"{served.url}/tail?q=label:x", headers={"accept": "text/html"}, timeout=60)
    assert (refused.status_code, "events have no" in refused.text) == (422, True)
    assert httpx.get(f"{served.url}/tail/events?q=label:x", timeout=60).status_code == 422


def test_a_publish_that_commits_after_the_page_began_is_shown(served: Server, world: World) -> None:
    """Its time is that of its statement, which is before the first poll, and its row is seen only after the commit."""
    world.publish(1, topic="early")
    late = threading.Thread(target=lambda: world.publish(1, topic="late"))
    address = f"{served.url}/tail/events?since={world.store.ping()}"
    with held_back("publish.before_commit", late.start) as go, httpx.stream("GET", address, timeout=60) as stream:
        lines = stream.iter_lines()
        assert any('"early"' in line for line in islice(lines, 9))  # what was there when the page began has been read
        go.set()
        assert any('"late"' in line for line in islice(lines, 9))
    late.join(60)


@needs_browser
def test_events_appear_on_top_and_wait_while_the_pointer_is_in_the_list(browser_page: Page, world: World) -> None:
    world.publish(1, topic="first")
    browser_page.goto("/tail")
    rows = browser_page.locator("#tail tbody tr")
    expect(rows).to_have_count(1)
    world.publish(1, topic="second")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("second")
    rows.first.hover()
    world.publish(3, topic="third")
    expect(browser_page.locator("#held")).to_contain_text("3 held back")
    expect(rows).to_have_count(2)
    browser_page.locator("h1").hover()
    expect(rows).to_have_count(5)
    expect(browser_page.locator("#held")).to_have_text("")


@needs_browser
def test_the_button_and_the_focus_hold_it_too(browser_page: Page, world: World) -> None:
    world.publish(1)
    world.settle(world.claim(world.worker()), aborted("REFUSED"))
    browser_page.goto("/tail")
    rows = browser_page.locator("#tail tbody tr")
    expect(rows).to_have_count(2)
    browser_page.get_by_role("button", name="Pause").click()
    world.publish(1, topic=f"held.{1}")
    expect(browser_page.locator("#held")).to_contain_text("1 held back")
    expect(rows).to_have_count(2)
    browser_page.get_by_role("button", name="Go on").click()
    expect(rows).to_have_count(3)
    browser_page.locator("#tail a").first.focus()
    world.publish(1)
    expect(browser_page.locator("#held")).to_contain_text("1 held back")
    browser_page.get_by_role("button", name="Pause").focus()
    expect(rows).to_have_count(4)


@needs_browser
def test_what_it_cannot_hold_is_counted(browser_page: Page, world: World) -> None:
    browser_page.goto("/tail")
    browser_page.get_by_role("button", name="Pause").click()
    for told in ("400 held back", "800 held back", "1,000 held back · 200 dropped"):
        world.publish(400)
        expect(browser_page.locator("#held")).to_have_text(told)


@needs_browser
def test_hostile_events_are_inert(browser_page: Page, world: World) -> None:
    browser_page.goto("/tail")
    world.publish(1, key=HOSTILE)
    expect(browser_page.locator("#tail tbody")).to_contain_text("<script>")
    assert browser_page.locator("#tail img, #tail script").count() == 0
    assert "\u202e" not in browser_page.locator("#tail").inner_text()
