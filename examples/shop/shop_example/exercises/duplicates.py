"""Section 8 of the chapter: duplicates. The publisher is killed after it has sent and before it could note that.

The event stays, so it is sent again: at least once, never less. A consumer with an inbox counts it once; one without
counts it twice.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

import todoku
from shop_example.broker import Received
from shop_example.exercises.opening import USER, opened
from shop_example.points import PER_POINT, Points
from todoku.testing import crash, lose_lease


def duplicates(database: str) -> list[str]:
    """An order of 4200 is 42 points."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as home:
        bus = Path(home) / "bus"

        def publish_to_bus(message: todoku.Outgoing) -> None:
            with bus.open("ab") as file:  # a file, so that what a process sent outlives it
                file.write(msgspec.json.encode(Received(message.message_id, message.topic, message.payload)) + b"\n")

        with opened(database, publish_to_bus) as shop:
            shop.create_order(USER, 4200)
            crash(shop.box, at="settle.before_commit")
            lose_lease(shop.box)  # its lease ends by itself, later: nobody wants to wait
            shop.box.drain()
        arrived = [msgspec.json.decode(line, type=Received) for line in bus.read_bytes().splitlines()]
        points = Points(f"sqlite:///{Path(home).as_posix()}/points.db")
        points.prepare()
        taken = [points.take(message) for message in arrived]
        balance = points.balance()[str(USER)]
        points.close()
    without = sum(msgspec.json.decode(message.payload)["amount"] // PER_POINT for message in arrived)
    return [
        f"arrived {len(arrived)} times, with {len({message.id for message in arrived})} id",
        f"with an inbox: {', '.join(taken)}: {balance} points",
        f"without: {without} points",
    ]
