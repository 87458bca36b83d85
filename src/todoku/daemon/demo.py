"""A small demonstration for newcomers: a few messages arrive, one is in two places, one fails on purpose."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import Any, Final

from todoku.app import App
from todoku.core.backoff import table
from todoku.core.errors import TodokuError
from todoku.engine.context import Context

LIVELY: Final = 60
"""So many messages come one a second, then it gets quiet."""

LAST: Final = 120
_SECOND: Final = 1.0
_QUIET: Final = 10.0


def demonstration() -> App:
    """An App with destinations `demo.*`, on the database that the settings name."""
    box = App()

    @box.on("demo.greeting", name="demo.greeter")
    async def greet(ctx: Context, event: dict[str, Any]) -> None:
        ctx.log.info("DEMO_GREETING", text=f"hello, {event['name']}")

    @box.on("demo.order.*", name="demo.warehouse")
    async def pack(ctx: Context, event: dict[str, Any]) -> None:
        ctx.log.info("DEMO_ORDER", text=f"order {event['order']}: packed")

    @box.on("demo.order.*", name="demo.accounting")
    def book(ctx: Context, event: dict[str, Any]) -> None:
        ctx.log.info("DEMO_ORDER", text=f"order {event['order']}: booked")

    @box.on("demo.trouble", name="demo.clumsy", max_attempts=3, backoff=table(2, 4))
    async def stumble(ctx: Context, event: dict[str, Any]) -> None:
        raise ConnectionError(f"attempt {ctx.attempt} fails on purpose, {event['why']}")

    return box


class Demonstration:
    """Publishes: every second for a while, then slower, then no more."""

    def __init__(self, box: App) -> None:
        self._box = box

    def run(self) -> None:
        """All of it; call it in a thread that ends with the process."""
        for number, (topic, payload) in zip(range(LAST), _messages(), strict=False):
            with suppress(TodokuError):  # stopping, or the database is gone: the guardrail tells
                self._box.publish(topic, payload, tx=None)
            if number > 1:  # the first ones at once: something to see when the browser opens
                time.sleep(_SECOND if number < LIVELY else _QUIET)


def _messages() -> Iterator[tuple[str, dict[str, object]]]:
    yield "demo.greeting", {"name": "newcomer"}
    yield "demo.trouble", {"why": "to show retries and a dead letter"}
    for number in count(1):
        yield "demo.order.created", {"order": number, "amount": 42}
        yield "demo.greeting", {"name": f"visitor {number}"}
        yield "demo.order.paid", {"order": number, "amount": 42}
