"""I8: no transaction is open while anything is sent, by handlers, by destinations in batches, over HTTP.

Seen from outside, by another connection, while the send is in progress: on PostgreSQL no transaction that is open then
waits for the send to end (`pg_stat_activity`), on SQLite somebody else can write and commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from tests.destinations.http.conftest import KEYS, settings
from tests.destinations.http.receiving import Received, answer, receiving
from tests.support.crew import Crew
from tests.support.held import held_transactions
from tests.support.requesting import Requesting
from tests.support.world import World
from todoku.core.http_request import SCHEMES
from todoku.core.outcome import Done, Outcome
from todoku.destinations.http_sender import Requests
from todoku.engine.context import Context
from todoku.engine.registry import Outgoing

KEYED = {"idempotency_key": None}, {"idempotency_key": "order 7"}
"""Without a key, and with one: then the ledger is read and reserved before the send."""


class Looking:
    """Looks for open transactions whenever something is sent, and keeps what it found."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.looks = 0
        self.held: list[str] = []

    def look(self, *, patience: float = 30.0) -> None:
        self.looks += 1
        self.held += held_transactions(self._world.backend, self._world.url, patience=patience)


@pytest.fixture
def looking(world: World) -> Looking:
    return Looking(world)


@pytest.mark.parametrize("options", KEYED, ids=["no key", "key"])
@pytest.mark.parametrize("run", ["loop", "thread"])
def test_I8_no_transaction_is_open_while_a_handler_runs(
    world: World, crew: Crew, looking: Looking, run: str, options: dict[str, Any]
) -> None:
    """Whatever a handler sends is sent while it runs. Second attempts too: then the ledger is asked again (H13)."""

    async def in_the_loop(ctx: Context) -> None:
        await asyncio.to_thread(looking.look)
        if ctx.attempt == 1:
            raise TimeoutError("once more")

    def in_a_thread(ctx: Context) -> None:
        looking.look()
        if ctx.attempt == 1:
            raise TimeoutError("once more")

    crew.handles("warehouse", in_the_loop if run == "loop" else in_a_thread, run=run)
    world.publish(**options)
    crew.drain()
    world.advance(6)
    crew.drain()
    assert (looking.looks, looking.held) == (2, [])
    assert [row.status for row in world.history()] == ["succeeded"]


@pytest.mark.parametrize("ordered", [False, True], ids=["unordered", "ordered"])
@pytest.mark.parametrize("batch", [1, 10])
def test_I8_no_transaction_is_open_while_a_destination_sends(
    world: World, crew: Crew, looking: Looking, batch: int, ordered: bool
) -> None:
    """As brokers are sent to: one by one, in batches, in order by key."""
    sizes: list[int] = []

    class Broker:
        name = "warehouse"

        async def send(self, messages: Sequence[Outgoing]) -> list[Outcome]:
            sizes.append(len(messages))
            await asyncio.to_thread(looking.look)
            return [Done()] * len(messages)

    crew.sends(Broker(), batch=batch)
    world.publish(20, ordered=ordered, key="k" if ordered else None)
    assert crew.drain() == 20
    assert looking.looks == len(sizes) >= 2
    assert sum(sizes) == 20
    assert max(sizes) <= batch
    assert ordered or batch == 1 or max(sizes) > 1, "several at once"
    assert looking.held == []


def test_I8_no_transaction_is_open_while_a_request_is_sent(world: World, crew: Crew, looking: Looking) -> None:
    """The receiver looks before it answers."""

    async def reply(request: Received, writer: Any) -> None:
        await asyncio.to_thread(looking.look)
        await answer(200)(request, writer)

    sender = Requests(settings(http_timeout_sec=600.0), lambda: KEYS, chance=lambda: 0.0)
    for name in SCHEMES:
        crew.sends(sender, name=name, queue="http", batch=1, at_once=8)
    with receiving() as receiver:
        receiver.reply = reply
        requests = Requesting(world)
        for number in range(5):
            requests.post(f"{receiver.url}/{number}", body=b"b")
        assert crew.drain() == 5
    assert (looking.looks, looking.held) == (5, [])


def test_I8_a_transaction_that_is_held_is_found(world: World, crew: Crew, looking: Looking) -> None:
    """The one kind of handler that has a transaction, and therefore must not send: what looks for one, finds it."""

    def holds(ctx: Context) -> None:
        ctx.tx.execute("create table effect (n integer)")
        looking.look(patience=0.5)

    crew.handles("warehouse", holds, run="thread", transactional=True)
    world.publish()
    assert crew.drain() == 1
    assert len(looking.held) == 1
    assert looking.held[0].startswith("idle in transaction" if world.backend == "postgres" else "database is locked")
