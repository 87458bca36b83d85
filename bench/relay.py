"""`make bench-relay`: outbox to broker through the daemon, beside a bare client that publishes the same messages.

Everything is published into PostgreSQL first, on an ordered route, one key after the other. Then `todoku run` with two
worker processes relays it, and its rate is that of the deliveries settled between the first commit and the last, by the
database's clock: starting up counts for nothing. What the broker then holds is read back, each message once and a key's
in order, and those very payloads and headers are what the bare client (same library, same server, confirms, nothing
else to do) publishes to another address. It has as many in flight as it is fastest with, and of one key never more than
one, as the relay.

A broker that is missing is named with the reason and passed over.

`--number` is how many (20,000 of 1,000 keys), `--broker` chooses one, `--json` prints one object at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import aio_pika
import msgspec
import nats
import psycopg
from aiokafka import AIOKafkaProducer

import todoku
from bench.bars import Bar, compared, report
from bench.engine import TEXT
from bench.running import SERVER
from tests.daemon.running import Daemon
from tests.destinations import relay
from tests.destinations.kinds import KINDS, Kind, Received
from tests.support.postgres import fresh_database, server_dsn, stop_server
from tests.support.services import ROOT, Service

KEYS = 1_000
ROUNDS = 3
REQUIRED = 0.5
STILL_SEC = 60.0
"""So long nothing is settled: something is wrong."""

LEFT = "select count(*) from todoku_delivery where destination = %s"
BETWEEN = """
    select count(*),
           count(*) filter (where finished_at > first) / extract(epoch from max(finished_at) - max(first))::float8
      from todoku_history, (select min(finished_at) as first from todoku_history) began"""


class Order(msgspec.Struct, frozen=True):
    """What is published."""

    key: str
    n: int
    text: str = TEXT


# --------------------------------------------------------------------------------------------------- bare clients


class Bare(ABC):
    """A client library and nothing else. `send` comes back when the broker has confirmed."""

    library: ClassVar[str]
    in_flight: ClassVar[int]
    """As many at once as it is fastest with: more make it slower, or no faster."""

    def __init__(self, url: str, address: str) -> None:
        self.url, self.address = url, address

    @abstractmethod
    async def open(self) -> None: ...

    @abstractmethod
    async def send(self, message: Received) -> None: ...

    @abstractmethod
    async def close(self) -> None: ...


class BareNats(Bare):
    library = "nats-py"
    in_flight = 250

    async def open(self) -> None:
        self._client = await nats.connect(self.url)
        self._stream = self._client.jetstream()
        self._subject = f"{self.address}.order.created"

    async def send(self, message: Received) -> None:
        await self._stream.publish(self._subject, message.payload, headers=message.headers, timeout=60)

    async def close(self) -> None:
        await self._client.close()


class BareRabbit(Bare):
    library = "aio-pika"
    in_flight = 500

    async def open(self) -> None:
        self._connection = await aio_pika.connect(self.url)
        self._channel = await self._connection.channel(publisher_confirms=True, on_return_raises=True)

    async def send(self, message: Received) -> None:
        known = message.properties
        body = aio_pika.Message(
            message.payload, headers=dict(message.headers), content_type=known["content-type"],
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT, message_id=known["message-id"], type=known["type"],
        )  # fmt: skip
        await self._channel.default_exchange.publish(body, self.address, mandatory=True)

    async def close(self) -> None:
        await self._connection.close()


class BareKafka(Bare):
    library = "aiokafka"
    in_flight = 100

    async def open(self) -> None:
        self._producer = AIOKafkaProducer(bootstrap_servers=self.url, enable_idempotence=True, acks="all")
        await self._producer.start()
        await self._producer.partitions_for(self.address)

    async def send(self, message: Received) -> None:
        headers = [(name, value.encode()) for name, value in message.headers.items()]
        key = (message.key or "").encode()
        await self._producer.send_and_wait(self.address, message.payload, key=key, headers=headers)

    async def close(self) -> None:
        await self._producer.stop()


BARE: dict[str, type[Bare]] = {"nats": BareNats, "rabbitmq": BareRabbit, "kafka": BareKafka}


async def published(client: Bare, messages: list[Received], in_flight: int) -> float:
    """How many a second a bare client publishes: so many at once, each with keys of its own, one after the other."""
    hands: list[list[Received]] = [[] for _ in range(in_flight)]
    places: dict[str | None, int] = {}
    for message in messages:
        hands[places.setdefault(message.key, len(places)) % in_flight].append(message)

    async def work(share: list[Received]) -> None:
        for message in share:
            await client.send(message)

    await client.open()
    try:
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for share in hands:
                group.create_task(work(share))
        return len(messages) / (time.perf_counter() - began)
    finally:
        await client.close()


# ------------------------------------------------------------------------------------------------------ the relay


@dataclass
class Contest:
    """One broker, and what the relay brought it last."""

    kind: Kind
    dsn: str
    home: Path
    number: int
    keys: int
    in_flight: int
    workers: int
    messages: list[Received] = field(default_factory=list)

    def relayed(self) -> float:
        """Publish everything, then let a daemon relay it. Raises if the broker has not each once and in order."""
        address = self._declared()
        with fresh_database(self.dsn) as url:
            self._fill(url)
            daemon = Daemon(
                ("run", "--app", "tests.destinations.relay:box", "--workers", str(self.workers)),
                self.home,
                {
                    "TODOKU_DATABASE": url, "PYTHONPATH": str(ROOT), "TODOKU_POLL_INTERVAL_SEC": "0.5",
                    "TODOKU_TEST_KIND": self.kind.name, "TODOKU_TEST_BROKER": self.kind.service.url,
                    "TODOKU_TEST_ADDRESS": address,
                },
            )  # fmt: skip
            try:
                rate = self._settled(url, daemon)
            finally:
                daemon.close()
        got = asyncio.run(self.kind.received(address))
        self.messages = in_order(got, self.number)
        return rate

    def bare(self) -> float:
        client = BARE[self.kind.name](self.kind.service.url, address := self._declared())
        rate = asyncio.run(published(client, self.messages, self.in_flight))
        in_order(asyncio.run(self.kind.received(address)), self.number)
        return rate

    def _declared(self) -> str:
        address = f"bench-{uuid.uuid4().hex[:12]}"  # the server may be one that others use, and keeps what it got
        asyncio.run(self.kind.declare(address))
        return address

    def _fill(self, url: str) -> None:
        box = todoku.App(url)
        box.migrate()
        box.event("order.created", key="key")(Order)
        box.route(relay.TOPICS, to=relay.NAME, ordered=True)
        orders = [Order(f"key {n % self.keys}", n) for n in range(self.number)]
        for start in range(0, self.number, 10_000):
            box.publish_many(orders[start : start + 10_000], tx=None)
        box.close()

    def _settled(self, url: str, daemon: Daemon) -> float:
        """Wait until nothing is left; how many a second were settled from the first commit to the last."""
        with psycopg.connect(url, autocommit=True) as looking:
            left, since = self.number, time.monotonic()
            while left:
                ((now,),) = looking.execute(LEFT, (relay.NAME,)).fetchall()
                if now < left:
                    left, since = now, time.monotonic()
                elif time.monotonic() > since + STILL_SEC or daemon.process.poll() is not None:
                    raise RuntimeError(f"{now:,} are left, and nothing happens: {daemon.err[-3000:]}")
                time.sleep(0.25)
            ((done, rate),) = looking.execute(BETWEEN).fetchall()
        if done != self.number:
            raise RuntimeError(f"{done:,} arrived instead of {self.number:,}")
        return float(rate)


def in_order(got: list[Received], number: int) -> list[Received]:
    """The messages in the order they were published; an error if one is missing, doubled, or before its turn."""
    last: dict[str, int] = {}
    orders = [msgspec.json.decode(one.payload, type=Order) for one in got]
    for order in orders:
        if order.n <= last.get(order.key, -1):
            raise RuntimeError(f"{order.key}: {order.n} came after {last[order.key]}")
        last[order.key] = order.n
    if len(got) != number:
        raise RuntimeError(f"the broker has {len(got):,} messages instead of {number:,}")
    return [one for _, one in sorted(zip(orders, got, strict=True), key=lambda both: both[0].n)]


# ----------------------------------------------------------------------------------------------------------- bars


def measured(name: str, dsn: str, options: argparse.Namespace) -> tuple[float, float]:
    """The relay's rate and the bare client's, on a server of their own."""
    server: type[Service] = KINDS[name].server
    with tempfile.TemporaryDirectory(prefix="todoku-bench-", dir="/tmp") as folder:
        service = server(Path(folder) / name)
        if server.given() is None:
            service.start()
        try:
            in_flight = min(options.in_flight or BARE[name].in_flight, options.keys)
            contest = Contest(
                KINDS[name](service), dsn, Path(folder), options.number, options.keys, in_flight, options.workers
            )
            contenders: tuple[tuple[str, Callable[[], float]], ...]
            contenders = (
                ("todoku", contest.relayed),
                (f"bare {BARE[name].library}, {in_flight} in flight", contest.bare),
            )
            ours, theirs = compared(options.rounds, f"{name}, {options.number:,} messages", *contenders)
        finally:
            service.stop()
    return ours, theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=20_000, help="how many messages (20,000)")
    parser.add_argument("--keys", type=int, default=KEYS, help="of how many keys (1,000)")
    parser.add_argument("--broker", choices=tuple(BARE), help="one broker")
    parser.add_argument("--workers", type=int, default=2, help="worker processes of the daemon (2)")
    parser.add_argument("--in-flight", type=int, help="of the bare client (what it is fastest with)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="each so often, in turn; the median counts (3)")
    parser.add_argument("--json", action="store_true", help="one JSON object at the end")
    options = parser.parse_args()
    if min(options.number, options.keys, options.workers, options.in_flight or 1, options.rounds) < 1:
        parser.error("every number is at least 1")
    home = Path(tempfile.mkdtemp(prefix="todoku-bench-", dir="/tmp"))
    found: dict[str, tuple[float, float]] = {}
    passed_over: dict[str, str] = {}
    load: dict[str, Any] = {"before": os.getloadavg()[0], "cores": os.cpu_count()}
    print(f"  load {load['before']:.1f} before, {load['cores']} cores", flush=True)
    try:
        for name in [options.broker] if options.broker else BARE:
            if (why := KINDS[name].server.missing()) is not None:
                passed_over[name] = why
                print(f"  {name}: passed over: {why}", flush=True)
                continue
            found[name] = measured(name, server_dsn(home, SERVER), options)
    finally:
        stop_server(home)
    bars = [Bar(f"relay_{name}_vs_bare", ours / theirs, REQUIRED) for name, (ours, theirs) in found.items()]
    if options.json:
        rates = {name: {"todoku_per_second": ours, "bare_per_second": theirs} for name, (ours, theirs) in found.items()}
        judged = {bar.name: [bar.measured, bar.required, bar.ok] for bar in bars}
        print(json.dumps({**rates, "number": options.number, "load": load, "bars": judged, "passed_over": passed_over}))
        return
    for name, (ours, theirs) in found.items():
        print(f"{name}: {ours:,.0f}/s through the daemon, {theirs:,.0f}/s bare, {ours / theirs:.2f} of it")
    report(bars)


if __name__ == "__main__":
    main()
