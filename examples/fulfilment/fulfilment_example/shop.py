"""The shop: an App with the workflow of an order, and the jobs that are its children."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final

from pydantic import BaseModel

import todoku
from fulfilment_example import orders
from fulfilment_example.payments import charge, refund

TIME_TO_APPROVE: Final = timedelta(days=3)


class Approval(BaseModel):
    """What the approving person says."""

    by: str
    approved: bool


def note_charged(tx: Any, order: int) -> None:
    """An approval that came first is left alone."""
    orders.move(tx, order, "charged", "new")


def note_shipped(tx: Any, order: int, shelves: list[str]) -> None:
    """In the transaction that stores the step: once."""
    orders.move(tx, order, "shipped", "approved")
    orders.run(tx, "update orders set shelves = ? where id = ?", json.dumps(shelves), order)


def is_shipped(tx: Any, order: int) -> bool:
    """Whether the order is on its way, and was not given up meanwhile."""
    return bool(orders.run(tx, "select 1 from orders where id = ? and state = 'shipped'", order))


class Shop:
    """The App and what is declared on it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.box = box = todoku.App(url)

        @box.job(queue="warehouse")
        async def pick(sku: str) -> str:
            if sku == "nothing":
                raise todoku.Abort("NOT_IN_STOCK", f"there is no {sku}")
            return f"shelf {len(sku)}"

        @box.workflow(queue="orders")
        async def fulfil(ctx: todoku.Flow, order: int, amount: int, skus: list[str]) -> str:
            key = str(await ctx.uuid())  # the service knows a repeated charge by it
            receipt = await ctx.step(charge, order, amount, key, undo=partial(refund, key))
            await ctx.step(note_charged, order, transactional=True)
            try:
                approval = await ctx.wait("approval", Approval, timeout=TIME_TO_APPROVE)
            except TimeoutError:
                raise todoku.Abort("NOT_APPROVED", "three days have passed") from None
            if not approval.approved:
                raise todoku.Abort("REFUSED", f"by {approval.by}")
            try:
                shelves = await ctx.gather(*(pick.call(sku) for sku in skus))
            except todoku.JobAborted as error:
                raise todoku.Abort("NOT_IN_STOCK", str(error)) from error
            await ctx.step(note_shipped, order, shelves, transactional=True)
            return f"{receipt}, approved by {approval.by}"

        @box.workflow(queue="orders")
        async def follow_up(ctx: todoku.Flow, order: int) -> None:
            await ctx.sleep(days=7)
            if await ctx.step(is_shipped, order, transactional=True):
                await ctx.publish("order.follow_up", {"order": order})

        box.route("order.follow_up", to=todoku.log())
        self.pick, self.fulfil, self.follow_up = pick, fulfil, follow_up

    def prepare(self) -> None:
        """Makes the tables that are missing."""
        self.box.migrate()
        with orders.transaction(self.url) as tx:
            orders.run(tx, orders.TABLE)

    def order(self, amount: int, skus: Sequence[str]) -> tuple[int, str]:
        """Stores an order and the run that fulfils it, in one commit. Returns the numbers of both."""
        with orders.transaction(self.url) as tx:
            order = orders.insert(tx, amount, json.dumps(list(skus)))
            run = self.fulfil.using(tx=tx, idempotency_key=f"order {order}").start(order, amount, list(skus))
            orders.run(tx, "update orders set run = ? where id = ?", str(run.id), order)
        return order, str(run.id)

    def decide(self, order: int, approval: Approval) -> bool:
        """Approves or refuses an order, and tells its run, in one commit. Returns False if that was decided before.

        With an approval starts the run that asks the customer a week later.
        """
        with orders.transaction(self.url) as tx:
            state = "approved" if approval.approved else "refused"
            if not orders.move(tx, order, state, "new", "charged"):
                return False
            ((run,),) = orders.run(tx, "select run from orders where id = ?", order)
            self.box.signal(run, "approval", approval, tx=tx)
            if approval.approved:
                self.follow_up.using(tx=tx).start(order)
        return True

    def show(self, order: int) -> dict[str, Any] | None:
        """An order as it is now."""
        with orders.transaction(self.url) as tx:
            rows = orders.run(tx, "select id, amount, skus, state, run, shelves from orders where id = ?", order)
        for id, amount, skus, state, run, shelves in rows:
            found = {"id": id, "amount": amount, "skus": json.loads(skus), "state": state, "run": run}
            return {**found, "shelves": shelves and json.loads(shelves)}
        return None
