"""Sending an order to its broker, and telling the ledger what came of it.

Ledger first, then the outbox row: an end that a crash cuts off from its row is found in the ledger by the next attempt.
No transaction is open while anything is sent.
"""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime

import msgspec
from sqlalchemy.orm import Session

import todoku
from orders_example.broker import BrokerAdapter
from orders_example.database import Database, Tx
from orders_example.order import ORDERS, TOPIC, Identity, Order
from orders_example.reasons import HTTP_STATUS, OK, TRANSIENT, Reason, reason_code_from, reason_of_end
from orders_example.result import Latency, Result, filled, refused, settled


class _Failed(msgspec.Struct, frozen=True):
    """What the ledger says of an order that failed."""

    reason_code: Reason = Reason.INTERNAL_ERROR


class Sending:
    """The consumer of accepted orders, and the hook that tells the ledger of ends the consumer did not see."""

    def __init__(self, box: todoku.App, database: Database, adapter: BrokerAdapter, timeout: float) -> None:
        self._box = box
        self._database = database
        self._adapter = adapter
        self._timeout = timeout

        @box.on(TOPIC, name=ORDERS, queue=ORDERS)
        async def orders(ctx: todoku.Context, order: Order) -> None:
            await self.send(ctx, order)

        @box.after("succeeded", "aborted", destination=ORDERS, name="orders.ended", queue=ORDERS, transactional=True)
        def ended(ctx: todoku.Context, ending: todoku.Ending) -> None:
            self.ended(ctx.session(Session), ending)

    # ------------------------------------------------------------------------------------------ an attempt

    async def send(self, ctx: todoku.Context, order: Order) -> None:
        """One attempt. Nothing is sent that the ledger says is over, or is somebody else's."""
        if await asyncio.to_thread(self._is_over, ctx, order):
            return
        began = time.time()
        try:
            with ctx.trace_send(self._adapter.name):
                async with asyncio.timeout(time_limit(order, self._timeout)):
                    execution = await self._adapter.send(order)
        except Exception as error:  # noqa: BLE001 - whatever an adapter raises has a reason
            await self._failed(ctx, order, error, _latency(ctx, began))
        else:
            result = filled(order, execution, self._adapter.name, datetime.now(UTC), _latency(ctx, began))
            key = order.idempotency_key
            await self._box.ledger.aconclude(key, scope=ORDERS, tx=None, response=result, status=OK)

    def _is_over(self, ctx: todoku.Context, order: Order) -> bool:
        """Whether the ledger knows a success. Of a failure, or of another order with this key: the same end again."""
        entry = self._box.ledger.entry(order.idempotency_key, scope=ORDERS)
        if entry is None:
            return False  # published past the API: there is nobody to tell
        if entry.digest != ctx.claim.digest:
            raise todoku.Abort(Reason.IDEMPOTENCY_CONFLICT, "the ledger has another order under this key")
        if entry.state == "failed":
            told = msgspec.json.decode(entry.response or "{}", type=_Failed)
            raise todoku.Abort(told.reason_code, "the ledger says so")
        return entry.state == "succeeded"

    async def _failed(self, ctx: todoku.Context, order: Order, error: Exception, latency: Latency) -> None:
        """If there is no attempt after this one, the ledger is told so first."""
        reason, said = reason_code_from(error), f"{type(error).__name__}: {error}"
        if reason not in TRANSIENT or ctx.attempt >= ctx.max_attempts:
            result = refused(order, reason, self._adapter.name, datetime.now(UTC), latency)
            await asyncio.to_thread(self._conclude_as_owner, ctx, result)
        if reason in TRANSIENT:
            raise todoku.Retry(reason=reason, detail=said) from error
        raise todoku.Abort(reason, said) from error

    def _conclude_as_owner(self, ctx: todoku.Context, result: Result) -> None:
        """A worker that has lost the order says nothing: whoever has it now may succeed."""
        with self._database.begin() as tx:
            found = self._database.delivery(tx, ctx.delivery_id)
            if found is not None and found.epoch == ctx.claim.epoch:
                self._conclude_failed(tx, result)

    # --------------------------------------------------------------------------------------------- an end

    def ended(self, tx: Session, ending: todoku.Ending) -> None:
        """Tell the ledger of an end that no attempt could: expired, cancelled, unreadable, given up, settled by hand.

        Where an attempt has told it, it is told nothing new. An end that a replay has undone counts no more.
        """
        if ending.key is None or ending.reason == Reason.IDEMPOTENCY_CONFLICT:
            return  # the ledger's order is another one
        now = self._database.delivery(tx, ending.delivery_id)
        if now is not None and (now.status, now.replay_count) != (ending.status, ending.replay_count):
            return
        waiting = self._database.waiting(tx, ending.key)
        if waiting is None:
            return  # an attempt has told it
        order = msgspec.json.decode(waiting, type=Identity)
        if ending.status == "succeeded":
            given = self._database.given_result(tx, ending.delivery_id)
            by_hand = settled(order, self._adapter.name, ending.ended_at)
            response = by_hand if given is None else msgspec.json.decode(given)
            self._box.ledger.conclude(ending.key, scope=ORDERS, tx=tx, response=response, status=OK)
        elif now is not None or not self._database.succeeded(tx, ending.delivery_id):
            reason = reason_of_end(ending.reason)
            self._conclude_failed(tx, refused(order, reason, self._adapter.name, ending.ended_at, Latency()))

    def _conclude_failed(self, tx: Tx, result: Result) -> None:
        status = HTTP_STATUS[result.reason_code or Reason.INTERNAL_ERROR]
        key = result.idempotency_key
        self._box.ledger.conclude(key, scope=ORDERS, tx=tx, response=result, status=status, ok=False)


def time_limit(order: Order, timeout: float) -> float:
    """How many seconds its broker has: an order that must be filled at once is not waited for any longer."""
    return timeout if order.time_in_force == "IOC" else 2 * timeout


def _latency(ctx: todoku.Context, began: float) -> Latency:
    """By this machine's clock against the database's: never less than nothing."""
    now, stored = time.time(), ctx.claim.created_at
    return Latency(queue=_ms(began - stored), broker_rtt=_ms(now - began), total=_ms(now - stored))


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))
