"""`make screenshots`: pictures of the dashboard with the demonstration's data, for the README and the documentation."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Final

import msgspec
from playwright.sync_api import Browser, Page

from tests.web.browser import opened_page, running_browser
from tests.web.first_click import demonstration

IMAGES: Final = Path(__file__).resolve().parents[2] / "docs" / "images"
LARGEST: Final = 120_000
"""Bytes of one picture."""

_MESSAGES: Final = 20
"""Seconds in which the demonstration fills its pages."""


_WITHOUT_PATHS: Final = """(home) => {
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) walk.currentNode.data = walk.currentNode.data.replaceAll(home, "/srv/shop");
}"""
"""Where the clone is on this machine is nothing for a picture."""


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """A picture: of which page, in which language and theme, how large."""

    name: str
    path: str
    language: str = "en-US"
    theme: str = "light"
    width: int = 1200
    height: int = 760
    part: str | None = None
    """Only this part of the page."""


PICTURES: Final = (
    Picture(name="overview", path="/"),
    Picture(name="overview-dark", path="/", theme="dark"),
    Picture(name="message", path="dead letter"),
    Picture(name="traceback", path="dead letter", part="#attempts"),
    Picture(name="dead-letters-ja", path="/dead-letters", language="ja-JP", height=540),
    Picture(name="phone-zh", path="dead letter", language="zh-CN", theme="dark", width=390, height=780),
)


def take(browser: Browser, url: str, picture: Picture, into: Path) -> int:
    """Takes a picture. Returns the size of its file."""
    size = {"width": picture.width, "height": picture.height}
    options = {"locale": picture.language, "color_scheme": picture.theme, "viewport": size, "reduced_motion": "reduce"}
    with opened_page(browser, url, **options) as (page, _):
        page.goto(_dead_letter(page) if picture.path == "dead letter" else picture.path)
        page.wait_for_load_state("load")
        page.evaluate(_WITHOUT_PATHS, str(Path(__file__).resolve().parents[2]))
        file = into / f"{picture.name}.png"
        target = page if picture.part is None else page.locator(picture.part)
        target.screenshot(path=file, animations="disabled")
    return file.stat().st_size


def _dead_letter(page: Page) -> str:
    """The path of the demonstration's dead letter."""
    page.goto("/dead-letters")
    return str(page.locator('main a[href*="/deliveries/"]').first.get_attribute("href"))


def main() -> int:
    """Takes all pictures. Returns 1 if one is too large."""
    IMAGES.mkdir(exist_ok=True)
    too_large = 0
    with tempfile.TemporaryDirectory() as home, demonstration(Path(home)) as url, running_browser() as browser:
        with opened_page(browser, url) as (page, _):
            page.goto("/dead-letters")
            page.wait_for_timeout(_MESSAGES * 1000)
        for picture in PICTURES:
            size = take(browser, url, picture, IMAGES)
            too_large += size > LARGEST
            print(f"{picture.name}.png: {size / 1000:.0f} kB")
    return int(too_large > 0)


if __name__ == "__main__":
    sys.exit(main())
