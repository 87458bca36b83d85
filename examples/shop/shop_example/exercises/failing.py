"""Exercise 3, first part: publishToBus() fails on purpose. Do `attempts` and `nextAttemptAt` grow?

They do, and what the chapter leaves open has an end: after max_attempts (6) the row is FAILED, for a person to look at.
The waits are the chapter's, 1, 2, 4 … 60 s, to which chance adds up to a tenth: what failed together shall not return
together.
The clock of the database is moved, so that nobody has to wait.
"""

from __future__ import annotations

import todoku
from shop_example.exercises.opening import USER, opened
from shop_example.records import OutboxStatus, read_records
from todoku.testing import frozen


class BusIsDown(Exception):
    """The bus never answers today."""


def publish_to_bus(message: todoku.Outgoing) -> None:
    """Fails on purpose."""
    raise BusIsDown(message.topic)


def failing(database: str) -> list[str]:
    """One line per pass of the publisher."""
    shown = []
    with opened(database, publish_to_bus) as shop, frozen(shop.box) as clock:
        shop.create_order(USER, 4200)
        while True:
            shop.box.drain()
            (record,) = read_records(shop.outbox(), dict[str, object])
            if record.status is OutboxStatus.FAILED:
                break
            wait = (record.next_attempt_at - clock.now).total_seconds()
            shown.append(f"{record.status} attempts={record.attempts} next attempt in {wait:.1f} s")
            clock.tick(wait + 0.001)  # the view's times are cut at milliseconds
    return [*shown, f"{record.status} attempts={record.attempts}"]
