"""Exercise 3, second part: runOutboxPublisherOnce() twice in a row. What becomes of the event?

The first pass sends it. The second finds nothing to do: what is PUBLISHED is not PENDING any more.
"""

from __future__ import annotations

from io import StringIO

import todoku
from shop_example.exercises.opening import USER, opened

BATCH = 20
"""The seed's batchSize."""


def twice(database: str) -> list[str]:
    """Two passes over one event. On the command line a pass is `todoku run --once`."""
    console = StringIO()
    with opened(database, todoku.log(stream=console)) as shop:
        shop.create_order(USER, 4200)
        passes = [shop.box.drain(limit=BATCH) for _ in range(2)]
        statuses = [row["status"] for row in shop.outbox()]
    return [
        f"passes sent {passes[0]} and {passes[1]}",
        f"lines on the console: {len(console.getvalue().splitlines())}",
        f"the row is {', '.join(statuses)}",
    ]
