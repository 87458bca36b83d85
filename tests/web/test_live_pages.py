"""Live fetches: rendered once for all viewers where a page is the same for all, and not sent if it is unchanged."""

from __future__ import annotations

import asyncio
import threading

import pytest
from playwright.sync_api import Page, expect

from tests.support.serving import Server
from tests.web.browser import needs_browser
from tests.web.test_numbers import TICK
from todoku.app import App
from todoku.web.live_pages import KEPT, LivePage, LivePages, live_page
from todoku.web.site import PAGES

LIVE = {"accept": "text/html", "x-todoku-live": "1"}


class Pages:
    """Counts what is rendered; the clock is the test's."""

    def __init__(self) -> None:
        self.now, self.rendered = 0.0, 0
        self.pages = LivePages(monotonic=lambda: self.now)

    def render(self) -> LivePage:
        self.rendered += 1
        return live_page(f"page {self.rendered}")

    async def get(self, name: str = "overview", version: int = 0) -> bytes:
        return (await self.pages.get(name, version, self.render)).body


async def test_fetches_of_one_tick_share_one_rendering() -> None:
    pages = Pages()
    assert await asyncio.gather(*(pages.get() for _ in range(10))) == [b"page 1"] * 10
    pages.now += 0.9 * KEPT
    assert await pages.get() == b"page 1"
    pages.now += 0.2 * KEPT
    assert await pages.get() == b"page 2", "the next tick has new numbers"


async def test_each_view_has_its_own_rendering_and_an_act_ends_all() -> None:
    pages = Pages()
    assert await pages.get("English") == b"page 1"
    assert await pages.get("Japanese") == b"page 2"
    assert await pages.get("English") == b"page 1"
    assert await pages.get("English", version=1) == b"page 3"
    assert await pages.get("Japanese", version=1) == b"page 4"


async def test_a_viewer_who_leaves_does_not_end_the_rendering_of_the_others() -> None:
    pages, begun, gate = LivePages(), threading.Event(), threading.Event()

    def render() -> LivePage:
        begun.set()
        gate.wait(30)
        return live_page("whole")

    leaving = asyncio.create_task(pages.get("overview", 0, render))
    staying = asyncio.create_task(pages.get("overview", 0, render))
    await asyncio.to_thread(begun.wait, 30)
    leaving.cancel()
    gate.set()
    assert (await staying).body == b"whole"


async def test_a_failure_is_not_shown_to_the_next_viewer() -> None:
    pages = LivePages()

    def fail() -> LivePage:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await pages.get("overview", 0, fail)
    assert (await pages.get("overview", 0, lambda: live_page("there"))).body == b"there"


def test_viewers_of_all_roles_share_bytes_that_name_none_of_them(served: Server) -> None:
    named = served.token("admin", name="a-name-that-nobody-else-has")
    first = served.client().get("/", headers={**LIVE, "authorization": f"Bearer {named}"})
    pages = [first, *(served.client(scope).get("/", headers=LIVE) for scope in ("admin", "read"))]  # type: ignore[arg-type]
    assert 'class="viewer' in served.client("admin").get("/", headers={"accept": "text/html"}).text
    for page in pages:
        assert page.status_code == 200
        for region in ("numbers", "chart", "queues", "workers"):
            assert f'id="{region}" data-live' in page.text
        for private in ("a-name-that-nobody-else-has", "csrf", 'action="', 'class="viewer'):
            assert private not in page.text


def test_languages_and_views_do_not_share(served: Server) -> None:
    client = served.client("read")

    def heading(language: str) -> str:
        text = client.get("/", headers={**LIVE, "accept-language": language}).text
        return text.partition("<h1>")[2].partition("</h1>")[0]

    for _ in range(2):  # the second time all are there
        assert [heading(language) for language in ("en", "ja", "zh")] == ["Overview", "概要", "概览"]
    by_minute, by_hour = (client.get(path, headers=LIVE).text for path in ("/", "/?per=hour"))
    assert by_minute.partition('id="chart"')[2] != by_hour.partition('id="chart"')[2]


def test_what_is_shared_is_not_shown_to_those_who_may_not_see_it(served: Server) -> None:
    assert served.client("read").get("/", headers=LIVE).status_code == 200
    for token, status in (("wrong", 401), (served.token("publish", name="program"), 403)):
        refused = served.client().get("/", headers={**LIVE, "authorization": f"Bearer {token}"})
        assert refused.status_code == status
        assert 'id="numbers"' not in refused.text


def test_only_pages_without_forms_are_the_same_for_all() -> None:
    assert {page.path for page in PAGES if page.for_all} == {"/"}
    assert all(page.method == "GET" and page.access == "read" for page in PAGES if page.for_all)


def test_the_author_of_an_act_sees_it_at_once(served: Server) -> None:
    client = served.client("admin")
    assert "warehouse" not in client.get("/", headers=LIVE).text
    assert client.post("/queues/pause", data={"name": "warehouse", "why": "a test"}).status_code == 303
    assert "warehouse" in client.get("/", headers=LIVE).text


def test_a_page_that_has_not_changed_is_not_sent_again(served: Server, box: App) -> None:
    box.queues.pause("warehouse", by="ada", why="a test")
    client = served.client("admin")
    page = client.get("/queues", headers=LIVE)
    tag = page.headers["etag"]
    for known in (tag, f"W/{tag}"):
        same = client.get("/queues", headers={**LIVE, "if-none-match": known})
        assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
    assert client.get("/queues", headers={"accept": "text/html", "if-none-match": tag}).status_code == 200
    other = served.client("read").get("/queues", headers={**LIVE, "if-none-match": tag})
    assert other.status_code == 200, "a viewer without forms sees another page"
    assert 'action="/queues' not in other.text
    client.post("/queues/resume", data={"name": "warehouse", "why": "a test"})
    changed = client.get("/queues", headers={**LIVE, "if-none-match": tag})
    assert changed.status_code == 200
    assert changed.headers["etag"] != tag


@needs_browser
def test_an_open_page_asks_for_changes_only(browser_page: Page, served: Server, box: App) -> None:
    box.queues.pause("warehouse", by="ada", why="a test")
    browser_page.goto("/queues")
    statuses: list[int] = []
    browser_page.on("response", lambda answer: statuses.append(answer.status))
    for _ in range(10):
        browser_page.evaluate(TICK)
        if 304 in statuses:
            break
    assert 304 in statuses
    expect(browser_page.locator("#pulse")).to_have_text("live")
    served.client("admin").post("/queues/resume", data={"name": "warehouse", "why": "a test"})
    expect(browser_page.locator("tr", has_text="warehouse").locator(".status")).to_have_count(0)
