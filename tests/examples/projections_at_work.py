"""The projections example at work: an application, requests to its API, and its program as a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from projections_example.api import make_api
from projections_example.application import Application, opened
from projections_example.documents import Draft
from projections_example.settings import Settings
from sqlalchemy import text

from tests.daemon.running import KEPT, PATIENCE, until

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "projections"
IMPORTABLE = f"{ROOT}:{ROOT / 'src'}:{EXAMPLE}"


@contextmanager
def projections_at(url: str, **settings: Any) -> Iterator[Application]:
    """An open application."""
    with opened(Settings(database=url, **settings)) as application:
        yield application


def draft(title: str = "a river", **more: Any) -> Draft:
    return Draft(title=title, body="and a letter", author="ada", **more)


async def ask(application: Application, method: str, path: str, body: Any = None) -> httpx.Response:
    """A request straight into the ASGI application."""
    transport = httpx.ASGITransport(make_api(application), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://documents") as client:
        return await client.request(method, path, json=body)


def rows(application: Application, sql: str) -> list[tuple[Any, ...]]:
    """What a statement finds, committed."""
    with application.documents.engine.begin() as tx:
        found = tx.execute(text(sql))
        return [tuple(row) for row in found] if found.returns_rows else []


def dead_letters(application: Application) -> list[tuple[str, str, str]]:
    """Destination, reason and error of each."""
    return [
        (one.destination, one.reason or "", one.error or "")
        for one in application.box.deliveries.find(status="aborted").items
    ]


@contextmanager
def running_example(home: Path, **environ: str) -> Iterator[str]:
    """`python -m projections_example`, greeting us; ended by Ctrl-C. Yields what it printed."""
    kept = {name: os.environ[name] for name in ("HOME", *KEPT) if name in os.environ}
    out = home / "out"
    with out.open("wb") as said:
        example = subprocess.Popen(
            [sys.executable, "-m", "projections_example"], cwd=home, stdin=subprocess.DEVNULL, stdout=said,
            env=kept | {"PYTHONPATH": IMPORTABLE} | environ,
        )  # fmt: skip
    try:
        until(lambda: b"Ctrl-C stops all" in out.read_bytes() or example.poll() is not None, "its greeting")
        assert example.poll() is None, out.read_text("utf-8")
        yield out.read_text("utf-8")
        example.send_signal(signal.SIGINT)
        assert example.wait(PATIENCE) == 0
    finally:
        if example.poll() is None:
            example.send_signal(signal.SIGTERM)  # so that it ends its own processes
            example.wait(PATIENCE)
