"""Pitfall 2 of the chapter: more than one publisher. Two of them at once share the events and send none twice.

Each waits in its first sending until the other sends, too: so both surely hold rows at the same moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import todoku
from shop_example.exercises.opening import USER, opened
from shop_example.orders import BUS

BATCH = 20
SECONDS = 60.0


class Bus:
    """Notes what it is given. `both`: where a publisher waits for the other."""

    name = BUS

    def __init__(self, both: Barrier) -> None:
        self.sent: list[str] = []
        self._both: Barrier | None = both

    async def send(self, batch: Sequence[todoku.Outgoing]) -> None:
        """As todoku.Destination."""
        both, self._both = self._both, None  # once: two batches of one publisher may be sent at the same time
        if both is not None:
            await asyncio.to_thread(both.wait, SECONDS)
        self.sent += [message.message_id for message in batch]


def two_publishers(database: str) -> list[str]:
    """40 events, two publishers that take 20 each."""
    both = Barrier(2)
    buses = Bus(both), Bus(both)
    with opened(database, buses[0]) as one, opened(database, buses[1]) as other:
        for _ in range(2 * BATCH):
            one.create_order(USER, 4200)
        with ThreadPoolExecutor() as side_by_side:
            list(side_by_side.map(lambda shop: shop.box.drain(limit=BATCH), (one, other)))
        published = sum(row["status"] == "PUBLISHED" for row in one.outbox())
    sent = [id for bus in buses for id in bus.sent]
    return [
        f"the publishers sent {len(buses[0].sent)} and {len(buses[1].sent)}",
        f"sent twice: {len(sent) - len(set(sent))}",
        f"published: {published}",
    ]
