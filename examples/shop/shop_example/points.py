"""The consumer: a process with a database of its own. It gives a point for every 100 of an order, once per order.

What a broker delivers it may deliver twice. The inbox is a table with a unique (consumer, message id): the mark and the
points are one commit, and the message is acknowledged after it. Whatever crashes, each event counts once (I6).
"""

from __future__ import annotations

import logging
from typing import Any, Literal
from uuid import UUID

import msgspec
from sqlalchemy import text

import todoku
from shop_example.broker import Received
from shop_example.database import open_engine, run_schema
from shop_example.events import OrderCreated

LOGGER = logging.getLogger("points")
NAME = "points"
PER_POINT = 100

ADD = text(
    "insert into points (user_id, points) values (:user, :points)"
    " on conflict (user_id) do update set points = points.points + excluded.points"
)
Taken = Literal["counted", "seen before", "not for us", "unreadable"]


class Points:
    """The points of every user."""

    def __init__(self, database: str) -> None:
        self.box = todoku.App(database)
        self.engine = open_engine(database)

    def prepare(self) -> None:
        """Make what is missing: todoku's tables, of which this consumer uses the inbox, and `points`."""
        self.box.migrate()
        run_schema(self.engine, "points")

    def close(self) -> None:
        """Give back every connection."""
        self.engine.dispose()
        self.box.close()

    def take(self, message: Received) -> Taken:
        """Count one message. When this returns, it is committed and may be acknowledged."""
        taken = self._take(message)
        LOGGER.log(
            logging.ERROR if taken == "unreadable" else logging.INFO, "%s %s: %s", message.type, message.id, taken
        )
        return taken

    def _take(self, message: Received) -> Taken:
        if message.type != OrderCreated.__name__:
            return "not for us"
        try:
            id, order = UUID(message.id), msgspec.json.decode(message.payload, type=OrderCreated)
        except (ValueError, msgspec.MsgspecError):
            return "unreadable"  # and will be tomorrow: to ask for it again would only hold up the others
        with self.engine.begin() as tx, self.box.inbox(NAME).once(id, tx=tx) as first:
            if first:
                tx.execute(ADD, {"user": str(order.user_id), "points": order.amount // PER_POINT})
        return "counted" if first else "seen before"

    def balance(self) -> dict[str, int]:
        """Who has how many."""
        with self.engine.connect() as tx:
            rows: Any = tx.execute(text("select user_id, points from points order by user_id"))
            return {user: int(points) for user, points in rows}
