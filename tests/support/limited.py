"""Jobs with limits, run by worker processes: each attempt leaves a line when it begins and one when it ends."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import defaultdict
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import todoku

URL, NOTES = "TODOKU_TEST_LIMITED", "TODOKU_TEST_NOTES"


async def noted(what: str, delivery: str, seconds: float) -> None:
    """Run for a while. What is written down outlives a kill."""
    with (Path(os.environ[NOTES]) / f"{os.getpid()}.jsonl").open("a") as notes:
        for event in ("began", "ended"):
            line = {"what": what, "delivery": delivery, "event": event, "at": time.time(), "pid": os.getpid()}
            notes.write(json.dumps(line) + "\n")
            notes.flush()
            if event == "began":
                await asyncio.sleep(seconds)


def declared(url: str) -> tuple[todoku.App, todoku.Job[[float], None]]:
    """An App whose job may run twice at once for each key."""
    app = todoku.App(url)

    @app.job(per_key=todoku.Limit(concurrency=2), max_attempts=50)
    async def keyed(ctx: todoku.Context, seconds: float) -> None:
        await noted(f"key {ctx.key}", str(ctx.message_id), seconds)

    return app, keyed


box, keyed = declared(os.environ.get(URL, "sqlite:///never-opened.db"))


@box.job(queue="narrow", max_attempts=50)
async def narrow(ctx: todoku.Context, seconds: float) -> None:
    """The queue has a limit."""
    await noted("queue narrow", str(ctx.message_id), seconds)


@box.job(unique_for=600)
async def unique(number: int) -> int:
    """An equal call is a duplicate."""
    return number


def work(together: Barrier) -> None:
    """One process: a worker until it is ended."""
    together.wait(120)
    asyncio.run(box.worker().run())


def enqueue_the_same(together: Barrier, number: int) -> None:
    """One process: the calls that the others make too."""
    together.wait(120)
    for place in range(number):
        unique.enqueue(place)
        narrow.using(idempotency_key=f"once {place}").enqueue(0.0)


# ------------------------------------------------------------------------------------- what they wrote down

Span = tuple[float, float]
"""From when to when."""


def events(notes: Path) -> list[dict[str, Any]]:
    """What was written down so far; a line that a kill cut off is none."""
    lines = [line for path in notes.glob("*.jsonl") for line in path.read_text().splitlines() if line.endswith("}")]
    return [json.loads(line) for line in lines]


def spans(notes: Path) -> tuple[dict[str, list[Span]], list[tuple[str, str, float]]]:
    """From when to when attempts ran, by what they were; and (delivery, what, began) of those that were cut off."""
    found: dict[str, list[Span]] = defaultdict(list)
    open_ones: dict[tuple[str, int], tuple[str, float]] = {}
    for event in sorted(events(notes), key=lambda one: one["at"]):
        attempt = (event["delivery"], event["pid"])
        if event["event"] == "began":
            open_ones[attempt] = (event["what"], event["at"])
        else:
            what, began = open_ones.pop(attempt)
            found[what].append((began, event["at"]))
    return found, [(delivery, what, began) for (delivery, _), (what, began) in open_ones.items()]


def overlap(some: list[Span]) -> int:
    """How many ran at once, at most. What ends as another begins does not run beside it."""
    steps = sorted([(began, 1) for began, _ in some] + [(ended, -1) for _, ended in some])
    most = now = 0
    for _, step in steps:
        now += step
        most = max(most, now)
    return most
