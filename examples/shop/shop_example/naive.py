"""The accidents that the outbox is for, made on purpose and counted: `python -m shop_example.naive [ORDERS]`.

A: the order is committed, and the process dies before it has told the broker. Nobody ever hears of the order.
B: the broker is told, and then the order is rolled back. Everybody hears of an order that does not exist.

Each way of doing it takes the same orders with the same faults, in processes that really die, on a real broker. Then
the orders in the database are compared with the events at the broker.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import UUID, uuid4

import msgspec
from sqlalchemy import text

from shop_example.broker import Broker, Received, open_broker
from shop_example.events import OrderCreated
from shop_example.orders import INSERT, Shop
from shop_example.own_broker import own_broker
from shop_example.settings import read_settings

USER = UUID("11111111-1111-4111-8111-111111111111")
ORDERS = 12
PATIENCE = 120


class Way(StrEnum):
    """How an order and its event are written."""

    COMMIT_FIRST = "commit-first"
    PUBLISH_FIRST = "publish-first"
    OUTBOX = "outbox"


class Fault(StrEnum):
    """What goes wrong with an order."""

    NONE = "none"
    ROLLBACK = "rollback"
    CRASH_BEFORE_COMMIT = "crash before commit"
    CRASH_AFTER_COMMIT = "crash after commit"


class RolledBack(Exception):
    """The transaction failed."""


class Count(msgspec.Struct, frozen=True, kw_only=True):
    """What one way came to."""

    orders: int
    events: int
    lost: int
    """Accident A: orders without an event."""
    lies: int
    """Accident B: events without an order."""


def fault_of(number: int) -> Fault:
    """Every fourth order goes well; the other three do not."""
    return tuple(Fault)[number % 4]


# ------------------------------------------------------------------------------------------ one order, in three ways


def commit_first(shop: Shop, broker: Broker, order: OrderCreated, fault: Fault) -> None:
    """First the database, then the broker: what dies in between is accident A."""
    _stored(shop, order, fault)
    _told(broker, order)


def publish_first(shop: Shop, broker: Broker, order: OrderCreated, fault: Fault) -> None:
    """First the broker, then the database: what is rolled back then is accident B."""
    _told(broker, order)
    _stored(shop, order, fault)


def outbox(shop: Shop, _broker: Broker, order: OrderCreated, fault: Fault) -> None:
    """Both in the database, in one commit. The broker is told by the publisher, later."""
    with shop.engine.begin() as tx:
        shop.place(tx, order.order_id, order.user_id, order.amount)
        _before_commit(fault)
    _after_commit(fault)


WAYS: dict[Way, Callable[[Shop, Broker, OrderCreated, Fault], None]] = {
    Way.COMMIT_FIRST: commit_first,
    Way.PUBLISH_FIRST: publish_first,
    Way.OUTBOX: outbox,
}


def _stored(shop: Shop, order: OrderCreated, fault: Fault) -> None:
    with shop.engine.begin() as tx:
        tx.execute(INSERT, {"id": str(order.order_id), "user_id": str(order.user_id), "amount": order.amount})
        _before_commit(fault)
    _after_commit(fault)


def _told(broker: Broker, order: OrderCreated) -> None:
    asyncio.run(broker.publish(Received(str(uuid4()), OrderCreated.__name__, msgspec.json.encode(order))))


def _before_commit(fault: Fault) -> None:
    if fault is Fault.ROLLBACK:
        raise RolledBack
    if fault is Fault.CRASH_BEFORE_COMMIT:
        _die()


def _after_commit(fault: Fault) -> None:
    if fault is Fault.CRASH_AFTER_COMMIT:
        _die()


def _die() -> None:
    """As kill -9: nothing is cleaned up, nobody is told."""
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))


def take_orders(way: Way, database: str, broker_url: str, address: str, first: int, last: int) -> None:
    """Take these orders. Says each before it begins, so that whoever starts us again knows where to go on."""
    broker = open_broker(broker_url, address)
    shop = Shop(database, broker.destination())
    for number in range(first, last):
        print(number, flush=True)
        with suppress(RolledBack):
            WAYS[way](shop, broker, OrderCreated(uuid4(), USER, 100 + number, datetime.now(UTC)), fault_of(number))


# --------------------------------------------------------------------------------------------------- all of them


def counted(way: Way, database: str, broker_url: str, orders: int = ORDERS) -> Count:
    """Take that many orders one way, in processes that die, and compare."""
    address = f"naive-{uuid4().hex[:12]}"
    broker = open_broker(broker_url, address)
    asyncio.run(broker.declare())
    shop = Shop(database, broker.destination())
    try:
        shop.prepare()
        earlier = _orders(shop)
        begun = 0
        while begun < orders:  # the order a process died of is not taken again
            words = [way, database, broker_url, address, str(begun), str(orders)]
            child = subprocess.run(  # noqa: S603 - our own interpreter and module
                [sys.executable, "-m", "shop_example.naive", *words], stdout=subprocess.PIPE, text=True,
                timeout=PATIENCE, check=False,
            )  # fmt: skip
            reached = max((int(line) + 1 for line in child.stdout.split()), default=begun)
            if reached == begun:
                raise RuntimeError(f"a process that takes orders ended with {child.returncode} before the first")
            begun = reached
        shop.box.drain()  # the publisher; only the outbox has something for it
        told: set[str] = set()
        asyncio.run(broker.receive(lambda message: told.add(msgspec.json.decode(message.payload)["orderId"]), idle=0.5))
        stored = _orders(shop) - earlier
    finally:
        shop.close()
    return Count(orders=len(stored), events=len(told), lost=len(stored - told), lies=len(told - stored))


def _orders(shop: Shop) -> set[str]:
    with shop.engine.connect() as tx:
        return {str(id) for (id,) in tx.execute(text("select id from orders"))}


def table(counts: dict[Way, Count]) -> str:
    """For people."""
    lines = [f"{'':15}{'orders':>8}{'events':>8}{'lost (A)':>10}{'lies (B)':>10}"]
    lines += [f"{way:15}{each.orders:8}{each.events:8}{each.lost:10}{each.lies:10}" for way, each in counts.items()]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Every way, with so many orders, and a table. Exits 1 if the outbox lost an order or told a lie."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if len(words) > 1:
        way, database, url, address, first, last = words
        take_orders(Way(way), database, url, address, int(first), int(last))
        return 0
    orders = int(words[0]) if words else ORDERS
    with ExitStack() as stack:
        home = Path(stack.enter_context(TemporaryDirectory(ignore_cleanup_errors=True)))
        given = os.environ.get("BROKER_URL") and read_settings(os.environ).broker
        url = given or stack.enter_context(own_broker(home / "nats"))
        # Each way has a database of its own: none of them waits for another.
        databases = {way: f"sqlite:///{home.as_posix()}/{way}.db" for way in Way}
        with ThreadPoolExecutor() as side_by_side:
            results = side_by_side.map(lambda way: counted(way, databases[way], url, orders), Way)
            counts = dict(zip(Way, results, strict=True))
    print(f"{orders} orders each; of every 4, 1 is rolled back and 2 crash\n\n{table(counts)}")
    return 1 if counts[Way.OUTBOX].lost or counts[Way.OUTBOX].lies else 0


if __name__ == "__main__":
    sys.exit(main())
