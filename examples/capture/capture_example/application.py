"""The App: one line captures the shop's table; then come the three places that are to learn of its changes."""

from __future__ import annotations

from typing import Any

import todoku
from capture_example.arrivals import note
from capture_example.settings import KAFKA_TOPIC, Settings


def make_box(settings: Settings) -> todoku.App:
    """What `todoku run` serves."""
    box = todoku.App(settings.database)
    box.capture("public.orders", topic="orders.{op}", key="id", database=settings.shop)

    @box.on("orders.*", ordered=True)
    def handler(ctx: todoku.Context, change: dict[str, Any]) -> None:
        """A handler in this process."""
        note(settings.arrivals / "handler.jsonl", str(ctx.message_id), change)

    box.route("orders.*", to=settings.webhook, name="webhook", ordered=True)
    if settings.kafka is not None:
        box.route("orders.*", to=todoku.kafka(KAFKA_TOPIC, servers=settings.kafka), ordered=True)
    return box
