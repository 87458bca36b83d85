"""How many modules and functions of todoku one message enters, on five ways: `python -m bench.rooms`.

Counted with the interpreter's profiler, after the same thing was done once before: what is loaded or made on first use
is not counted. Standard library and dependencies are not counted.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import httpx

import todoku
from todoku.api.server import server_app

ROOT = str(Path(todoku.__file__).parent)
BODY = b'{"n":1}'
TOKEN = "a-token-of-this-count-0123456789"


class Entered:
    """The modules and functions of todoku that were entered."""

    def __init__(self) -> None:
        self.functions: set[tuple[str, str]] = set()

    def note(self, frame: FrameType, event: str, _arg: object) -> None:
        """A profile function."""
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT) and not code.co_name.startswith("<"):
            self.functions.add((code.co_filename, code.co_qualname))

    @property
    def modules(self) -> set[str]:
        """Their files."""
        return {file for file, _ in self.functions}


@contextmanager
def counted(name: str) -> Iterator[None]:
    """Print what the block enters, in every thread that it starts and in this one."""
    entered = Entered()
    threading.setprofile_all_threads(entered.note) if sys.version_info >= (3, 12) else threading.setprofile(
        entered.note
    )
    sys.setprofile(entered.note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    if "--modules" in sys.argv:
        print(*sorted(file.removeprefix(ROOT) for file in entered.modules), sep="\n")
    print(f"{name:<44} {len(entered.modules):>3} modules {len(entered.functions):>4} functions")


def twice(name: str, once: Callable[[], object]) -> None:
    """Do it once to load and make everything, then count."""
    once()
    with counted(name):
        once()


async def ask(app: Any, path: str, headers: dict[str, str], body: bytes = b"") -> None:
    """Post to an ASGI application in this process."""
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        answer = await client.post(path, content=body, headers=headers)
        assert answer.status_code < 300, (path, answer.status_code, answer.text)


def publish(app: Any, url: str) -> None:
    """One request over the QStash API, without retries."""
    headers = {"authorization": f"Bearer {TOKEN}", "upstash-retries": "0"}
    asyncio.run(ask(app, f"/v2/publish/{url}", headers, BODY))


def deliver(box: todoku.App, app: Any, url: str) -> None:
    """A request whose receiver is not there, then once more from the dead letters."""
    publish(app, url)
    box.drain()
    asyncio.run(ask(app, "/v2/dlq/retry?count=1", {"authorization": f"Bearer {TOKEN}"}))
    box.drain()


def post_event(app: Any, number: Iterator[int]) -> None:
    """An event of GitHub."""
    signature = hmac.new(b"a-secret-of-this-count", BODY, "sha256").hexdigest()
    headers = {
        "x-hub-signature-256": f"sha256={signature}",
        "x-github-delivery": f"{next(number)}",
        "x-github-event": "push",
        "content-type": "application/json",
    }
    asyncio.run(ask(app, "/ingest/github", headers, BODY))


def main() -> None:
    """Count all five."""
    logging.disable(logging.CRITICAL)
    os.environ |= {"TODOKU_TOKEN": TOKEN, "TODOKU_HTTP_ALLOW": "127.0.0.0/8"}
    with tempfile.TemporaryDirectory() as home:
        box = todoku.App(f"sqlite:///{home}/rooms.db")
        box.migrate()
        box.ingest("github", todoku.github(secrets=["a-secret-of-this-count"]), topic="github.{type}")
        box.route("github.**", to=todoku.log())

        @box.job
        def greet(name: str) -> None:
            """A handler."""

        def claim_to_settle() -> None:
            greet.enqueue("Ada")
            box.drain()

        app = server_app(box, None)  # type: ignore[arg-type]  # only health pages would ask it
        app = getattr(app, "app", app)
        numbers = count(1)
        twice("(a) one enqueue", lambda: greet.enqueue("Ada"))
        twice("(b) enqueue, a worker from start to stop", claim_to_settle)
        twice("(c) one ingested event", lambda: post_event(app, numbers))
        twice("(d) HTTP delivery to dead letter, and replay", lambda: deliver(box, app, "http://127.0.0.1:9/"))
        twice("(e) /v2/publish", lambda: publish(app, "http://127.0.0.1:9/"))


if __name__ == "__main__":
    main()
