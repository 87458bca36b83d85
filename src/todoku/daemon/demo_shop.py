"""The demonstration's App, written as a newcomer would write one: orders, mails, a webhook, refunds and a report.

Tracebacks show the frames of this file, as they show those of a user's own code.
"""

from __future__ import annotations

from typing import Any, Final

from todoku.app import App
from todoku.core.backoff import table
from todoku.destinations.http_sender import is_installed
from todoku.engine.context import Context

WEBHOOK_ORIGIN: Final = "https://webhooks.example"
"""Requests to it go to the receiver that the demonstration runs on this machine."""

_MAIL_FAILS: Final = 4
"""The confirmation of every fourth order fails once."""


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

    @box.on("demo.order.paid", name="demo.mailer", backoff=table(3))
    async def confirm(ctx: Context, event: dict[str, Any]) -> None:
        send_mail(event["order"], mail_server_answers=ctx.attempt > 1 or event["order"] % _MAIL_FAILS != 1)

    @box.on("demo.refund", name="demo.refunds", ordered=True, max_attempts=3, backoff=table(1, 2))
    def refund(ctx: Context, event: dict[str, Any]) -> None:
        # The first refund fails until an operator runs it again; those behind it wait, because their key is ordered.
        till = Till(locked=event["refund"] == 1 and ctx.claim.replay_count == 0)
        pay_out(till, event["amount"])

    @box.on("demo.report", name="demo.reporter")
    async def report(ctx: Context, event: dict[str, Any]) -> None:
        ctx.log.debug("DEMO_REPORT", text=f"a report of {event['of']}")

    if is_installed():
        box.route("demo.order.paid", f"{WEBHOOK_ORIGIN}/orders", name="demo.webhook")
    return box


def send_mail(order: int, *, mail_server_answers: bool) -> None:
    """Confirms an order."""
    if not mail_server_answers:
        raise TimeoutError(f"order {order}: the mail server did not answer on purpose, the next attempt succeeds")


class Till:
    """Where the money for refunds is."""

    def __init__(self, *, locked: bool) -> None:
        self._locked = locked

    def take(self, amount: int) -> int:
        """Takes money out of the till."""
        if self._locked:
            raise PermissionError(f"{amount} stays in the till, which is locked on purpose: run this again")
        return amount


def pay_out(till: Till, amount: int) -> int:
    """Pays a refund out of the till."""
    return till.take(amount)
