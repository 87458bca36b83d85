"""`make show-web`: a newcomer's first minute, driven in a browser. Clicks and seconds are counted and printed.

`todoku up` starts in a new directory. Once its page is up: find the failed message, see the line of code that failed,
run it again, and see that it succeeded.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from playwright.sync_api import Locator, Page, expect

from tests.support.ports import free_port
from tests.web.browser import opened_page, running_browser

MOST_CLICKS = 4
MOST_SECONDS = 20.0
_PATIENCE = 120.0


class Walk(msgspec.Struct, frozen=True):
    """How the walk went: clicks, seconds after the page was up, and the line of code that was seen."""

    clicks: int
    seconds: float
    line: str


@contextmanager
def demonstration(home: Path) -> Iterator[str]:
    """`todoku up` in an empty directory, as `make up` starts it. Yields its address."""
    port = free_port()
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("TODOKU_", "DATABASE_URL"))}
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "todoku", "up", "--open", "--demo", "--port", str(port)],
            cwd=home, env=environ | {"TODOKU_BY": "ada"}, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_until_up(process, url, home / "log")
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def _wait_until_up(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            pass
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.02)


class Clicks:
    """Clicks on a page, counted."""

    def __init__(self) -> None:
        self.number = 0

    def on(self, target: Locator) -> None:
        self.number += 1
        target.click(timeout=_PATIENCE * 1000)


def walk(page: Page) -> Walk:
    """Walks from the first page to the success of the message that failed."""
    clicks = Clicks()
    page.goto("/")
    began = time.monotonic()
    clicks.on(page.locator('a.tile.aborted[href*="/deliveries/"]'))
    expect(page.locator("main")).to_contain_text("in take", timeout=_PATIENCE * 1000)
    found = re.search(r"File \"[^\"]*demo_shop\.py\", line \d+, in take", page.locator("main").inner_text())
    assert found is not None, "the traceback names the line of code"
    clicks.on(page.locator('[data-shortcut="r"]').first)
    page.locator("input[name=why]:visible").fill("the till is open now")
    clicks.on(page.locator("form:has(input[name=why]:visible) button").first)
    expect(page.locator("main .status.succeeded").first).to_be_visible(timeout=_PATIENCE * 1000)
    return Walk(clicks.number, time.monotonic() - began, found[0])


def main() -> int:
    """Prints how it went. Returns 1 if it took too many clicks or seconds."""
    with (
        tempfile.TemporaryDirectory() as home,
        demonstration(Path(home)) as url,
        running_browser() as browser,
        opened_page(browser, url) as (page, _),
    ):
        done = walk(page)
    print(f"clicks: {done.clicks} (at most {MOST_CLICKS})")
    print(f"seconds after the page was up: {done.seconds:.1f} (less than {MOST_SECONDS:.0f})")
    print(f"seen: {done.line}")
    return int(done.clicks > MOST_CLICKS or done.seconds >= MOST_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
