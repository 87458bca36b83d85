"""The shop: an order and its event are one commit."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection, text

import todoku
from shop_example.database import open_engine, run_schema
from shop_example.events import EVENTS, OrderCreated, PaymentConfirmed

BUS = "bus"
"""What the shop calls wherever its events go; the view `outbox` shows what goes there."""

INSERT = text("insert into orders (id, user_id, amount, status) values (:id, :user_id, :amount, 'CREATED')")
PAID = text("update orders set status = 'PAID' where id = :id and status = 'CREATED'")


class Shop:
    """Takes orders. `to` is where its events go: a broker, or anything that todoku takes for a destination."""

    def __init__(self, database: str, to: Any) -> None:
        self.box = todoku.App(database, require_tx=True)
        for kind in EVENTS:
            self.box.event(kind.__name__, key="order_id")(kind)
        self.box.route("*", to=to, name=BUS, ordered=True)
        self.engine = open_engine(database)

    def prepare(self) -> None:
        """Make what is missing in the database: todoku's tables, `orders`, and the view `outbox`."""
        self.box.migrate()
        run_schema(self.engine, "sqlite" if self.engine.dialect.name == "sqlite" else "postgres")

    def close(self) -> None:
        """Give back every connection."""
        self.engine.dispose()
        self.box.close()

    def create_order(self, user_id: UUID, amount: int) -> UUID:
        """The seed's createOrder: one commit, the order and its event, or neither."""
        order_id = uuid4()
        with self.engine.begin() as tx:
            self.place(tx, order_id, user_id, amount)
        return order_id

    def place(self, tx: Connection, order_id: UUID, user_id: UUID, amount: int) -> None:
        """The same in a transaction that is somebody else's to commit."""
        tx.execute(INSERT, {"id": str(order_id), "user_id": str(user_id), "amount": amount})
        self.box.publish(OrderCreated(order_id, user_id, amount, datetime.now(UTC)), tx=tx)

    def confirm_payment(self, order_id: UUID) -> bool:
        """The order is paid: one commit again. False if there is no such order, or it was paid before."""
        with self.engine.begin() as tx:
            if tx.execute(PAID, {"id": str(order_id)}).rowcount == 0:
                return False
            self.box.publish(PaymentConfirmed(order_id, datetime.now(UTC)), tx=tx)
        return True

    def order(self, order_id: UUID) -> dict[str, Any] | None:
        """An order as it is stored."""
        with self.engine.connect() as tx:
            found = tx.execute(text("select * from orders where id = :id"), {"id": str(order_id)}).mappings().first()
        return None if found is None else {name: str(value) for name, value in found.items()} | {
            "amount": found["amount"]
        }  # fmt: skip

    def outbox(self) -> list[dict[str, Any]]:
        """The seed's table, oldest first."""
        with self.engine.connect() as tx:
            rows = tx.execute(text("select * from outbox order by created_at, id")).mappings()
            return [dict(row) for row in rows]
