"""The demonstration of `todoku up`: orders with two destinations each, greetings, and one failure on purpose."""

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
"""The first messages are published at one a second, later ones more slowly."""

LAST: Final = 120
_SECOND: Final = 1.0
_QUIET: Final = 10.0


def create_demo_app() -> App:
    """Creates an App with destinations `demo.*` on the configured database."""
    box = App()

    @box.on("demo.greeting", name="demo.greeter")
    async def greet(ctx: Context, event: dict[str, Any]) -> None:
        ctx.log.debug("DEMO_GREETING", text=f"hello, {event['name']}")

    @box.on("demo.order.*", name="demo.warehouse")
    async def pack(ctx: Context, event: dict[str, Any]) -> None:
        ctx.log.debug("DEMO_ORDER", text=f"order {event['order']}: packed")

    @box.on("demo.order.*", name="demo.accounting")
    def book(ctx: Context, event: dict[str, Any]) -> None:
        ctx.log.debug("DEMO_ORDER", text=f"order {event['order']}: booked")

    @box.on("demo.trouble", name="demo.clumsy", max_attempts=3, backoff=table(2, 4))
    async def stumble(ctx: Context, event: dict[str, Any]) -> None:
        raise ConnectionError(f"attempt {ctx.attempt} fails on purpose, {event['why']}")

    return box


class DemoPublisher:
    """Publishes `LAST` messages: every second at first, then more slowly."""

    def __init__(self, box: App) -> None:
        self._box = box

    def run(self) -> None:
        """Publishes them all. It takes minutes: call it in a daemon thread."""
        for number, (topic, payload) in zip(range(LAST), _messages(), strict=False):
            with suppress(TodokuError):  # stopping, or the database is gone: the guardrail reports it
                self._box.publish(topic, payload, tx=None)
            if number > 1:  # the first ones at once, so that the page is not empty
                time.sleep(_SECOND if number < LIVELY else _QUIET)


def _messages() -> Iterator[tuple[str, dict[str, object]]]:
    yield "demo.greeting", {"name": "newcomer"}
    yield "demo.trouble", {"why": "to show retries and a dead letter"}
    for number in count(1):
        yield "demo.order.created", {"order": number, "amount": 42}
        yield "demo.greeting", {"name": f"visitor {number}"}
        yield "demo.order.paid", {"order": number, "amount": 42}
