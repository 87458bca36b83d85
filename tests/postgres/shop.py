"""A shop that does a little of everything todoku does, so that a server's setting can be tried on all of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tests.support.crew import until
from tests.transactions.callers import Asyncpg, Caller, Psycopg
from todoku import App, Context, Limit, Message, table
from todoku.core.status import Status
from todoku.engine.diagnostics.doctor import Finding, examine
from todoku.store.deliveries import Filter

TEXT: Final = "届く — €, \\ and '"
"""What a wrong encoding, or a wrong idea of backslashes and quotes, would change."""
BYTES: Final = bytes(range(256))
DRIVERS: Final[tuple[type[Caller], ...]] = (Psycopg, Asyncpg)


class Shop:
    """An App with a handler of each kind. `ran` is what its handlers were given, in order."""

    def __init__(self, url: str, *, schema: str | None = None) -> None:
        self.box = App(url, schema=schema)
        self.ran: list[Any] = []
        self.broken = True
        box, again = self.box, table(0.01)

        @box.on("order.*", name="pack", backoff=again, max_attempts=2)
        async def pack(ctx: Context, order: Any) -> None:
            if order["fails"] == "once" and ctx.attempt == 1:
                raise ConnectionError("once")
            if order["fails"] == "until mended" and self.broken:
                raise ConnectionError("always")
            self.ran.append(order)

        @box.on("stock.*", name="shelf", backoff=again, ordered=True)
        async def shelf(ctx: Context, moved: Any) -> None:
            if moved["n"] == 1 and ctx.attempt == 1:
                raise ConnectionError("the head of its lane fails once")
            self.ran.append(moved)

        @box.on("mail.*", name="mail", per_key=Limit(concurrency=1))
        async def mail(raw: bytes) -> None:
            self.ran.append(raw)

        @box.on("book.*", name="books", transactional=True)
        def books(ctx: Context, line: Any) -> None:
            ctx.tx.execute("insert into shop_book (line) values (%s)", (line["text"],))

    @contextmanager
    def open(self) -> Iterator[None]:
        """With a worker at work."""
        worker = self.box.worker()
        thread = threading.Thread(target=lambda: asyncio.run(worker.run()), daemon=True)
        thread.start()
        try:
            yield
        finally:
            worker.drain()
            thread.join(timeout=120)
            assert not thread.is_alive(), "the worker does not end"

    def standing(self) -> dict[str, int]:
        """How many deliveries are in which state."""
        counts = self.box.store.statistics.counts()
        return {str(state): counts.of(state) for state in sorted(Status) if counts.of(state)}

    def doctor(self) -> dict[str, Finding]:
        """What `todoku doctor` finds wrong, by what it is about."""
        found = examine(self.box.store, self.box.settings)
        return {finding.what: finding for finding in found if finding.level == "problem"}


def sell(shop: Shop, caller: Caller) -> list[Message]:
    """Publish one of everything through a caller's connection, in one transaction of the caller's own."""
    name = type(caller).__name__
    caller.begin()
    stored = [
        caller.publish(shop.box, "order.made", {"by": name, "fails": "once", "text": TEXT}, idempotency_key=name),
        caller.publish(shop.box, "order.made", {"by": name, "fails": "once", "text": TEXT}, idempotency_key=name),
        caller.publish(shop.box, "order.late", {"by": name, "fails": "never"}, delay=0.2),
        caller.publish(
            shop.box, "order.timed", {"by": name, "fails": "no"}, at=datetime.now(UTC) + timedelta(seconds=0.3)
        ),
        caller.publish(shop.box, "order.lost", {"by": name, "fails": "until mended"}),
        *(caller.publish(shop.box, "stock.moved", {"by": name, "n": n}, key=f"{TEXT} {name}") for n in range(1, 5)),
        caller.publish(shop.box, "mail.sent", BYTES, key=TEXT),
        caller.publish(shop.box, "book.line", {"text": TEXT}),
    ]
    caller.commit()
    return stored


def live_a_day(shop: Shop, url: str) -> None:
    """Publish through each driver, run everything with a worker, replay what died: nothing lost, doubled or disordered.

    `url` is where the callers connect: the App's own, if they are one program. Its database has the table shop_book.
    """
    began = datetime.now(UTC) - timedelta(seconds=60)
    for driver in DRIVERS:
        caller = driver(url)
        try:
            stored = sell(shop, caller)
        finally:
            caller.close()
        assert stored[0].id == stored[1].id
        assert [message.duplicate for message in stored] == [False, True, *[False] * (len(stored) - 2)]
        assert all(began < message.created_at < datetime.now(UTC) + timedelta(seconds=60) for message in stored)
    shop.box.publish("order.own", {"by": "todoku", "fails": "once", "text": TEXT}, tx=None, idempotency_key=TEXT)
    with shop.open():
        until(lambda: shop.standing() == {"aborted": 2, "succeeded": 19}, what=f"the first day: {shop.standing()}")
        shop.broken = False
        assert shop.box.replay(reason="NETWORK", by="somebody", why="it is mended").replayed == 2
        until(lambda: shop.standing() == {"succeeded": 21}, what=f"the replay: {shop.standing()}")
        keep_house(shop)
    names = [driver.__name__ for driver in DRIVERS]
    orders = [item for item in shop.ran if isinstance(item, dict) and "n" not in item]
    made = {"fails": "once", "text": TEXT}
    expected = [{"by": name, **made} for name in (*names, "todoku")]
    expected += [{"by": name, "fails": fails} for name in names for fails in ("never", "no", "until mended")]
    assert sorted(orders, key=str) == sorted(expected, key=str)
    assert [item for item in shop.ran if isinstance(item, bytes)] == [BYTES] * len(names)
    for name in names:
        moved = [item["n"] for item in shop.ran if isinstance(item, dict) and "n" in item and item["by"] == name]
        assert moved == [1, 2, 3, 4], "the order of a lane (I10)"
    again = shop.box.publish(
        "order.own", {"by": "todoku", "fails": "once", "text": TEXT}, tx=None, idempotency_key=TEXT
    )
    assert again.duplicate
    assert shop.standing() == {"succeeded": 21}
    assert shop.box.store.broken(history_ttl=86_400.0, ledger_ttl=86_400.0) == {}


def keep_house(shop: Shop) -> None:
    """What a worker's maintenance does now and then, and what people look at."""
    store = shop.box.store
    store.leases.reclaim()
    store.retention.expire(unknown_after=600.0)
    pruned = store.retention.prune(history_ttl=86_400.0)
    assert (pruned.messages, pruned.stray) == (0, 0)
    assert store.statistics.lag(stuck_after=600.0).stuck == 0
    assert len(store.deliveries.find(Filter(status="succeeded")).items) == 21
    assert store.statistics.dead_letters() == ()
