"""The frame of every page: languages, themes, live regions, errors, and what it refuses."""

from __future__ import annotations

import gzip
import re
import tomllib
import zlib
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.support.serving import Server
from tests.support.world import World
from tests.web.browser import Complaints, needs_browser
from todoku.web.assets import STATIC
from todoku.web.language import LOCALE, choose_language, translate
from todoku.web.rendering import TEMPLATES
from todoku.web.site import PAGES
from todoku.web.view import own_path

WEB = STATIC.parent


def translatable() -> set[str]:
    """Every sentence that a template translates."""
    found = set()
    for file in TEMPLATES.glob("*.html"):
        found |= {a or b for a, b in re.findall(r"""\b_\(\s*(?:"([^"]+)"|'([^']+)')""", file.read_text("utf-8"))}
    return found


@pytest.mark.parametrize("language", ["ja", "zh"])
def test_every_sentence_of_a_template_is_translated(language: str) -> None:
    missing = sorted(
        text for text in translatable() if translate(language, text) == text and re.search("[a-z]{3}", text)
    )
    assert not missing


def test_a_translation_has_the_places_of_its_sentence_and_stands_once() -> None:
    seen: dict[str, Path] = {}
    for file in sorted(LOCALE.glob("*.toml")):
        for text, (japanese, chinese) in tomllib.loads(file.read_text("utf-8")).items():
            assert text not in seen, f"{text!r} is in {seen[text].name} and {file.name}"
            seen[text] = file
            for translated in (japanese, chinese):
                assert sorted(re.findall(r"\{\w+\}", text)) == sorted(re.findall(r"\{\w+\}", translated)), text


def test_the_language_is_the_cookies_else_the_browsers() -> None:
    assert choose_language("ja", "zh-CN,en") == "ja"
    assert choose_language(None, "fr, zh-CN;q=0.8, ja;q=0.9") == "ja"
    assert choose_language("xx", "") == "en"
    assert choose_language(None, "de;q=x") == "en"


@pytest.mark.parametrize(
    "path", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:1", "x", "/a\nb"]
)
def test_a_form_leads_back_to_the_dashboard_only(path: str) -> None:
    assert own_path(path) is None
    assert own_path("/deliveries?q=status:failed") == "/deliveries?q=status:failed"


def test_everything_in_the_wheel_stays_within_its_budget() -> None:
    """150 kB in the wheel, which is a ZIP; 205 kB unpacked; 60 kB compressed at the first load."""
    files = [file for file in WEB.rglob("*") if file.is_file() and file.suffix not in (".py", ".pyc")]
    assert sum(len(zlib.compress(file.read_bytes())) for file in files) <= 150_000
    assert sum(file.stat().st_size for file in files) <= 205_000
    loaded = [file for file in STATIC.iterdir() if file.suffix in (".js", ".css", ".svg")]
    assert sum(len(gzip.compress(file.read_bytes())) for file in loaded) <= 50_000


def test_every_page_declares_what_it_needs_and_every_act_more_than_reading() -> None:
    for page in PAGES:
        if page.method == "GET":
            assert page.access in ("read", "operate", "admin", "open"), page.path
        else:
            assert page.access != "read", page.path
            assert page.access != "open" or page.path.startswith("/sign-"), page.path


def test_no_template_has_an_inline_script_or_style() -> None:
    for file in TEMPLATES.glob("*.html"):
        text = file.read_text("utf-8")
        assert not re.search(r"<script(?![^>]*\bsrc=)|\sstyle=|\son[a-z]+=|javascript:|hx-on|\|\s*safe\b", text), (
            file.name
        )


def test_pages_are_json_too_and_errors_are_pages(served: Server) -> None:
    client = served.client()
    answer = client.get("/", headers={"accept": "application/json"})
    assert answer.status_code == 200
    assert answer.json().keys() == served.ask("GET", "/overview").keys()
    missing = client.get("/static/none.js")
    assert missing.status_code == 404


def test_another_host_name_or_a_proxy_is_refused_without_a_token(served: Server) -> None:
    """DNS rebinding."""
    client = served.client()
    for headers in ({"host": "evil.example"}, {"x-forwarded-for": "1.2.3.4"}):
        assert client.get("/", headers=headers).status_code == 403


@needs_browser
def test_the_page_speaks_three_languages_and_remembers_the_choice(browser_page: Page) -> None:
    browser_page.goto("/")
    expect(browser_page.locator("html")).to_have_attribute("lang", "en")
    browser_page.goto("/?lang=ja")
    expect(browser_page.locator("h1")).to_have_text("概要")
    browser_page.goto("/")
    expect(browser_page.locator("html")).to_have_attribute("lang", "ja")
    browser_page.goto("/?lang=zh")
    expect(browser_page.locator("h1")).to_have_text("概览")


@needs_browser
def test_live_numbers_change_without_loading_the_page_again(browser_page: Page, world: World) -> None:
    browser_page.goto("/")
    browser_page.evaluate("window.kept = 1")
    expect(browser_page.locator("#pulse")).to_have_text("live")
    world.publish(3)
    expect(browser_page.locator(".tile.pending b").first).to_have_text("3")
    assert browser_page.evaluate("window.kept") == 1


@needs_browser
def test_the_theme_is_kept(browser_page: Page) -> None:
    browser_page.goto("/")
    browser_page.locator("#theme").click()
    chosen = browser_page.evaluate("document.documentElement.dataset.theme")
    browser_page.reload()
    assert browser_page.evaluate("document.documentElement.dataset.theme") == chosen


@needs_browser
def test_a_page_that_does_not_exist_says_so(browser_page: Page, complaints: Complaints) -> None:
    complaints.expected.add("404")
    answer = browser_page.goto("/nowhere")
    assert answer is not None
    assert answer.status == 404
