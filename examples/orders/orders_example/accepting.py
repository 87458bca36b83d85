"""Accepting an order: its ledger entry and its outbox row are one commit, and a repeat is told what came of it."""

from __future__ import annotations

from typing import Any

import msgspec

import todoku
from orders_example.database import Database
from orders_example.order import ORDERS, TOPIC, Order, accepted


class Answer(msgspec.Struct, frozen=True):
    """What is answered: an HTTP status and a JSON document."""

    status: int
    document: Any


class Accepting:
    """Takes orders. It needs no worker, and no broker."""

    def __init__(self, box: todoku.App, database: Database) -> None:
        self._box = box
        self._database = database

    def accept(self, order: Order) -> Answer:
        """201: accepted now. 200, or the status of its failure: it was before, and nothing is queued.

        IdempotencyConflict: another order was accepted under its key.
        """
        key = order.idempotency_key
        with self._database.begin() as tx, self._box.once(key, scope=ORDERS, tx=tx, body=order) as done:
            if done.first:
                headers = {"x-correlation-id": order.trace_id}  # in every log line about it
                sent = self._box.publish(TOPIC, order, tx=tx, key=key, idempotency_key=key, headers=headers)
                done.store(accepted(order), status=201, state="accepted")
                # A duplicate: it has waited for longer than the ledger remembers, and is still on its way.
                return Answer(200 if sent.duplicate else 201, accepted(order))
            if done.state == "accepted":
                return Answer(200, accepted(order))
            return Answer(done.status or 200, done.response)
